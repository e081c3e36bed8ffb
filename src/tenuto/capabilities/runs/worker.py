"""The worker of runs: takes those that were woken, are due, queued or interrupted, and executes them.

It reads the index of `due`, so its cost does not depend on how many runs wait. First come runs that were woken, then
those whose time has come, then queued ones by priority, then interrupted ones. Recurring runs are queued first. Taking a run here only reserves it among
the lanes of this worker. Opening it is the run's own commit, so of two workers only one gets it. A worker that dies
leaves only leases, which expire.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Stop
from tenuto.capabilities._core.tracebacks import of_user
from tenuto.capabilities.leases import is_free
from tenuto.capabilities.people import is_open_question, question_key
from tenuto.capabilities.runs import due
from tenuto.capabilities.runs.durable import Durable, Face
from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.log import FAILED, OVER, Head, RunLog, head_of, id_of
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.recurring import Firings
from tenuto.errors import Conflict, Paused, RunBusy, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import Check, Delete, Record
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import chance, commit_once
from tenuto.kernel.work import Work

TAKEOVERS: Final = 10
"""A run that is taken over this often in a row without progress fails."""
_PAGE: Final = 200
_FEW: Final = 4
_SHARE: Final = 200
"""Looking for interrupted runs takes at most one part in this many of the time."""
_SELDOM: Final = 5.0

Functions = dict[str, Callable[..., Any]]


class Due(NamedTuple):
    """A run as a worker sees it."""

    id: str
    head: Head | None
    version: int
    free: bool
    why: str
    """Why it can continue now; empty if it cannot."""


def judged(engine: Engine, ids: Sequence[str]) -> list[Due]:
    """Return for each run whether it can continue now, and why."""
    if not ids:
        return []
    kernel = engine.context.kernel
    logs = [RunLog(engine.context, run_id) for run_id in ids]
    found = kernel.read([key for own in logs for key in (own.head_key, keys.pack(own.id, "run", "beat"))])
    now = kernel.now()
    result = []
    for own, record, beat in zip(logs, found[::2], found[1::2], strict=True):
        head = None if record is None else head_of(record)
        free = is_free(beat)
        why = _why(engine, own, head, now) if head is not None and free else ""
        result.append(Due(own.id, head, record.version if record is not None else 0, free, why))
    return result


def _why(engine: Engine, own: RunLog, head: Head, now: float, seen: frozenset[str] = frozenset()) -> str:
    if head.status in ("queued", "running"):
        return "queued" if head.status == "queued" else "interrupted"
    if head.status in (*OVER, "deleting"):
        return ""
    if head.wake is not None and head.wake <= now:
        return "its time has come"
    keyed = {"signal": own.signal_key, "question": question_key}
    wanted = [(kind, keyed[kind](ref)) for kind, ref in head.waits if kind in keyed]
    found = engine.context.kernel.read([key for _, key in wanted]) if wanted else []
    come = [
        record is not None if kind == "signal" else not is_open_question(record)
        for (kind, _), record in zip(wanted, found, strict=True)
    ]
    above = seen | {own.id}
    if any(come) or any(_can_go_on(engine, ref, above) for kind, ref in head.waits if kind == "run"):
        return "what it waits for has come"
    return ""


def _can_go_on(engine: Engine, run_id: str, seen: frozenset[str]) -> bool:
    """Return whether an awaited run is over, or can continue when its parent resumes.

    Two free runs that wait for each other can.
    """
    if run_id in seen:
        return True
    own = RunLog(engine.context, run_id)
    head, _ = own.head()
    if head is None or head.status in (*OVER, "deleting"):
        return True
    kernel = engine.context.kernel
    free = is_free(kernel.read([keys.pack(run_id, "run", "beat")])[0])
    return free and bool(_why(engine, own, head, kernel.now(), seen))


def fail_lost(engine: Engine, one: Due) -> Work[None]:
    """Let a run fail that was taken over repeatedly without progress."""
    assert one.head is not None
    own = RunLog(engine.context, one.id)
    error = {
        "type": "Interrupted",
        "message": f"The run was taken over {one.head.takeovers} times in a row without progress; its next step seems to "
        f"kill the process. Find the cause, then call agent.runs.retry({one.id!r}).",
    }
    head = one.head._replace(status="failed", changed=engine.context.kernel.now())
    waking = engine.waking(head.parent, "child") if head.parent is not None else []
    try:
        yield from commit_once(
            engine.context.kernel,
            [Check(own.head_key, one.version)],
            [own.line(FAILED, 0, error), *own.placed(head, one.head), *waking],
        )
    except Conflict:
        return  # another worker resumed it
    RunSource.log.error("%s: %s", one.id, error["message"])


class RunSource:
    """The runs that a worker may execute."""

    what = "runs"
    log = logging.getLogger("tenuto.runs")
    stream = due.DUE_RUNS

    def __init__(
        self, engine: Engine, functions: Functions, *, recover: bool = False, face: Face | None = None
    ) -> None:
        self._engine = engine
        self._kernel = engine.context.kernel
        self._functions = functions
        self._recover = recover
        self._face = face
        self._unknown: set[str] = set()
        self._lock = threading.Lock()
        self._reserved: set[str] = set()
        self._spread = 1
        self._next_timer = math.inf
        self._firings = Firings(engine, functions)
        self._look_for_lost = 0.0
        self.more = False
        self.stop: Stop = threading.Event()
        self.outcomes: dict[str, str] = {}
        """By run id; kept only for `recover`, which executes each run once."""
        if not recover and functions:
            self.log.info("The worker executes the runs of %s.", ", ".join(sorted(functions)))
        elif not recover:
            self.log.warning("The worker has nothing to do: no durable function is registered. Import their modules.")

    # -- finding a run ------------------------------------------------------------------------------------------------

    def take(self, ended: None = None) -> Work[Due | None]:  # noqa: ARG002 - a run writes its end itself
        """Reserve and return a run that can continue now."""
        now = self._kernel.now()
        if not self._recover:
            yield from self._firings.fire(now)
        for find in (self._woken, self._timed, self._queued, self._interrupted):
            for ids, hints in find(now):
                for one in judged(self._engine, self._unreserved(ids)):
                    if not one.why:
                        yield from self._forget_hint(one, hints.get(one.id))
                    elif self._is_ours(one) and (yield from self._may_run(one)) and self._reserve(one.id):
                        self.more = len(ids) > 1
                        return one
        self.more = False
        return None

    def _woken(self, _now: float) -> Iterator[tuple[list[str], dict[str, Record]]]:
        after: bytes | None = None
        while page := self._kernel.scan(due.WOKEN, after=after, limit=_PAGE):
            yield [id_of(one) for one in page], {id_of(one): one for one in page}
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def _timed(self, now: float) -> Iterator[tuple[list[str], dict[str, Record]]]:
        limit, following = due.micros(now), math.inf
        for function, page in due.by_function(self._kernel, due.TIMER, self._functions, self._few()):
            if self._knows(function, page[0], "due") or due.parts_of(page[0])[1][0] > limit:
                times = [due.parts_of(one) for one in page]
                following = min([following, *(at[0] for _, at, _ in times if at[0] > limit)])
                yield [run_id for _, at, run_id in times if at[0] <= limit], {}
        self._next_timer = following / 1e6

    def _queued(self, _now: float) -> Iterator[tuple[list[str], dict[str, Record]]]:
        if self._recover:
            return
        found: list[tuple[list[int], str]] = []
        for function, page in due.by_function(self._kernel, due.READY, self._functions, self._few()):
            if self._knows(function, page[0], "queued"):
                found += [(order, run_id) for _, order, run_id in map(due.parts_of, page)]
        ids = [run_id for _, run_id in sorted(found)]
        if self._spread > 1:  # other workers take the first ones too
            first = ids[: self._spread]
            chance.shuffle(first)
            ids[: self._spread] = first
        yield ids, {}

    def _interrupted(self, _now: float) -> Iterator[tuple[list[str], dict[str, Record]]]:
        began = time.monotonic()
        if began < self._look_for_lost and not self._recover:
            return
        for function in self._held_functions():
            after: bytes | None = None
            while page := self._kernel.scan(due.HELD + keys.pack(function), after=after, limit=_PAGE):
                ids = self._unreserved([id_of(one) for one in page])
                beats = self._kernel.read([keys.pack(run_id, "run", "beat") for run_id in ids]) if ids else []
                yield [run_id for run_id, beat in zip(ids, beats, strict=True) if is_free(beat)], {}
                after = page[-1].key
        took = time.monotonic() - began
        self._look_for_lost = time.monotonic() + min(took * _SHARE, _SELDOM)

    def _held_functions(self) -> list[str]:
        """Return the registered functions that have running or interrupted runs; warn of others."""
        found = due.by_function(self._kernel, due.HELD, (), 1)
        return [function for function, page in found if function in self._functions or self._knows_held(function, page)]

    def _knows_held(self, function: str, page: Sequence[Record]) -> bool:
        one = judged(self._engine, [id_of(page[0])])[0]
        return one.why == "interrupted" and self._knows(function, page[0], "interrupted")

    def _few(self) -> int:
        """Return how many runs to look at: more than are reserved, and enough to choose from."""
        return len(self._reserved) + max(_FEW, self._spread)

    def _knows(self, function: str, record: Record, why: str) -> bool:
        """Return whether a function is registered here; warn once if not."""
        if function not in self._functions and function and function not in self._unknown:
            self._unknown.add(function)
            self.log.warning(
                "The run %r is %s but its function %r is not registered here; it was not resumed. Import the "
                "module that registers it.",
                id_of(record),
                why,
                function,
            )
        return function in self._functions

    def _is_ours(self, one: Due) -> bool:
        assert one.head is not None
        if self._recover and (one.why == "queued" or one.id in self.outcomes):
            return False
        return one.head.fn in self._functions

    def _may_run(self, one: Due) -> Work[bool]:
        assert one.head is not None
        if one.head.takeovers >= TAKEOVERS and one.head.status == "running":
            yield from fail_lost(self._engine, one)
            return False
        return True

    def _forget_hint(self, one: Due, hint: Record | None) -> Work[None]:
        """Delete a woken record after which the run still has to wait, unless an event came meanwhile."""
        if hint is None or not one.free:  # its process looks for the event itself, or leaves the record for later
            return
        own = RunLog(self._engine.context, one.id)
        try:
            yield from commit_once(
                self._kernel,
                [Check(hint.key, hint.version), Check(own.head_key, one.version)],
                [Delete(hint.key)],
            )
        except Conflict:
            return

    def _unreserved(self, ids: Sequence[str]) -> list[str]:
        reserved = self._reserved
        return [run_id for run_id in ids if run_id not in reserved]

    def _reserve(self, run_id: str) -> bool:
        with self._lock:
            if run_id in self._reserved:
                return False
            self._reserved = self._reserved | {run_id}  # a new set: `_unreserved` reads it without the lock
            return True

    def seconds_left(self) -> float:
        """Return the seconds until the next run is due by time."""
        return max(min(self._next_timer, self._firings.next) - self._kernel.now(), 0.0)

    def is_empty(self) -> bool:
        """Return whether no run is executed here."""
        return not self._reserved

    # -- executing it -------------------------------------------------------------------------------------------------

    def execute(self, one: Due) -> Work[None]:
        """Execute a run until it ends or pauses; its outcome is on its record, also if it fails."""
        outcome = "interrupted"
        try:
            outcome = yield from self._executed(one)
        except BaseException as error:
            # What the user's code raised ends this run, not the worker. A coroutine that is cancelled must end.
            if isinstance(error, GeneratorExit) or (self._face is not None and not isinstance(error, SystemExit)):
                raise
            self.log.warning("The run %r was interrupted: %s: %s", one.id, type(error).__name__, error)
        finally:
            with self._lock:
                if self._recover:  # first: `recover` returns when nothing is reserved
                    self.outcomes[one.id] = outcome
                self._spread = min(self._spread * 2, 32) if outcome == "busy" else max(self._spread - 1, 1)
                self._reserved = self._reserved - {one.id}

    def _executed(self, one: Due) -> Work[str]:
        def prepared(running: OpenRun) -> None:
            running.stopping = self.stop
            running.retry = self._engine.policies.get(name)

        assert one.head is not None
        name = str(one.head.fn)
        function = Durable(self._engine, name, self._functions[name], {"wait": 0})
        self.log.info("Executing the run %r of %r (%s).", one.id, name, one.why)
        try:
            yield from function._running(one.id, (), {}, face=self._face, prepared=prepared)
        except RunBusy:
            return "busy"
        except Paused as pause:
            self.log.info("%s", pause)
            return "paused"
        except StorageUnavailable as error:
            self.log.warning("The run %r was interrupted: %s", one.id, error)
            return "interrupted"
        except Exception as error:  # it is on the run's record
            head, _ = RunLog(self._engine.context, one.id).head()
            if head is not None and head.status == "waiting" and head.wake is not None:
                at = moment(head.wake)
                self.log.warning(
                    "The run %r failed and is retried at %s: %s", one.id, at, error, exc_info=of_user(error)
                )
                return "retried"
            self.log.warning("The run %r failed: %s: %s", one.id, type(error).__name__, error, exc_info=of_user(error))
            return "failed"
        self.log.info("The run %r is completed.", one.id)
        return "completed"

    def end(self, ended: None) -> Work[None]:  # noqa: ARG002 - the signature of a source
        """Do nothing: a run writes its end itself."""
        yield from ()

    def abandon(self) -> None:
        """Do nothing: an abandoned run keeps its lease until its process ends."""
