"""The lanes of `run.map`: each executes one item after the other as steps, and saves its last results at its end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.options import Lane, OnError, Step
from tenuto.capabilities.runs.step import run_step
from tenuto.errors import InvalidInput
from tenuto.kernel.work import Store, Together, Work


class Lanes:
    """The items of a map, executed by `concurrency` workers."""

    def __init__(self, run: OpenRun, step: Step, items: Iterable[Any], concurrency: int, on_error: OnError) -> None:
        if concurrency < 1:
            raise InvalidInput(f"concurrency must be at least 1, not {concurrency}.")
        if on_error not in ("raise", "keep"):
            raise InvalidInput(f'on_error must be "raise" or "keep", not {on_error!r}.')
        self._run = run
        self._step = step
        self._items = list(items)
        self._on_error = on_error
        again = run.mapping(step.name)
        self._again = "" if again == 1 else f"#{again}"
        self._next = itertools.count()
        self._failed = threading.Event()
        self._errors: dict[int, BaseException] = {}
        self._values: dict[int, Any] = {}
        self._works = [self._lane() for _ in range(min(concurrency, len(self._items)))]

    def _lane(self) -> Work[None]:
        lane = Lane()
        one = self._step
        try:
            while not self._failed.is_set() and (at := next(self._next)) < len(self._items):
                step = Step(
                    one.name, one.fn, (self._items[at],), f"{at}{self._again}", one.effect, one.verify, one.retry, one.timeout,
                    one.schema, "map", lane,
                )  # fmt: skip
                try:
                    self._values[at] = yield from run_step(self._run, step)
                except Exception as error:  # noqa: BLE001 - it is raised when the others have ended
                    self._errors[at] = error
                    if self._on_error == "raise":
                        self._failed.set()
        except BaseException:
            self._failed.set()
            raise
        finally:
            writes = lane.taken()
            if writes:
                yield Store(self._run.write([], writes, saving=True))

    def all(self) -> Work[list[Any]]:
        """Execute all items; return the results in order; raise the first error unless `on_error` is "keep"."""
        yield Together(self._works)
        if self._errors and self._on_error == "raise":
            raise self._errors[min(self._errors)]
        return [self._errors.get(at, self._values.get(at)) for at in range(len(self._items))]
