"""The guard finds repeated calls and questions, contradictions and restarted work, and is silent otherwise."""

from typing import Any

import pytest
from bench.guard import planted
from support import conversations

from tenuto import AsyncTenuto, Tenuto, Tool


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def test_a_repeated_call_comes_with_its_result(agent: Tenuto) -> None:
    agent.thread("t").append(
        call(1, "search", '{"city": "Lisbon", "day": 3}'), {"role": "tool", "tool_call_id": "c1", "content": "TP123"}
    )
    guard = agent.guard("t")
    (sign,) = guard.tool_call("search", {"day": 3, "city": "Lisbon"})
    assert (sign.kind, sign.remembered, sign.evidence) == ("repeated_call", "TP123", "the same call is message 1")
    assert guard.tool_call("search", {"city": "Porto", "day": 3}) == []
    agent.thread("t").tool_call("charge", {"amount": 7}, "paid")
    assert guard.tool_call("charge", {"amount": 7})[0].remembered == "paid"
    assert guard.scan() == []
    agent.thread("t").append(call(2, "search", '{"day": 3, "city": "Lisbon"}'))
    assert [(one.kind, one.message) for one in guard.scan()] == [("repeated_call", 3)]


def test_a_question_that_was_answered_is_not_asked_again(agent: Tenuto) -> None:
    agent.thread("t").append({"role": "assistant", "content": "Hello! Which airport do you want to leave from?"})
    guard = agent.guard("t")
    assert guard.say("Which airport do you want to leave from?") == [], "it was not answered yet"
    agent.thread("t").append({"role": "user", "content": "LGA"})
    (sign,) = guard.say("So, which airport do you want to leave from?")
    assert (sign.kind, sign.remembered) == ("repeated_question", "LGA")
    assert guard.say("Which hotel do you want to stay at?") == []


@pytest.mark.parametrize(
    ("decided", "said"),
    [
        ("Use LGA", "I will use JFK."),
        ("Ship on Fridays only after review", "We ship on Mondays only after review."),
        ("The limit is 500 EUR", "The limit is 900 EUR."),
        ("Send invoices to finance", "I do not send invoices to finance."),
        ("Never deploy on Friday", "I deploy it on Friday."),
    ],
)
def test_a_contradiction_of_a_decision_is_found(agent: Tenuto, decided: str, said: str) -> None:
    agent.thread("t").decide(decided)
    (sign,) = agent.guard("t").say(said)
    assert (sign.kind, sign.remembered) == ("contradiction", decided)
    assert agent.guard("t").say(f"As decided: {decided}.") == []
    assert agent.guard("t").say("The weather in Lisbon is good today.") == []


def test_work_that_is_done_is_not_begun_again(agent: Tenuto) -> None:
    steps = [{"step": 1, "action": "scrape_websites", "status": "completed"}, {"step": 2, "action": "write_report"}]
    agent.workflows.create("analysis", steps, user="u")
    guard = agent.guard("t", user="u")
    assert [one.kind for one in guard.tool_call("scrape_websites", {})] == ["restarted_work"]
    (sign,) = guard.say("Let me start: I will scrape the websites.")
    assert (sign.kind, sign.evidence) == ("restarted_work", "step 1 of the workflow 'analysis' is completed")
    assert guard.say("Now I will write the report.") == []
    assert guard.tool_call("write_report", {}) == []
    assert agent.guard("t").tool_call("scrape_websites", {}) == []


def test_a_conversation_without_repetitions_has_no_signs(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 5, 300)
    calls = [one for one in agent.guard("t").scan() if one.kind != "repeated_call"]
    assert calls == []
    assert agent.guard("none").scan() == []


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_the_async_guard_is_awaited(agent: Tenuto) -> None:
    import asyncio

    async def main() -> Any:
        async with AsyncTenuto("a", "volatile:") as other:
            await other.thread("t").decide("Use LGA")
            guard = other.guard("t")
            return [await guard.say("We use JFK."), await guard.scan(), await guard.tool_call("x", {})]

    said, scanned, called = asyncio.run(main())
    assert ([one.kind for one in said], scanned, called) == (["contradiction"], [], [])


def test_a_question_whose_answer_is_in_memory_is_found(agent: Tenuto) -> None:
    agent.memory.remember("User prefers aisle seats", user="u")
    agent.memory.remember("Another user prefers window blinds", user="other")
    agent.user("u").set("home airport", "LGA")
    guard = agent.guard("t", user="u")
    (sign,) = guard.say("Which seat do you prefer?")
    assert (sign.kind, sign.remembered) == ("known_answer", "User prefers aisle seats")
    (sign,) = guard.say("What is your home airport?")
    assert (sign.kind, sign.evidence) == ("known_answer", "preference home airport")
    assert guard.say("Which window blinds do you prefer?") == []
    assert guard.say("Which hotel do you prefer?") == []
    assert agent.guard("t").say("Which seat do you prefer?") == []
    agent.memory.remember("Did you hear? Do you have any plans for the weekend trip?", user="u")
    assert guard.say("Any plans for the weekend?") == [], "a question is no answer"
    agent.memory.remember("I love camping trips with my family, because nature brings such peace to us all", user="u")
    assert guard.say("What camping do you love?") == [], "two words that meet in a long sentence"
    (sign,) = guard.say("Does nature bring peace on camping trips?")
    assert sign.kind == "known_answer"


def test_planted_signs_are_found_and_what_looks_like_one_is_not() -> None:
    judged = [one for one in planted() if not one.name.startswith("REWORDED")]
    for kind in {one.kind for one in judged}:
        signs = [one for one in judged if one.kind == kind and one.right]
        wrong = [scene for one in signs for scene in one.wrong]
        assert len(wrong) <= 0.05 * sum(one.count for one in signs), (kind, wrong)
    assert [one for one in judged if not one.right and one.wrong] == []


def test_a_tool_whose_results_change_may_be_called_again(agent: Tenuto) -> None:
    def model(messages: list[dict[str, Any]], tools: list[Any]) -> Any:
        done = sum(one["role"] == "tool" for one in messages)
        return call(done, "run_tests", "{}") if done < 2 else "All pass."

    def run_tests() -> str:
        return "passed"

    found = [
        [one.kind for one in agent.turn(f"t-{changing}", "Go", model, tools=[Tool(run_tests, changing=changing)]).signs]
        for changing in (False, True)
    ]
    assert found == [["repeated_call"], []]
    assert [one.kind for one in agent.guard("t-True").tool_call("run_tests", {})] == ["repeated_call"]
    assert agent.guard("t-True", changing=["run_tests"]).tool_call("run_tests", {}) == []
    assert agent.guard("t-True", changing=["run_tests"]).scan() == []
