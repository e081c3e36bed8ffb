"""`TenutoSessionStore`: the 14 contracts of the SDK's own wheel on every backend, and what they do not ask."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import InMemorySessionStore, list_sessions_from_store
from claude_agent_sdk.testing import run_session_store_conformance, session_store_conformance
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto import InvalidInput, Tenuto
from tenuto.adapters.claude_agent import TenutoSessionStore, thread_id
from tenuto.testing import HeldClock

KEY: Any = {"project_key": "proj", "session_id": "sess"}


def entry(name: str | None = None, **more: Any) -> Any:
    return {"type": "x", **({"uuid": name} if name else {}), **more}


def test_the_contracts_of_the_wheel(stores: Any) -> None:
    made: list[Tenuto] = []

    def make() -> TenutoSessionStore:
        made.append(Tenuto("tester", stores.new()))
        return TenutoSessionStore(made[-1])

    asyncio.run(run_session_store_conformance(make))
    for agent in made:
        agent.close()
    assert len(made) == 15, "one store to look at, and one for each of the contracts"


def test_nothing_of_the_contracts_is_left_out() -> None:
    source = inspect.getsource(session_store_conformance)
    assert [n for n in range(1, 30) if f"# {n}. " in source] == list(range(1, 15))
    own = {name for name in vars(TenutoSessionStore) if not name.startswith("_")}
    assert own == {"append", "load", "list_sessions", "list_session_summaries", "delete", "list_subkeys"}


async def both(agent: Tenuto, script: list[Any]) -> tuple[Any, Any]:
    found = []
    for store in (TenutoSessionStore(agent), InMemorySessionStore()):
        for key, batch in script:
            await (store.delete(key) if batch is None else store.append(key, batch))
        loaded = {str(key): await store.load(key) for key, _ in script}
        listed = [sorted(s["session_id"] for s in await store.list_sessions(p)) for p in ("p", "q")]
        subs = [sorted(await store.list_subkeys({"project_key": "p", "session_id": s})) for s in ("s", "t")]
        told = [
            sorted((s["session_id"], str(s["data"])) for s in await store.list_session_summaries(p)) for p in ("p", "q")
        ]
        found.append((loaded, listed, subs, told))
    return found[0], found[1]


some_key = st.builds(
    lambda project, session, sub: {"project_key": project, "session_id": session, **({"subpath": sub} if sub else {})},
    st.sampled_from(["p", "q"]),
    st.sampled_from(["s", "t"]),
    st.sampled_from([None, None, "subagents/a", "subagents/b"]),
)
numbers = iter(range(10**9))
some_entry = st.builds(
    lambda text, title: {
        "type": "user", "uuid": f"u{next(numbers)}", "message": {"role": "user", "content": text},
        "timestamp": "2026-01-01T00:00:00.000Z", **({"customTitle": title} if title else {}),
    },
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8),
    st.sampled_from([None, "first", "second"]),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(some_key, st.none() | st.lists(some_entry, min_size=1, max_size=3)), max_size=8))
def test_it_does_what_the_sdks_own_store_in_memory_does(script: list[Any]) -> None:
    with Tenuto("tester", "volatile:") as agent:
        ours, theirs = asyncio.run(both(agent, script))
    assert ours == theirs


def test_an_entry_that_is_sent_again_is_there_once(client: Callable[..., Tenuto]) -> None:
    async def work() -> None:
        store = TenutoSessionStore(client())
        await store.append(KEY, [entry("a"), entry("b"), entry("a"), entry(n=1)])
        await store.append(KEY, [entry("b"), entry("c"), entry(n=1)])
        await TenutoSessionStore(client()).append(KEY, [entry("c", other="content")])
        assert await store.load(KEY) == [entry("a"), entry("b"), entry(n=1), entry("c"), entry(n=1)]
        await store.delete(KEY)
        await store.append(KEY, [entry("a")])
        assert await store.load(KEY) == [entry("a")], "a session that began anew has seen nothing yet"

    asyncio.run(work())


def test_two_that_send_the_same_at_once_store_it_once(client: Callable[..., Tenuto]) -> None:
    async def work() -> None:
        stores = [TenutoSessionStore(client()) for _ in range(4)]
        await asyncio.gather(
            *(store.append(KEY, [entry(f"{n}"), entry(f"x{n}")]) for n in range(8) for store in stores)
        )
        loaded: Any = await stores[0].load(KEY)
        assert sorted(e["uuid"] for e in loaded) == sorted([f"{n}" for n in range(8)] + [f"x{n}" for n in range(8)])

    asyncio.run(work())


def test_a_large_batch_goes_in_whole(agent: Tenuto) -> None:
    async def work() -> None:
        store = TenutoSessionStore(agent)
        batch = [entry(f"{n}") for n in range(1_001)]
        await store.append(KEY, batch)
        assert await store.load(KEY) == batch

    asyncio.run(work())


def test_a_session_ended_by_others_or_by_time_is_not_listed(agent: Tenuto, clock: HeldClock) -> None:
    async def work() -> None:
        store = TenutoSessionStore(agent, ttl="1h")
        await store.append(KEY, [entry("a")])
        assert [s["session_id"] for s in await store.list_sessions("proj")] == ["sess"]
        agent.thread(thread_id(KEY)).delete()
        assert (await store.list_sessions("proj"), await store.load(KEY)) == ([], None)
        await store.append(KEY, [entry("a")])
        assert await store.load(KEY) == [entry("a")]
        clock.advance(3_601)
        assert (await store.list_sessions("proj"), await store.list_session_summaries("proj")) == ([], [])

    asyncio.run(work())


def test_the_sdk_lists_sessions_from_it(agent: Tenuto) -> None:
    async def work() -> None:
        store = TenutoSessionStore(agent)
        from claude_agent_sdk import project_key_for_directory

        session = "0b0c1a52-36d8-4ba6-8a4c-b9d2c67bd76e"
        key: Any = {"project_key": project_key_for_directory("/somewhere"), "session_id": session}
        message = {"role": "user", "content": "Plan a trip"}
        await store.append(key, [entry("a", type="user", message=message, timestamp="2026-01-01T00:00:00.000Z")])
        (found,) = await list_sessions_from_store(store, directory="/somewhere")
        assert (found.session_id, found.first_prompt) == (session, "Plan a trip")

    asyncio.run(work())


def test_ids_never_meet() -> None:
    keys = [("a/b", "c"), ("a", "b/c"), ("a", "b"), ("a%2Fb", "c"), ("-home-me-my project", "c")]
    made: list[Any] = [{"project_key": p, "session_id": s} for p, s in keys] + [
        {"project_key": "a", "session_id": "b", "subpath": "c"}
    ]
    assert len({thread_id(key) for key in made}) == len(made)
    assert thread_id(made[-1]) == "a/b/c"
    assert thread_id(made[4]) == "-home-me-my project/c"
    for key in ({"project_key": "", "session_id": "s"}, {"project_key": "p", "session_id": "s", "subpath": ""}):
        with pytest.raises(InvalidInput):
            thread_id(key)  # type: ignore[arg-type]


def test_a_conversation_of_another_framework_goes_on_as_a_transcript(agent: Tenuto) -> None:
    thread = agent.thread("chat-42")
    thread.append(
        {"role": "user", "content": "go"}, {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}
    )
    thread.append({"type": "function_call_output", "call_id": "c", "output": "done"})

    async def work() -> None:
        store = TenutoSessionStore(agent, thread=lambda key: "chat-42")
        loaded: Any = await store.load(KEY)
        assert [e["message"]["role"] for e in loaded] == ["user", "assistant", "user"]
        assert [e["parentUuid"] for e in loaded] == [None, loaded[0]["uuid"], loaded[1]["uuid"]]
        assert await store.load(KEY) == loaded, "the same uuids every time"
        answer = entry(
            "new", type="assistant", parentUuid=loaded[-1]["uuid"], message={"role": "assistant", "content": "ok"}
        )
        await store.append(KEY, [*loaded, answer])  # what was loaded may be mirrored back
        assert await store.load(KEY) == [*loaded, answer]

    asyncio.run(work())
    assert thread.count() == 4
    assert thread.messages()[-1]["content"] == "ok"


def test_a_kill_leaves_entries_listing_and_marks_together(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from tenuto import Tenuto
from tenuto.adapters.claude_agent import TenutoSessionStore
async def main():
    store = TenutoSessionStore(Tenuto("tester", sys.argv[1]))
    for n in range(10_000):
        batch = [{"type": "x", "uuid": f"{n}-{at}", "customTitle": f"{n}"} for at in range(3)]
        await store.append({"project_key": "proj", "session_id": "sess"}, batch)
        print(n, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store.db")], stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        for _ in range(25):
            one.stdout.readline()
        one.kill()

    async def work() -> None:
        with Tenuto("reader", tmp_path / "store.db") as agent:
            store = TenutoSessionStore(agent)
            loaded: Any = await store.load(KEY)
            count = len(loaded)
            assert count % 3 == 0
            assert count >= 75
            (summary,) = await store.list_session_summaries("proj")
            assert summary["data"]["custom_title"] == loaded[-1]["customTitle"]
            await store.append(KEY, loaded)
            assert len(await store.load(KEY)) == count  # type: ignore[arg-type]

    asyncio.run(work())
