"""`TenutoSession` in real runs of the OpenAI Agents SDK, with a scripted model: offline, cancelled, killed, shared."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, Session, SessionSettings, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from tenuto import AsyncTenuto, Closed, Conflict, Damaged, InvalidInput, NotStorable, ReadOnly, Tenuto
from tenuto.adapters import _opened
from tenuto.adapters.openai_agents import TenutoSession
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock
from tenuto.wrappers.readonly import ReadOnly as ReadOnlyStore

set_tracing_disabled(disabled=True)  # nobody is told of runs, and no network is asked for


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def says(text: str) -> list[Any]:
    content = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return [ResponseOutputMessage(id="1", type="message", role="assistant", content=[content], status="completed")]


def calls(name: str, given: str) -> list[Any]:
    return [ResponseFunctionToolCall(id="1", call_id="c1", type="function_call", name=name, arguments=given)]


def said(n: int) -> Any:
    return {"role": "user", "content": str(n)}


def test_it_is_a_session_of_the_sdk(agent: Tenuto) -> None:
    assert isinstance(TenutoSession("s", agent), Session)


@pytest.mark.parametrize("way", ["run", "streamed"])
def test_an_agent_remembers_and_its_tool_calls_are_in_the_thread(agent: Tenuto, way: str) -> None:
    @function_tool
    def weather(city: str) -> str:
        return f"sunny in {city}"

    async def work() -> None:
        model = ScriptedModel()
        helper = Agent(name="helper", model=model, tools=[weather])
        session = TenutoSession("s", agent, user="u-1")
        model.enqueue(calls("weather", '{"city": "Lisbon"}'))
        model.enqueue(says("It is sunny."))
        for question in ("How is Lisbon?", "And tomorrow?"):
            if way == "run":
                await Runner.run(helper, question, session=session)
            else:
                result = Runner.run_streamed(helper, question, session=session)
                async for _ in result.stream_events():
                    pass
            model.enqueue(says("Sunny too."))
        assert [item.get("type", "message") for item in await session.get_items()] == [
            "message", "function_call", "function_call_output", "message", "message", "message",
        ]  # fmt: skip

    run(work())
    thread = agent.thread("s")
    assert thread.messages()[2]["output"] == "sunny in Lisbon"
    assert thread.repair() == []
    assert [info.id for info in agent.threads.list(user="u-1")] == ["s"]


def test_limits_of_the_call_the_session_and_the_run(agent: Tenuto) -> None:
    async def work() -> None:
        session = TenutoSession("s", agent, session_settings={"limit": 2})
        await session.add_items([said(n) for n in range(5)])
        assert await session.get_items() == [said(3), said(4)]
        assert await session.get_items(3) == [said(2), said(3), said(4)]
        assert await session.get_items(0) == []
        assert len(await session.get_items(-1)) == 5
        assert len(await session.get_items(99)) == 5
        model = ScriptedModel()
        model.enqueue(says("yes"))
        helper = Agent(name="helper", model=model)
        config = RunConfig(session_settings=SessionSettings(limit=1))
        await Runner.run(helper, "last?", session=session, run_config=config)
        assert [item["content"] for item in model.last_call.input] == ["4", "last?"]

    with pytest.raises(TypeError):
        TenutoSession("s", agent, session_settings={"limitt": 2})
    run(work())


def test_items_are_taken_back_as_from_a_list(agent: Tenuto) -> None:
    async def work() -> None:
        session = TenutoSession("s", agent)
        assert await session.pop_item() is None
        await session.add_items([said(1), said(2)])
        assert await session.pop_item() == said(2)
        await session.add_items([said(3)])
        assert await session.get_items() == [said(1), said(3)]
        await session.clear_session()
        assert (await session.get_items(), await session.pop_item()) == ([], None)
        await session.add_items([])
        await session.add_items([said(4)])
        assert await TenutoSession("s", agent).get_items() == [said(4)]

    run(work())


def test_an_item_that_another_framework_wrote_as_one_message_is_taken_back_alone(agent: Tenuto) -> None:
    used = [{"type": "tool_use", "id": c, "name": c, "input": {}} for c in "ab"]
    agent.thread("s").append(
        {"role": "assistant", "content": [{"type": "text", "text": "let me see"}, *used]}, {"type": "note"}
    )

    async def work() -> None:
        session = TenutoSession("s", agent)
        assert [item.get("call_id") for item in await session.get_items()] == [None, "a", "b", None]
        assert await session.pop_item() == {"type": "note"}
        assert (await session.pop_item())["call_id"] == "b"  # type: ignore[index]
        assert [item.get("call_id") for item in await session.get_items()] == [None, "a"]

    run(work())


def test_what_is_given_out_is_a_copy(agent: Tenuto) -> None:
    async def work() -> None:
        session = TenutoSession("s", agent)
        nested: Any = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        await session.add_items([said(1), nested])
        for item in await session.get_items():
            item["content"] = "changed"  # type: ignore[index]
        items: Any = await session.get_items()
        items[1]["content"][0]["text"] = "changed"
        assert await session.get_items() == [
            said(1),
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ]

    run(work())


def test_what_others_write_and_end_is_seen_by_a_session_that_holds_its_past(client: Any) -> None:
    async def work() -> None:
        mine, theirs = TenutoSession("s", client()), TenutoSession("s", client())
        await mine.add_items([said(1)])
        assert await mine.get_items() == await theirs.get_items() == [said(1)]
        await theirs.add_items([said(2)])
        assert await mine.get_items() == [said(1), said(2)]
        await theirs.pop_item()
        assert await mine.get_items() == [said(1)]
        await theirs.clear_session()
        assert await mine.get_items() == []
        await theirs.add_items([said(3)])
        assert await mine.get_items() == [said(3)]

    run(work())


def test_users_and_tenants_are_found_in_the_context_of_a_run(agent: Tenuto) -> None:
    class Context:
        def __init__(self, tenant: str) -> None:
            self.tenant_id, self.user_id = tenant, f"{tenant}-user"

    async def work() -> None:
        session = TenutoSession("s", agent, user=lambda c: c.user_id, tenant=lambda c: c.tenant_id)
        model = ScriptedModel()
        helper = Agent[Any](name="helper", model=model)
        for tenant in ("acme", "globex", "acme"):
            model.enqueue(says("hello"))
            await Runner.run(helper, f"from {tenant}", session=session, context=Context(tenant))
        with pytest.raises(InvalidInput, match="reads its tenant from the context"):
            await session.get_items()

    run(work())
    assert agent.thread("s").messages() == [], "nothing is in the tenant of the agent itself"
    for tenant, turns in (("acme", 2), ("globex", 1)):
        theirs = agent.for_tenant(tenant)
        assert theirs.thread("s").count() == 2 * turns
        assert [info.user for info in theirs.threads.list()] == [f"{tenant}-user"]


def test_another_users_session_is_not_taken_over(agent: Tenuto) -> None:
    run(TenutoSession("s", agent, user="ann").add_items([said(1)]))
    with pytest.raises(Conflict, match="belongs to the user 'ann'"):
        run(TenutoSession("s", agent, user="bob").add_items([said(2)]))


def test_a_session_ends_when_its_time_is_over(agent: Tenuto, clock: HeldClock) -> None:
    session = TenutoSession("s", agent, ttl="1h")
    run(session.add_items([said(1)]))
    assert run(session.get_items()) == [said(1)]
    clock.advance(3_601)
    assert run(session.get_items()) == []


class Paused:
    """A store whose next commit lands, and whose answer waits until it may come."""

    def __init__(self, backend: Backend) -> None:
        import threading

        self._backend = backend
        self.pause = False
        self.landed, self.go = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commit(self, *args: Any, **kwargs: Any) -> Any:
        done = self._backend.commit(*args, **kwargs)
        if self.pause:
            self.pause = False
            self.landed.set()
            assert self.go.wait(10)
        return done


@pytest.mark.parametrize("operation", ["add", "pop", "clear"])
def test_a_cancellation_after_the_commit_is_raised_when_the_outcome_is_known(
    operation: str, backend: Backend, clock: HeldClock
) -> None:
    async def work() -> None:
        store: Any = Paused(backend)
        session = TenutoSession("s", Tenuto("tester", store, clock=clock))
        if operation != "add":
            await session.add_items([said(1)])
        store.pause = True
        made = {"add": lambda: session.add_items([said(1)]), "pop": session.pop_item, "clear": session.clear_session}
        task = asyncio.create_task(made[operation]())
        assert await asyncio.to_thread(store.landed.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done(), "nobody is told before it is known"
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await session.get_items() == ([said(1)] if operation == "add" else [])

    run(work())


def test_a_turn_that_fails_leaves_nothing_and_the_session_goes_on(agent: Tenuto) -> None:
    async def work() -> None:
        session = TenutoSession("s", agent)
        unstorable: Any = {"role": "user", "content": object()}
        with pytest.raises(NotStorable):
            await session.add_items([said(1), unstorable])
        assert await session.get_items() == []
        await session.add_items([said(2)])
        assert await session.get_items() == [said(2)]

    run(work())


def test_a_clear_or_pop_that_fails_leaves_everything(backend: Backend, clock: HeldClock) -> None:
    async def work() -> None:
        await TenutoSession("s", Tenuto("tester", backend, clock=clock)).add_items([said(1)])
        session = TenutoSession("s", Tenuto("tester", ReadOnlyStore(backend), clock=clock))
        for call in (session.clear_session, session.pop_item):
            with pytest.raises(ReadOnly):
                await call()
        assert await session.get_items() == [said(1)]

    run(work())


def test_a_closed_client_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        agent = AsyncTenuto("tester", tmp_path / "store.db")
        session = TenutoSession("s", agent)
        await session.add_items([said(1)])
        agent._sync.close()
        with pytest.raises(Closed):
            await session.add_items([said(2)])
        with pytest.raises(Closed):
            await session.get_items()
        with pytest.raises(Closed):
            await session.add_items([])

    run(work())


def test_a_closed_session_refuses_and_leaves_the_agent_and_the_conversation(agent: Tenuto) -> None:
    async def work() -> None:
        session = TenutoSession("s", agent)
        await session.add_items([said(1)])
        session.close()
        session.close()
        for call in (session.get_items, session.pop_item, session.clear_session, lambda: session.add_items([])):
            with pytest.raises(Closed, match=r"TenutoSession is closed\. Create another one with the same id"):
                await call()
        with pytest.raises(RuntimeError):  # as the SDK's own sessions have it
            await session.get_items()
        assert await TenutoSession("s", agent).get_items() == [said(1)]

    run(work())


def test_sessions_that_name_one_file_share_a_client_that_is_closed_with_the_last(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
        one, two = TenutoSession("a", tmp_path / "s.db"), TenutoSession("b", str(tmp_path / "link.db"))
        other, memory = TenutoSession("a", tmp_path / "t.db"), TenutoSession("a", "volatile:")
        assert one._agent is two._agent
        assert len({one._agent, other._agent, memory._agent, TenutoSession("a", "volatile:")._agent}) == 4
        await asyncio.gather(one.add_items([said(1)]), two.add_items([said(2)]), other.add_items([said(3)]))
        one.close()
        assert await two.get_items() == [said(2)]
        two.close()
        with pytest.raises(Closed):
            one._agent.open()
        with Tenuto("reader", tmp_path / "s.db") as agent:
            assert [await TenutoSession(name, agent).get_items() for name in "ab"] == [[said(1)], [said(2)]]
        again = TenutoSession("a", tmp_path / "s.db")
        assert await again.get_items() == [said(1)], "it is opened anew"
        for session in (again, other, memory):
            session.close()

    run(work())


def test_a_store_that_cannot_be_opened_is_told_when_the_session_is_made(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are no conversations of anybody's, and stay as they are")
    for _ in range(2):  # what failed is not kept
        with pytest.raises(InvalidInput, match="not a tenuto store"):
            TenutoSession("s", tmp_path / "notes.txt")
    with pytest.raises(InvalidInput, match="thread id"):
        TenutoSession("", tmp_path / "s.db")
    assert _opened.place(tmp_path / "s.db") not in _opened.shared, (
        "and a session that could not be made gives back what it took"
    )


def test_what_is_no_item_is_left_out_and_not_counted_and_stays_in_the_thread(agent: Tenuto) -> None:
    odd = {"note": "neither a role nor a type: a provider would refuse the whole request"}
    agent.thread("s").append(said(1), odd, said(2), odd)

    async def work() -> None:
        session = TenutoSession("s", agent)
        assert await session.get_items() == await session.get_items(2) == [said(1), said(2)]
        assert await session.pop_item() == said(2)
        assert await session.get_items() == [said(1)]
        await session.add_items([odd, {"id": "msg_1"}])  # type: ignore[list-item]
        assert await session.get_items() == [said(1), odd, {"id": "msg_1"}], "what was given is given back"

    run(work())
    assert agent.thread("s").messages()[:3] == [said(1), odd, odd]


def test_damage_is_told_and_never_skipped(tmp_path: Path) -> None:
    import sqlite3

    with Tenuto("tester", tmp_path / "store.db") as agent:
        run(TenutoSession("s", agent).add_items([said(1)]))
        run(TenutoSession("s", agent).add_items([said(2)]))
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE entries SET value = X'00' WHERE id = (SELECT max(id) FROM entries)")
    with Tenuto("tester", tmp_path / "store.db") as agent, pytest.raises(Damaged):
        run(TenutoSession("s", agent).get_items())


def test_many_at_once_lose_nothing(agent: Tenuto) -> None:
    async def work() -> None:
        sessions = [TenutoSession("s", agent) for _ in range(4)]
        await asyncio.gather(*(session.add_items([said(n)]) for n in range(10) for session in sessions))
        assert sorted(int(item["content"]) for item in await sessions[0].get_items()) == sorted(list(range(10)) * 4)

    run(work())


WORKER = """
import asyncio, sys
from tenuto import Tenuto
from tenuto.adapters.openai_agents import TenutoSession

async def main(path, who, turns):
    session = TenutoSession("s", Tenuto(who, path))
    for turn in range(turns):
        await session.get_items()
        await session.add_items([{"role": "user", "content": f"{who} {turn}"}, {"role": "assistant", "content": f"{who} {turn}!"}])
        print(turn, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def worker(path: Path, who: str, turns: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(path), who, str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_on_one_session_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    workers = [worker(path, who, 30) for who in ("ann", "bob")]
    for one in workers:
        one.communicate(timeout=120)
        assert one.returncode == 0
    with Tenuto("reader", path) as agent:
        items: Any = run(TenutoSession("s", agent).get_items())
    for who in ("ann", "bob"):
        own = [item["content"] for item in items if item["content"].startswith(who)]
        assert own == [f"{who} {turn}{end}" for turn in range(30) for end in ("", "!")]
    assert all(
        second["content"] == first["content"] + "!" for first, second in zip(items[::2], items[1::2], strict=True)
    )


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_whole_turns_and_all_that_were_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    told = 0
    for round_ in range(5):
        one = worker(path, f"w{round_}", 10_000)
        assert one.stdout is not None
        for _ in range(15):
            assert one.stdout.readline()
            told += 1
        os.kill(one.pid, signal.SIGKILL)
        told += len(one.communicate()[0].splitlines())
        with Tenuto("reader", path) as agent:
            items: Any = run(TenutoSession("s", agent).get_items())
        assert len(items) % 2 == 0
        assert told <= len(items) // 2 <= told + round_ + 1, "a kill may hide the last answer, no more"
        assert all(b["content"] == a["content"] + "!" for a, b in zip(items[::2], items[1::2], strict=True))
