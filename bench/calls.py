"""What a contender's process does: one kind of call, as often as it is asked.

`python -m bench.calls KIND PATH DURABILITY` opens a store at PATH and answers `go(threads, seconds)` with the time of
each call, the processor time and the bytes written. A kind is a function that opens the store and returns another one,
which gives each thread the call that it repeats.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import raw
from bench.child import Answers
from bench.measure import repeat, text
from tenuto import Tenuto
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import Commit, Entry, Finding, Put, Record

Call = Callable[[int], Any]
Kind = Callable[[Path, str], Callable[[int], Call]]
TEXTS = [text(number) for number in range(997)]
BLOBS = [one.encode() for one in TEXTS]
NAMES = [f"key-{number}" for number in range(50)]
READ = [(f"scope-{number % 10}", f"key-{number // 10}") for number in range(1_000)]


class Nothing:
    """A backend that stores nothing on disk: what is left of a call is the layers above."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}
        self._version = 0

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        return [self._records.get(key) for key in keys]

    def scan(self, prefix: bytes, **_: Any) -> list[Record]:
        return []

    def entries(self, stream: bytes, **_: Any) -> list[Entry]:
        return []

    def commit(self, checks: Any, writes: Sequence[Any], *, request: bytes | None = None) -> Commit:
        self._version = version = self._version + 1
        for write in writes:
            if type(write) is Put:
                self._records[write[0]] = Record(write[0], write[1], version, 0.0)
        return Commit((version,) * len(writes), 0.0)

    def streams(self, prefix: bytes, **_: Any) -> list[bytes]:
        return []

    def load(self, records: Any, entries: Any) -> int:
        return 0

    def trim(self, stream: bytes, first: int) -> int:
        return 0

    def bell(self, stream: bytes) -> Bell:
        return Bell()

    def now(self) -> float:
        return time.time()

    def check(self) -> list[Finding]:
        return []

    def stats(self) -> Mapping[str, Any]:
        return {"backend": "nothing"}

    def close(self) -> None:
        pass


# -- writes --------------------------------------------------------------------------------------


def raw_insert(path: Path, durability: str) -> Callable[[int], Call]:
    """1 KB into a table by rowid: a connection for each thread, a transaction for each row."""
    raw.connect(path, durability).close()  # switch to WAL before the writers start: that change has no busy timeout

    def thread(_: int) -> Call:
        own = raw.Inserts(path, durability)
        return lambda n: own.write(BLOBS[n % 997])

    return thread


def raw_grouped(path: Path, durability: str) -> Callable[[int], Call]:
    """The same rows through one connection, with group commit."""
    inserts = raw.GroupedInserts(path, durability)
    return lambda _: lambda n: inserts.write(BLOBS[n % 997])


def floor_set(path: Path, durability: str) -> Callable[[int], Call]:
    """`state.set` on a backend that does nothing, then the raw insert, grouped: the least any backend can reach."""
    set_nothing, insert = _setter(Tenuto("bench", Nothing())), raw_grouped(path, durability)

    def thread(number: int) -> Call:
        own_set, own_insert = set_nothing(number), insert(number)

        def call(n: int) -> None:
            own_set(n)
            own_insert(n)

        return call

    return thread


def state_set(path: Path, durability: str) -> Callable[[int], Call]:
    """`state.set` of 1 KB on 50 existing keys; each thread of each process has its own scope."""
    return _setter(Tenuto("bench", path, durability=durability).open())


def _setter(agent: Tenuto) -> Callable[[int], Call]:
    def thread(number: int) -> Call:
        scope = f"scope-{os.getpid()}-{number}"
        return lambda n: agent.state.set(scope, NAMES[n % 50], TEXTS[n % 997])

    return thread


def thread_append(path: Path, durability: str) -> Callable[[int], Call]:
    """`thread.append` of a user's and an assistant's message, 1 KB together."""
    agent = Tenuto("bench", path, durability=durability).open()
    turns = [({"role": "user", "content": one[:480]}, {"role": "assistant", "content": one[480:]}) for one in TEXTS]

    def thread(number: int) -> Call:
        own = agent.thread(f"thread-{os.getpid()}-{number}")
        return lambda n: own.append(*turns[n % 997])

    return thread


# -- reads ---------------------------------------------------------------------------------------


def raw_read(path: Path, durability: str) -> Callable[[int], Call]:
    """1 KB by scope and key, one of 1,000, by a connection for each thread."""
    filled = raw.Upserts(path, durability)
    for number, (scope, key) in enumerate(READ):
        filled.write(scope, key, BLOBS[number % 997])

    def thread(_: int) -> Call:
        own = raw.Upserts(path, durability)
        return lambda n: own.read(*READ[n * 7 % 1_000])

    return thread


def floor_get(path: Path, durability: str) -> Callable[[int], Call]:
    """`state.get` on a backend that holds its records in a dict, then the raw read."""
    get, read = _getter(Tenuto("bench", Nothing())), raw_read(path, durability)

    def thread(number: int) -> Call:
        own_get, own_read = get(number), read(number)

        def call(n: int) -> None:
            own_get(n)
            own_read(n)

        return call

    return thread


def state_get(path: Path, durability: str) -> Callable[[int], Call]:
    """`state.get` of 1 KB, one of 1,000 values in ten scopes."""
    return _getter(Tenuto("bench", path, durability=durability).open())


def _getter(agent: Tenuto) -> Callable[[int], Call]:
    for number, names in enumerate(READ):
        agent.state.set(*names, TEXTS[number % 997])
    return lambda _: lambda n: agent.state.get(*READ[n * 7 % 1_000])


# -- runs, tasks and graphs ----------------------------------------------------------------------


def step(path: Path, durability: str, effect: str = "idempotent") -> Callable[[int], Call]:
    """A step with a result of 1 KB, its intent before and its result after; a new run every 100 steps."""
    agent = Tenuto("bench", path, durability=durability).open()

    def thread(number: int) -> Call:
        runs, made = itertools.count(), itertools.count()
        run: Any = None

        def call(n: int) -> None:
            nonlocal run
            if next(made) % 100 == 0:
                if run is not None:
                    run.__exit__(None, None, None)
                run = agent.run(f"run-{os.getpid()}-{number}-{next(runs)}").__enter__()
            run.step("step", TEXTS.__getitem__, n % 997, effect=effect)

        return call

    return thread


def pure_step(path: Path, durability: str) -> Callable[[int], Call]:
    """A pure step with a result of 1 KB: its result alone."""
    return step(path, durability, "pure")


def task(path: Path, durability: str) -> Callable[[int], Call]:
    """A task enqueued, claimed and completed: three commits."""
    agent = Tenuto("bench", path, durability=durability).open()

    def thread(number: int) -> Call:
        queue = f"queue-{os.getpid()}-{number}"

        def call(n: int) -> None:
            agent.tasks.enqueue(queue, {"file": n, "text": "x" * 200})
            claimed = agent.tasks.claim(queue)
            assert claimed is not None
            claimed.complete({"ok": True})

        return call

    return thread


def graph_turn(path: Path, durability: str) -> Callable[[int], Call]:
    """One turn of a LangGraph graph of one node on TenutoSaver; a new conversation every 20 turns."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    from tenuto.adapters.langgraph import TenutoSaver

    agent = Tenuto("bench", path, durability=durability).open()
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda _: {"messages": [AIMessage(TEXTS[1][480:])]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=TenutoSaver(agent))

    def thread(number: int) -> Call:
        turns = itertools.count()

        def call(n: int) -> None:
            config: Any = {"configurable": {"thread_id": f"{os.getpid()}-{number}-{next(turns) // 20}"}}
            graph.invoke({"messages": [HumanMessage(TEXTS[n % 997][:480])]}, config)

        return call

    return thread


KINDS: dict[str, Kind] = {
    "raw insert": raw_insert,
    "raw insert, group commit": raw_grouped,
    "floor of set": floor_set,
    "state.set": state_set,
    "thread.append": thread_append,
    "raw read": raw_read,
    "floor of get": floor_get,
    "state.get": state_get,
    "step": step,
    "pure step": pure_step,
    "task": task,
    "graph turn": graph_turn,
}


# -- the process ---------------------------------------------------------------------------------


class Caller:
    """Repeats the call in so many threads for so many seconds, and says what that took."""

    def __init__(self, thread: Callable[[int], Call]) -> None:
        self._thread = thread
        self._calls: list[Call] = []
        self._before = _used()

    def go(self, threads: int, seconds: float) -> dict[str, Any]:
        while len(self._calls) < threads:
            self._calls.append(self._thread(len(self._calls)))
        answering = time.thread_time() - self._before[2]  # spent on the last answer: no part of any call
        found = self._in_threads(threads, seconds)
        # From the end of the last round: what a background thread did after it belongs to the calls, too.
        after, before = _used(), self._before
        self._before = after
        return {
            "took": [[round(took, 7) for took in calls] for calls, _ in found],
            "errors": [error for _, errors in found for error in errors],
            "processor": after[0] - before[0] - answering,
            "written": after[1] - before[1],
        }

    def _in_threads(self, count: int, seconds: float) -> list[tuple[list[float], list[str]]]:
        if count == 1:
            return [repeat(self._calls[0], time.perf_counter() + seconds)]
        found: list[tuple[list[float], list[str]]] = []
        start = threading.Barrier(count)

        def work(call: Call) -> None:
            start.wait()
            found.append(repeat(call, time.perf_counter() + seconds))

        threads = [threading.Thread(target=work, args=(call,)) for call in self._calls[:count]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def _used() -> tuple[float, int, float]:
    """Return this process's processor time, its bytes sent to storage (0 where unknown), and this thread's time."""
    try:
        written = next(
            line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("write_bytes")
        )
    except OSError:
        written = "write_bytes: 0"
    return time.process_time(), int(written.split()[1]), time.thread_time()


def main(kind: str, path: str, durability: str) -> None:
    answers = Answers()
    caller = Caller(KINDS[kind](Path(path), durability))
    answers.serve(lambda verb: getattr(caller, verb))


if __name__ == "__main__":
    main(*sys.argv[1:])
