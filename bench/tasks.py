"""Queues: enqueue, and claim and complete, with 1 and 16 workers, compared with common alternatives on the same disk or server.

Every contender gets the same payloads and does the same: a task is enqueued in a commit of its own; a worker takes it,
does nothing, and stores a result. They take turns in short rounds, and the ratio is of throughput within one round.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import servers
from bench.compare import compare
from bench.measure import Ratio, Row, Table, _chance, folder
from tenuto import Tenuto

WORKERS = 16
PAYLOAD = {"file": 31, "text": "x" * 200}
Rates = dict[str, dict[str, list[float]]]


class OfTenuto:
    """The worker as it is; each of its lanes writes the end of a task and takes the next one in one commit."""

    def __init__(self, url: str | Path, durability: str = "full") -> None:
        self._agent = Tenuto("bench", str(url), durability=durability).open()

    def enqueue(self, callers: int, count: int) -> None:
        _spread(callers, count, lambda: lambda: self._agent.tasks.enqueue("q", PAYLOAD))

    def work(self, workers: int, count: int) -> None:
        done = self._agent.tasks.work("q", lambda task: {"ok": True}, concurrency=workers, until_empty=True)
        assert done == count, done

    def close(self) -> None:
        self._agent.close()


class ByHand(OfTenuto):
    """`claim`, then `complete`: two commits."""

    def work(self, workers: int, count: int) -> None:
        def one() -> Callable[[], Any]:
            def call() -> None:
                task = self._agent.tasks.claim("q")
                assert task is not None
                task.complete({"ok": True})

            return call

        _spread(workers, count, one)


class OfHuey:
    """huey's storage, without its consumer: a task is deleted when it is taken, then its result is stored."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        from huey.storage import SqliteStorage

        self._storage = SqliteStorage("q", str(path), fsync=fsync, timeout=30)
        self._data = repr(PAYLOAD).encode()
        self._numbers = itertools.count()

    def enqueue(self, callers: int, count: int) -> None:
        _spread(callers, count, lambda: lambda: self._storage.enqueue(self._data))

    def work(self, workers: int, count: int) -> None:
        def call() -> None:
            assert self._storage.dequeue() is not None
            self._storage.put_data(f"r{next(self._numbers)}", b"ok")

        _spread(workers, count, lambda: call)

    def close(self) -> None:
        self._storage.close()


class OfSkipLocked:
    """A table and SKIP LOCKED, by psycopg alone: the least that a queue on Postgres can do."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connect = lambda: psycopg.connect(url, autocommit=True)
        self._own = threading.local()
        with self._connect() as connection:
            connection.execute("DROP TABLE IF EXISTS jobs")
            connection.execute(
                "CREATE TABLE jobs (id bigserial PRIMARY KEY, priority int NOT NULL DEFAULT 0, "
                "status text NOT NULL DEFAULT 'todo', payload jsonb NOT NULL, result jsonb)"
            )
            connection.execute("CREATE INDEX jobs_todo ON jobs (priority DESC, id) WHERE status = 'todo'")

    def _run(self, sql: str, *arguments: Any) -> Any:
        if not hasattr(self._own, "line"):
            self._own.line = self._connect()
        return self._own.line.execute(sql, arguments, prepare=True)

    def enqueue(self, callers: int, count: int) -> None:
        from psycopg.types.json import Jsonb

        _spread(callers, count, lambda: lambda: self._run("INSERT INTO jobs (payload) VALUES (%s)", Jsonb(PAYLOAD)))

    def work(self, workers: int, count: int) -> None:
        def call() -> None:
            ((job, _),) = self._run(
                "UPDATE jobs SET status = 'doing' WHERE id = (SELECT id FROM jobs WHERE status = 'todo' "
                "ORDER BY priority DESC, id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id, payload"
            ).fetchall()
            self._run("UPDATE jobs SET status = 'done', result = '{\"ok\": true}' WHERE id = %s", job)

        _spread(workers, count, lambda: call)

    def close(self) -> None:
        pass


class OfProcrastinate:
    """procrastinate's own job manager: a task is fetched, then finished; a worker is a coroutine."""

    def __init__(self, url: str) -> None:
        import procrastinate

        self._loop = asyncio.new_event_loop()
        connector = procrastinate.PsycopgConnector(conninfo=url, max_size=WORKERS + 2)
        self._app = procrastinate.App(connector=connector)

        @self._app.task(name="job", queue="q", pass_context=False)
        def job(**payload: Any) -> None:
            return None

        self._job = job
        self._run(self._app.open_async())
        with contextlib.suppress(Exception):  # it is there from the round before
            self._run(self._app.schema_manager.apply_schema_async())

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def enqueue(self, callers: int, count: int) -> None:
        async def some(n: int) -> None:
            for _ in range(n):
                await self._job.defer_async(**PAYLOAD)

        self._run(self._all(callers, count, some))

    def work(self, workers: int, count: int) -> None:
        from procrastinate.jobs import Status

        manager = self._app.job_manager

        async def some(n: int) -> None:
            worker = await manager.register_worker()
            for _ in range(n):
                job = await manager.fetch_job(queues=["q"], worker_id=worker)
                assert job is not None
                await manager.finish_job(job, status=Status.SUCCEEDED, delete_job=False)

        self._run(self._all(workers, count, some))

    @staticmethod
    async def _all(workers: int, count: int, some: Callable[[int], Any]) -> None:
        await asyncio.gather(*(some(count // workers) for _ in range(workers)))

    def close(self) -> None:
        self._run(self._app.close_async())
        self._loop.close()


def _spread(callers: int, count: int, make: Callable[[], Callable[[], Any]]) -> None:
    """Make so many calls, by so many threads at once."""
    if callers == 1:
        call = make()
        for _ in range(count):
            call()
        return
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call = make()
            for _ in range(count // callers):
                call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def run(*, quick: bool, against: Path | None = None) -> Table:
    if against is not None:
        return compare("A task: enqueued, claimed, completed", ("raw insert", "task"), quick=quick, against=against)
    count, rounds = (160, 2) if quick else (400, 5)
    rows: list[Row] = []
    found: Rates = {}
    with folder() as path:
        made: dict[str, Any] = {
            "SQLite full: tenuto worker": OfTenuto(path / "a.db"),
            "SQLite full: tenuto by hand": ByHand(path / "b.db"),
            "SQLite full: huey": OfHuey(path / "c.db", fsync=True),
            "SQLite process: tenuto worker": OfTenuto(path / "d.db", "process"),
            "SQLite unsynced: huey": OfHuey(path / "e.db", fsync=False),
        }
        with _closing(made):
            found |= _measured(made, count, rounds)
    rows += _rows(found, "SQLite full: huey", ["SQLite full: tenuto worker", "SQLite full: tenuto by hand"])
    rows += _rows(found, "SQLite unsynced: huey", ["SQLite process: tenuto worker"])
    with folder() as path, servers.postgres(path) as server:
        made = {
            "Postgres: tenuto worker": OfTenuto(server.url),
            "Postgres: tenuto by hand": ByHand(server.url + ("&" if "?" in server.url else "?") + "schema=byhand"),
            "Postgres: SKIP LOCKED": OfSkipLocked(server.url),
            "Postgres: procrastinate": OfProcrastinate(server.url),
        }
        with _closing(made):
            found |= _measured(made, count, rounds)
    ours = ["Postgres: tenuto worker", "Postgres: tenuto by hand"]
    rows += _rows(found, "Postgres: procrastinate", [*ours, "Postgres: SKIP LOCKED"])
    return Table(
        "Tasks: enqueue, and claim and complete, per second",
        rows,
        [
            (
                f"huey {version('huey')}, procrastinate {version('procrastinate')}. The ratio is of throughput, to that peer, in "
                "the same round. 16 are threads of one process; procrastinate's are coroutines."
            ),
            (
                "full: a commit is synced before it returns, huey's too (`fsync=True`). process: survives kill -9; unsynced: "
                "huey's `fsync=False` (synchronous=OFF) may be left damaged by a loss of power."
            ),
            (
                "huey is measured at its storage: it deletes a task when it is taken, so a worker that is killed takes it along. "
                "tenuto leaves a lease behind, and delivers it again. `worker` ends a task and takes the next in one commit; "
                "`by hand` calls claim and complete, two commits, as procrastinate and SKIP LOCKED do."
            ),
        ],
    )


@contextlib.contextmanager
def _closing(made: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in made.values():
            one.close()


def _measured(made: dict[str, Any], count: int, rounds: int) -> Rates:
    found: Rates = {name: {} for name in made}
    order = list(made)
    for number in range(rounds + 1):
        for crowd in (1, WORKERS):
            _chance.shuffle(order)
            for name in order:
                for verb in ("enqueue", "work"):
                    began = time.perf_counter()
                    getattr(made[name], verb)(crowd, count)
                    if number:  # the first round warms up
                        found[name].setdefault(f"{verb} {crowd}", []).append(count / (time.perf_counter() - began))
    return found


def _rows(found: Rates, peer: str, ours: list[str]) -> list[Row]:
    rows = []
    for what, label in (("enqueue", "enqueue"), ("work", "claim and complete")):
        for crowd in (1, WORKERS):
            verb = f"{what} {crowd}"
            title = f"{label}, {crowd} at once"
            base = found[peer][verb]
            rows.append(Row(f"{title}: {peer}", rate=statistics.median(base)))
            for name in ours:
                ratio = Ratio([own / other for own, other in zip(found[name][verb], base, strict=True)])
                row = Row(f"{title}: {name}", rate=statistics.median(found[name][verb]), ratio=str(ratio))
                if "tenuto worker" in name:
                    row.target, row.met = ">= 1.0x", ratio.value >= 1.0
                rows.append(row)
    return rows
