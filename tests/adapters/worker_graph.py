"""Runs a graph of five nodes again and again, each time killed with -9 in node 3, and then again without that.

Each round is two processes, forked from this one before it has opened anything. What the second one did first is
printed, one line a round.
"""

import asyncio
import os
import signal
import sys

from graphs import chain, config

from tenuto.adapters.langgraph import TenutoSaver


def run(path: str, face: str, note: int, *, dies: bool) -> None:
    def node(number: int):
        def work(_):
            os.write(note, b"%d" % number)
            if dies and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"seen": [number]}

        async def awork(state):
            return work(state)

        return work if face in ("sync", "async, functions") else awork

    hold = 0 if face == "async, awaited" else 60  # however long this machine takes to sync
    saver = TenutoSaver(path, hold=hold)
    graph = chain(saver, 5, node)
    if face == "sync":
        begun = graph.get_state(config()).tasks
        graph.invoke(None if begun else {"seen": []}, config())
        return

    async def main() -> None:
        begun = (await graph.aget_state(config())).tasks
        given = None if begun else {"seen": []}
        if face == "async, streamed":
            async for _ in graph.astream(given, config(), stream_mode=["messages", "values"]):
                pass
        else:
            awaited = {"durability": "sync"} if face == "async, awaited" else {}
            await graph.ainvoke(given, config(), **awaited)

    asyncio.run(main())


def forked(path: str, face: str, *, dies: bool) -> str:
    reading, note = os.pipe()
    child = os.fork()
    if not child:
        try:
            run(path, face, note, dies=dies)
        except BaseException as error:
            os.write(note, repr(error).encode())
        finally:
            os._exit(0)
    os.close(note)
    noted = b""
    while part := os.read(reading, 1_000):
        noted += part
    os.close(reading)
    os.waitpid(child, 0)
    return noted.decode()


for round_ in range(int(sys.argv[3])):
    store = f"{sys.argv[1]}/{round_}.db"
    print(forked(store, sys.argv[2], dies=True), forked(store, sys.argv[2], dies=False), flush=True)
