"""`AsyncTenuto` through a server: the same names awaited, many calls at once, nothing abandoned on cancellation."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from support.http_server import HttpServer
from support.proxy import Fate, Proxy, always

from tenuto import AccessDenied, AsyncTenuto, StateConflict
from tenuto.backends.remote import RemoteBackend

Remote = Callable[..., RemoteBackend]


@pytest.fixture
def proxy(http: HttpServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", http.port)) as found:
        yield found


def test_the_awaited_face_works_through_a_server(remote: Remote) -> None:
    async def body() -> None:
        async with AsyncTenuto("a", remote.__dict__["address"], api_key=remote.__dict__["token"]) as agent:
            assert await agent.state.set("s", "k", 1) == 1
            with pytest.raises(StateConflict):
                await agent.state.set("s", "k", 2, expect=7)
            await asyncio.gather(*(agent.state.update("s", "n", lambda n: (n or 0) + 1) for _ in range(20)))
            assert await agent.state.get("s", "n") == 20
            await agent.thread("t").append({"role": "user", "content": "hello"})
            assert (await agent.thread("t").messages())[0]["content"] == "hello"
            called = []

            async def work(n: int) -> int:
                called.append(n)
                return n + 1

            for _ in range(2):
                async with agent.run("r") as run:
                    assert await run.step("add", work, 1) == 2
            assert called == [1], "the second run reuses the recorded step"
            async with agent.lease("l") as lease:
                await agent.state.set("s", "fenced", 1, fence=lease)

    asyncio.run(body())


def test_a_watch_is_awaited_and_sees_the_write_of_another_client(remote: Remote) -> None:
    async def body() -> None:
        async with AsyncTenuto("reader", remote()) as reader, AsyncTenuto("writer", remote()) as writer:
            await writer.state.set("s", "k", 0)
            seen: list[object] = []
            begun = asyncio.Event()

            async def read() -> None:
                async for change in reader.state.watch("s", after=0):
                    seen.append(change.value)
                    begun.set()
                    if len(seen) == 3:
                        return

            reading = asyncio.create_task(read())
            await begun.wait()
            await writer.state.set("s", "k", 1)
            await writer.state.set("s", "k", 2)
            await asyncio.wait_for(reading, 30)
            assert seen == [0, 1, 2]

    asyncio.run(body())


def test_a_wrong_key_is_an_error_of_the_awaited_call(remote: Remote) -> None:
    async def body() -> None:
        agent = AsyncTenuto("a", remote.__dict__["address"], api_key="tk_wrong")
        with pytest.raises(AccessDenied, match="no valid API key"):
            await agent.state.get("s", "k")
        await agent.close()

    asyncio.run(body())


def test_a_commit_that_was_sent_ends_before_its_cancellation_is_raised(remote: Remote, proxy: Proxy) -> None:
    """The reply is lost and the task is cancelled meanwhile: the call is resolved by its request id, and applied once."""

    async def body() -> None:
        async with AsyncTenuto("a", remote(port=proxy.port)) as agent:
            await agent.open()
            sent = asyncio.Event()
            loop = asyncio.get_running_loop()

            def fate(request: bytes) -> Fate:
                if b"/commit" not in request or sent.is_set():
                    return Fate.PASS
                loop.call_soon_threadsafe(sent.set)
                time.sleep(0.1)  # hold the request: the task is cancelled while its commit is on the way
                return Fate.CUT_REPLY

            proxy.fate = fate
            task = asyncio.create_task(agent.state.set("s", "k", 1))
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.fate = always(Fate.PASS)
            entry = await agent.state.entry("s", "k")
            assert entry is not None
            assert entry.version == 1
            assert proxy.happened[Fate.CUT_REPLY] == 1

    asyncio.run(body())
