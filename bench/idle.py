"""An idle worker with many waiting runs: its share of a core, and how soon it resumes an answered run."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench import servers
from bench.measure import Row, Table, folder
from tenuto import Tenuto, Waiting

CORE = 0.01
SOON = {"sqlite": 1.0, "postgres": 0.1, "valkey": 0.1}
"""The time to resume: 0.1 s where the store has notifications."""


def run(*, quick: bool) -> Table:
    waiting, seconds = (1_000, 3.0) if quick else (10_000, 10.0)
    rows: list[Row] = []
    for name in SOON:
        with folder() as path, _store(name, path) as url:
            rows += _measured(name, url, waiting, seconds)
    return Table(
        f"Idle: one worker of runs, {waiting:,} of which wait for an answer",
        rows,
        [
            "The share is the processor time of the worker's process, without that of a server, over the elapsed time.",
            'An answered run is "completed" when a reader that polls every millisecond sees it.',
        ],
    )


@contextlib.contextmanager
def _store(name: str, path: Any) -> Iterator[str]:
    if name == "sqlite":
        yield str(path / "store.db")
    elif name == "postgres":
        with servers.postgres(path) as server:
            yield server.url
    else:
        with servers.valkey(path, "everysec") as server:
            yield server.url()


def _measured(name: str, url: str, waiting: int, seconds: float) -> list[Row]:
    with _idle_worker(url, waiting) as agent:
        share = _share(seconds)
        took = [_resumed(agent, f"job-{n:06}") for n in range(5)]
    return [
        Row(f"{name}: {share:.2%} of a core", target=f"< {CORE:.0%}", met=share < CORE),
        Row(
            f"{name}: answered to completed, worst {max(took) * 1000:.0f} ms",
            target=f"<= {SOON[name] * 1000:.0f} ms",
            met=max(took) <= SOON[name],
        ),
    ]


def share_of(url: str, waiting: int, seconds: float) -> float:
    """Return the share of a core that an idle worker takes."""
    with _idle_worker(url, waiting):
        return _share(seconds)


@contextlib.contextmanager
def _idle_worker(url: str, waiting: int) -> Iterator[Tenuto]:
    """Let so many runs wait, and a worker run beside this thread that is idle by now."""
    with Tenuto("bench", url, durability="process") as agent:

        @agent.durable
        def job(run: Any, n: int) -> Any:
            return run.ask(f"{n}?")

        for n in range(waiting):
            with contextlib.suppress(Waiting):
                job.run(f"job-{n:06}", n)
        stop = threading.Event()
        worker = threading.Thread(target=agent.runs.work, kwargs={"stop": stop})
        worker.start()
        time.sleep(2.0)  # polling becomes rare
        try:
            yield agent
        finally:
            stop.set()
            worker.join()


def _share(seconds: float) -> float:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (time.monotonic() - began)


def _resumed(agent: Tenuto, run: str) -> float:
    (question,) = [ref for _, ref in agent.runs.info(run).waits_for]
    time.sleep(1.5)  # the worker is idle again
    began = time.monotonic()
    agent.inbox.answer(question, "yes")
    while agent.runs.info(run).status != "completed":
        time.sleep(0.001)
    return time.monotonic() - began
