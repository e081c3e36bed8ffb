"""A turn calls nothing twice that is recorded, appends each message once, and gives errors of tools to the model."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import AsyncTenuto, Tenuto, Tool, current_run
from tenuto.adapters.models import AnthropicModel, OpenAIModel
from tenuto.errors import BudgetExceeded, InvalidInput, Waiting
from tenuto.hooks.events import SignFound
from tenuto.hooks.metrics import Metrics


def calling(name: str, number: int = 0, /, **given: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(given)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


class Script:
    """A model that says one thing after the other."""

    def __init__(self, *replies: Any) -> None:
        self.replies = replies
        self.seen: list[list[dict[str, Any]]] = []
        self.tools: list[dict[str, Any]] = []

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        self.seen.append(messages)
        self.tools = tools
        return self.replies[sum(one["role"] == "assistant" for one in messages)]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_turn_calls_tools_and_appends_each_message_once(agent: Tenuto) -> None:
    model = Script(calling("add", a=2, b=3), "It is 5.")
    reply = agent.turn("t", "How much is 2 + 3?", model, tools=[add], key="k", instructions="Count.")
    assert (reply.text, [tuple(one) for one in reply.calls]) == ("It is 5.", [("add", '{"a": 2, "b": 3}', "5")])
    roles = [one["role"] for one in agent.thread("t").messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert agent.turn("t", "How much is 2 + 3?", model, tools=[add], key="k", instructions="Count.") == reply
    assert len(model.seen) == 2
    assert agent.thread("t").count() == 4
    assert model.seen[0][0] == {"role": "system", "content": "Count."}


def test_the_schema_comes_from_the_signature(agent: Tenuto) -> None:
    model = Script("Hello")
    agent.turn("t", "Hi", model, tools=[add])
    (schema,) = model.tools
    assert schema["function"]["name"] == "add"
    assert schema["function"]["description"] == "Add two numbers."
    assert schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calling("add", a="two"), "error: add was not called"),
        (calling("add"), "error: add was not called"),
        (calling("add", a=1, c=2), "error: add was not called: add has no argument 'c'"),
        (calling("subtract", a=1), "error: there is no tool 'subtract'"),
        (calling("fail"), "error: ZeroDivisionError"),
    ],
)
def test_an_error_of_a_tool_is_given_to_the_model(agent: Tenuto, call: dict[str, Any], said: str) -> None:
    def fail() -> float:
        return 1 / 0

    model = Script(call, "Sorry.")
    reply = agent.turn("t", "Go", model, tools=[add, fail], key="k")
    assert reply.calls[0].result.startswith(said)
    assert reply.text == "Sorry."
    assert agent.turn("t", "Go", model, tools=[add, fail], key="k") == reply


def test_a_dangerous_tool_waits_for_approval(agent: Tenuto) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    model = Script(calling("pay", amount=7), "Done.")
    tools = [Tool(pay, effect="once", approve="finance")]
    with pytest.raises(Waiting):
        agent.turn("t", "Pay 7", model, tools=tools, key="k")
    assert paid == []
    (question,) = agent.inbox.list(to="finance")
    assert question.text == "May the agent call pay(amount=7)?"
    agent.inbox.answer(question.id, "approve", by="ann")
    assert agent.turn("t", "Pay 7", model, tools=tools, key="k").text == "Done."
    assert (paid, len(model.seen)) == ([7], 2)


def test_a_rejected_call_is_not_made(agent: Tenuto) -> None:
    model = Script(calling("add", a=1), "I may not.")
    with pytest.raises(Waiting):
        agent.turn("t", "Add", model, tools=[Tool(add, approve="ann")], key="k")
    agent.inbox.answer(agent.inbox.list(to="ann")[0].id, "reject", by="ann")
    reply = agent.turn("t", "Add", model, tools=[Tool(add, approve="ann")], key="k")
    assert reply.calls[0].result == "error: a person rejected this call"


def test_usage_is_recorded_and_limits_the_turn(agent: Tenuto) -> None:
    agent.costs.prices["m"] = (10.0, 10.0)  # type: ignore[assignment]

    def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        usage = {"prompt_tokens": 90_000, "completion_tokens": 10_000}
        return {"model": "m", "usage": usage, "choices": [{"message": calling("add", a=1)}]}

    with pytest.raises(BudgetExceeded):
        agent.turn("t", "Loop", model, tools=[add], key="k", spend=1.5)
    assert agent.costs.report()[0].spent == 2.0
    with pytest.raises(InvalidInput, match="after 3 rounds"):
        agent.turn("t", "Loop", model, tools=[add], key="k", rounds=3)


def test_it_learns_what_the_user_stated(agent: Tenuto) -> None:
    agent.turn("t", "Remember that I am allergic to nuts.", Script("Noted."), user="u", learn=True)
    assert "allergic" in agent.memory.recall("allergic to nuts", user="u")[0].memory.text


def test_the_clients_of_openai_and_anthropic_are_models(agent: Tenuto) -> None:
    asked: list[dict[str, Any]] = []

    def chat(**given: Any) -> Any:
        asked.append(given)
        return {"model": "m", "choices": [{"message": {"role": "assistant", "content": "Hello", "refusal": None}}]}

    def create(**given: Any) -> Any:
        asked.append(given)
        if any(
            isinstance(one["content"], list) and one["content"][0]["type"] == "tool_result" for one in given["messages"]
        ):
            return {
                "role": "assistant",
                "content": [{"type": "text", "text": "It is 3."}],
                "model": "m",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        return {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "x", "name": "add", "input": {"a": 2}}],
            "model": "m",
        }

    openai = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=chat)))
    anthropic = SimpleNamespace(messages=SimpleNamespace(create=create))
    assert agent.turn("o", "Hi", OpenAIModel(openai, "m")).text == "Hello"
    reply = agent.turn("a", "2 + 1?", AnthropicModel(anthropic, "m"), tools=[add], instructions="Count.")
    assert (reply.text, reply.calls[0].result) == ("It is 3.", "3")
    assert asked[1]["system"] == [{"type": "text", "text": "Count.", "cache_control": {"type": "ephemeral"}}]
    assert asked[1]["tools"][0]["input_schema"]["required"] == ["a"]


def test_bad_input_is_said_clearly(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="model must be"):
        agent.turn("t", "x", "gpt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Two tools are named"):
        agent.turn("t", "x", Script(), tools=[add, add])
    with pytest.raises(InvalidInput, match="The model returned 5"):
        agent.turn("t", "x", Script(5))
    assert agent.thread("t").count() == 1


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_models_and_tools_may_be_coroutines(agent: Tenuto) -> None:
    import asyncio

    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    async def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        await asyncio.sleep(0)
        return "8" if messages[-1]["role"] == "tool" else calling("double", value=4)

    async def main() -> Any:
        async with AsyncTenuto("a", "volatile:") as other:
            return await other.turn("t", "4 * 2?", model, tools=[double])

    reply = asyncio.run(main())
    assert (reply.text, reply.calls[0].result) == ("8", "8")


def test_the_example_with_three_tools_is_short_and_calls_nothing_twice(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "examples" / "turn.py"
    command = [sys.executable, str(path), str(tmp_path / "store.db")]
    first, again = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert "booking TP009" in first
    assert first.endswith(again)
    assert len(again.splitlines()) == 1, "the second run calls neither the model nor a tool"
    code = path.read_text().split('"""', 2)[2]
    theirs = re.sub(r"PLAN = .*?(?=\n\n\nwith )", "", code, flags=re.DOTALL)  # without the stand-in for a provider
    assert len([line for line in theirs.splitlines() if line.strip()]) <= 30


def round_of(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [calling(name, number, **given)["tool_calls"][0] for number, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": made}


def test_tools_of_one_round_run_concurrently_and_answer_in_order(agent: Tenuto) -> None:
    together = threading.Barrier(3)

    def meet(number: int) -> int:
        together.wait(60)  # serial calls would break the barrier
        return number

    model = Script(round_of(*[("meet", {"number": one}) for one in (1, 2, 3)], ("add", {"a": 1})), "Met.")
    reply = agent.turn("t", "Go", model, tools=[meet, add], key="k")
    assert [one.result for one in reply.calls] == ["1", "2", "3", "2"]
    shown = [one["content"] for one in agent.thread("t").messages() if one["role"] == "tool"]
    assert shown == ["1", "2", "3", "2"]
    assert agent.turn("t", "Go", model, tools=[meet, add], key="k") == reply


def test_parallel_one_calls_one_after_the_other(agent: Tenuto) -> None:
    inside: list[int] = []

    def alone(number: int) -> int:
        assert not inside
        inside.append(number)
        inside.pop()
        return threading.get_ident()

    model = Script(round_of(("alone", {"number": 1}), ("alone", {"number": 2})), "Done.")
    reply = agent.turn("t", "Go", model, tools=[alone], parallel=1)
    assert [one.result for one in reply.calls] == [str(threading.get_ident())] * 2


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_coroutine_tools_of_one_round_run_concurrently(agent: Tenuto) -> None:
    import asyncio

    async def main() -> Any:
        arrived: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]

        async def meet(mine: int) -> int:
            arrived[mine].set()
            await asyncio.wait_for(arrived[1 - mine].wait(), 60)
            return mine

        async with AsyncTenuto("a", "volatile:") as other:
            model = Script(round_of(("meet", {"mine": 0}), ("meet", {"mine": 1})), "Met.")
            return await other.turn("t", "Go", model, tools=[meet])

    assert [one.result for one in asyncio.run(main()).calls] == ["0", "1"]


def test_every_approval_of_a_round_is_asked_before_waiting(agent: Tenuto) -> None:
    model = Script(round_of(("add", {"a": 1}), ("add", {"a": 2})), "Done.")
    tools = [Tool(add, approve="ann")]
    with pytest.raises(Waiting):
        agent.turn("t", "Add", model, tools=tools, key="k")
    first, second = sorted(agent.inbox.list(to="ann"), key=lambda one: one.text)
    agent.inbox.answer(second.id, "reject", by="ann")
    with pytest.raises(Waiting):
        agent.turn("t", "Add", model, tools=tools, key="k")
    agent.inbox.answer(first.id, "approve", by="ann")
    reply = agent.turn("t", "Add", model, tools=tools, key="k")
    assert [one.result for one in reply.calls] == ["2", "error: a person rejected this call"]
    assert agent.inbox.list(to="ann") == []


def test_the_guard_reports_what_a_model_repeats_and_contradicts(client: Any) -> None:
    events: list[Any] = []
    metrics = Metrics()
    agent = client("a", hooks=[events.append, metrics])
    made: list[int] = []

    def search(city: str) -> str:
        made.append(1)
        return f"{city}: TP123"

    agent.thread("t").decide("Use LGA")
    agent.turn("t", "Find Lisbon", Script(calling("search", city="Lisbon"), "Found."), tools=[search], key="1")
    assert metrics.signs == {}
    model = Script(None, None, calling("search", city="Lisbon"), "We use JFK.")
    reply = agent.turn("t", "Again", model, tools=[search], key="2")
    found = [(one.kind, one.remembered, one.message) for one in reply.signs]
    assert found == [("repeated_call", "Lisbon: TP123", 6), ("contradiction", "Use LGA", 8)]
    assert len(made) == 2, "it is reported, and made all the same"
    assert agent.turn("t", "Again", model, tools=[search], key="2") == reply
    signs = [one for one in events if isinstance(one, SignFound)]
    assert [(one.kind, one.thread) for one in signs] == [("repeated_call", "t"), ("contradiction", "t")]
    assert metrics.signs == {"repeated_call": 1, "contradiction": 1}
    assert 'tenuto_signs_total{kind="contradiction"} 1' in metrics.text()


def test_the_guard_can_reuse_a_remembered_result(agent: Tenuto) -> None:
    made: list[str] = []

    def search(city: str) -> str:
        made.append(city)
        return f"{city}: TP123"

    agent.turn("t", "Find", Script(calling("search", city="Lisbon"), "Found."), tools=[search], key="1")
    model = Script(None, None, round_of(("search", {"city": "Lisbon"}), ("search", {"city": "Porto"})), "Found.")
    for _ in range(2):
        reply = agent.turn("t", "Again", model, tools=[search], key="2", guard="reuse")
        assert [one.result for one in reply.calls] == ["Lisbon: TP123", "Porto: TP123"]
    assert sorted(made) == ["Lisbon", "Porto"]
    assert agent.turn("t", "Off", Script(*[None] * 4, "x"), guard="off").signs == []


def streamed_chat(**given: Any) -> Any:
    assert given["stream"]
    if given["messages"][-1]["role"] != "tool":
        for part in (
            {"id": "c1", "function": {"name": "add", "arguments": '{"a"'}},
            {"function": {"arguments": ": 2}"}},
        ):
            yield {"model": "m", "choices": [{"delta": {"tool_calls": [{"index": 0, **part}]}}]}
    else:
        for text in ("It ", "is ", "3."):
            yield {"model": "m", "choices": [{"delta": {"content": text}}]}
    yield {"model": "m", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def streamed_events(**given: Any) -> Any:
    yield {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 100, "output_tokens": 1}}}
    last = given["messages"][-1]["content"]
    if not (isinstance(last, list) and last[0]["type"] == "tool_result"):
        block = {"type": "tool_use", "id": "x", "name": "add", "input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        for text in ('{"a"', ": 2}"):
            delta = {"type": "input_json_delta", "partial_json": text}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
    else:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for text in ("It ", "is ", "3."):
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "message_delta", "usage": {"output_tokens": 10}}


def streaming(kind: str, make: Any) -> Any:
    if kind == "openai":
        return OpenAIModel(
            SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=make(streamed_chat)))),
            "m",
            stream=True,
        )
    return AnthropicModel(SimpleNamespace(messages=SimpleNamespace(create=make(streamed_events))), "m", stream=True)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_streamed_text_reaches_watchers_and_is_kept_whole(agent: Tenuto, kind: str) -> None:
    agent.costs.prices["m"] = (10.0, 10.0)  # type: ignore[assignment]
    reply = agent.turn("t", "2 + 1?", streaming(kind, lambda made: made), tools=[add], key="k")
    assert (reply.text, reply.calls[0].arguments, reply.calls[0].result) == ("It is 3.", '{"a": 2}', "3")
    assert [one.value for one in agent.runs.watch("turn:t:k")] == ["It is 3."]
    assert [(one.calls, one.tokens) for one in agent.costs.report()] == [(2, 220)]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_an_async_client_streams_too(agent: Tenuto, kind: str) -> None:
    import asyncio

    def awaited(made: Any) -> Any:
        async def pieces(given: dict[str, Any]) -> Any:
            for piece in made(**given):
                yield piece

        async def create(**given: Any) -> Any:
            await asyncio.sleep(0)
            return pieces(given)

        return create

    async def main(make: Any) -> Any:
        async with AsyncTenuto("a", "volatile:") as other:
            reply = await other.turn("t", "2 + 1?", streaming(kind, make), tools=[add], key="k")
            return reply.text, [one.value async for one in other.runs.watch("turn:t:k")]

    assert asyncio.run(main(awaited)) == ("It is 3.", ["It is 3."])
    assert asyncio.run(main(lambda made: made)) == ("It is 3.", ["It is 3."])


def test_the_estimate_of_tokens_is_calibrated_by_what_a_model_reports(agent: Tenuto) -> None:
    class Model:
        model = "m"

        def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
            given = agent.build_context("t", budget=100_000).tokens / 1.08
            usage = {"prompt_tokens": round(given * 1.5), "completion_tokens": 1}
            return {
                "model": "m-2026",
                "usage": usage,
                "choices": [{"message": {"role": "assistant", "content": "Yes"}}],
            }

    agent.turn("t", "word " * 500, Model())
    plain, learned = (agent.build_context("t", budget=100_000, model=one) for one in (None, "m"))
    assert (plain.factor, learned.factor) == (1.08, pytest.approx(1.08 * 1.5, abs=0.06))
    assert learned.tokens == pytest.approx(plain.tokens * 1.5, rel=0.05)
    agent.calibrate(plain, round(plain.tokens / 1.08 * 2), "m")
    assert agent.build_context("t", budget=100_000, model="m").factor == pytest.approx(1.08 * 2, abs=0.06)
    agent.calibrate(plain, 7, "m")
    assert agent.build_context("t", budget=100_000, model="m").factor == pytest.approx(1.08 * 2, abs=0.06), "no tokens"
    assert agent.build_context("t", budget=100_000, model="m", count_tokens=len).factor == 1.0


def test_the_run_of_an_async_turn_is_awaited(tmp_path: Path) -> None:
    async def scene() -> None:
        seen: list[Any] = []

        async def model(messages: Any, tools: Any) -> str:
            await current_run().usage("m", input_tokens=3)
            seen.append(current_run())
            return "Hello."

        async with AsyncTenuto("bot", str(tmp_path / "a.db")) as agent:
            turn = await agent.turn("t", "Hi", model, key="1")
            (cost,) = await agent.costs.report("run")
            assert (cost.key, cost.tokens) == (turn.run, 3)
        with Tenuto("bot", str(tmp_path / "a.db")) as blocking:
            blocking.turn("t", "Hi", lambda messages, tools: seen.append(current_run()) or "Hello.", key="2")
        assert [type(one).__name__ for one in seen] == ["AsyncRun", "Run"]

    asyncio.run(scene())
