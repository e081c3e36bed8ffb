"""Durable steps of tenuto and of common alternatives: each contender in a separate process.

`python -m bench.durable SYSTEM STORE OPTIONS` is such a process. It is given orders on standard input and answers on
standard output (`bench.child`). Everyone does the same: a step returns a text of 1 KB, and is timed where its caller
stands, inside the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import psycopg

from bench import raw
from bench.child import Answers
from bench.measure import text
from bench.postgres import Raw as RawPostgres
from tenuto import Tenuto

clock = time.perf_counter
answers: Any = None
_TEXTS = [text(number) for number in range(97)]


def work(number: int) -> str:
    """The step of every run here."""
    return _TEXTS[number % 97]


def model(messages: list[Any]) -> dict[str, str]:
    """The step of a loop: given the whole conversation, it says 1 KB more."""
    return {"role": "assistant", "content": text(len(messages))}


def timed(step: Callable[[int], Any], count: int) -> list[float]:
    took = []
    for number in range(count):
        began = clock()
        step(number)
        took.append(clock() - began)
    return took


def talk(step: Callable[[list[Any]], Any], count: int) -> dict[str, Any]:
    """Give a growing conversation to so many steps; tell what each took, and how much was new."""
    messages: list[Any] = []
    took = timed(lambda _: messages.append(step(messages)), count)
    return {"took": took, "new": len(json.dumps(messages))}


def end(**marks: float) -> NoReturn:
    """Report the times of this process's events, and exit where a crash would be: inside a step."""
    answers.give({**marks, "reached": clock()})
    os._exit(0)


class Raw:
    """The raw driver: 1 KB in a transaction of its own, no matter what it is."""

    def __init__(self, store: str, durability: str = "full") -> None:
        self._store, self._durability = store, durability

    def open(self) -> None:
        if "://" in self._store:
            connected = RawPostgres(self._store)
            connected.connection.execute(
                "CREATE TABLE IF NOT EXISTS log (id bigserial PRIMARY KEY, value bytea NOT NULL)"
            )
            self._write = connected.insert
        else:
            self._write = raw.Inserts(self._store, self._durability).write

    def steps(self, count: int) -> dict[str, Any]:
        began = clock()
        took = timed(lambda number: self._write(work(number).encode()), count)
        return {"took": took, "whole": clock() - began}


class OfTenuto:
    """tenuto: an intent before every step and a result after it; of a pure one the result alone."""

    def __init__(self, store: str, durability: str = "full", effect: str = "idempotent") -> None:
        self._store, self._durability, self._effect = store, durability, effect
        self._runs = 0

    def open(self) -> None:
        self._agent = Tenuto("bench", self._store, durability=self._durability).open()

    def close(self) -> None:
        self._agent.close()

    def steps(self, count: int) -> dict[str, Any]:
        self._runs += 1
        began = clock()
        with self._agent.run(f"run-{self._runs}") as run:
            took = timed(lambda number: run.step("step", work, number, effect=self._effect), count)
        return {"took": took, "whole": clock() - began}

    def resume(self, count: int, *_: bool) -> NoReturn:
        began = clock()
        self.open()
        opened = clock()
        with self._agent.run("left") as run:
            for number in range(count):
                run.step("step", work, number)
            run.step("last", lambda: end(began=began, opened=opened))
        raise AssertionError("the last step was not reached")

    def loop(self, count: int) -> dict[str, Any]:
        with self._agent.run("loop") as run:
            return talk(lambda messages: run.step("model", model, messages), count)


class Dbos:
    """DBOS: a row after every step. `launch` recovers the workflows of a dead process through a queue."""

    def __init__(self, store: str) -> None:
        from dbos import DBOS, SetWorkflowID

        self._dbos, self._named = DBOS, SetWorkflowID
        url = store if "://" in store else f"sqlite:///{store}"
        DBOS(
            config={
                "name": "bench",
                "system_database_url": url,
                "application_version": "1",
                "log_level": "ERROR",
            }
        )
        step, ask = DBOS.step()(work), DBOS.step()(model)
        last = DBOS.step(name="last")(lambda: end(**self._marks))

        @DBOS.workflow()
        def steps(count: int) -> list[float]:
            return timed(step, count)

        @DBOS.workflow()
        def left(count: int) -> None:
            self._marks["body"] = clock()
            for number in range(count):
                step(number)
            last()

        @DBOS.workflow()
        def loop(count: int) -> dict[str, Any]:
            return talk(ask, count)

        self._steps, self._left, self.loop = steps, left, loop

    def open(self) -> None:
        self._dbos.launch()

    def close(self) -> None:
        self._dbos.destroy()

    def steps(self, count: int) -> dict[str, Any]:
        began = clock()
        took = self._steps(count)
        return {"took": took, "whole": clock() - began}

    def resume(self, count: int, first: bool) -> NoReturn:  # noqa: FBT001
        self._marks = {"began": clock()}
        self.open()
        self._marks["opened"] = clock()
        if first:
            with self._named("left"):
                self._left(count)
        time.sleep(300)  # the workflow ends this process from another thread
        raise AssertionError("the last step was not reached")


class OfAbsurd:
    """Absurd: a row after every step, by functions in the database. A task is retried at once when it failed."""

    def __init__(self, store: str) -> None:
        import absurd_sdk
        import absurdctl

        self._absurd, self._schema, self._store = absurd_sdk.Absurd, absurdctl.BUNDLED_SCHEMA_SQL, store
        self._told: Any = None

    def open(self) -> None:
        self._app = app = self._absurd(self._store, queue_name="bench")

        @app.register_task("steps")
        def steps(params: Any, ctx: Any) -> None:
            took = timed(lambda number: ctx.step("step", lambda: work(number)), params["count"])
            self._told = {"took": took}

        @app.register_task("left", default_max_attempts=1_000)
        def left(params: Any, ctx: Any) -> None:
            for number in range(params["count"]):
                ctx.step("step", lambda: work(number))
            ctx.step("last", self._fail)

        @app.register_task("loop")
        def loop(params: Any, ctx: Any) -> None:
            self._told = talk(lambda messages: ctx.step("model", lambda: model(messages)), params["count"])

    def create(self) -> None:
        with psycopg.connect(self._store, autocommit=True) as connection:
            connection.execute(self._schema)
        self.open()
        self._app.create_queue()

    def close(self) -> None:
        self._app.close()

    def steps(self, count: int) -> dict[str, Any]:
        began = clock()
        self._work("steps", count)
        return {**self._told, "whole": clock() - began}

    def resume(self, count: int, first: bool) -> NoReturn:  # noqa: FBT001
        """A crash would be noticed after two minutes, so the step fails instead: what is measured begins with the retry."""
        self._marks = {"began": clock()}
        self.open()
        self._marks["opened"] = clock()
        if first:
            self._app.spawn("left", {"count": count})
        self._app.work_batch()
        answers.give(self._told)
        os._exit(0)

    def loop(self, count: int) -> dict[str, Any]:
        self._work("loop", count)
        return self._told

    def _work(self, task: str, count: int) -> None:
        self._told = None
        self._app.spawn(task, {"count": count})
        self._app.work_batch()
        assert self._told, "the task did not run"

    def _fail(self) -> NoReturn:
        self._told = {**self._marks, "reached": clock()}
        raise RuntimeError("this attempt ends here")


SYSTEMS: dict[str, Callable[..., Any]] = {"raw": Raw, "tenuto": OfTenuto, "dbos": Dbos, "absurd": OfAbsurd}


def main(system: str, store: str, options: str) -> None:
    global answers  # noqa: PLW0603
    answers = Answers()
    contender = SYSTEMS[system](store, **json.loads(options))
    with contextlib.suppress(KeyboardInterrupt):
        answers.serve(lambda order: getattr(contender, order))


if __name__ == "__main__":
    main(*sys.argv[1:])
