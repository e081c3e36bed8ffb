"""Who goes on with runs that nobody has in hand: those queued, interrupted, or due to wake.

Finding them reads the heads of runs that are not over, the beats of those that should be held, and what the waiting
ones wait for. Taking one is the run's own commit, so of two workers that found the same run one has it. Nothing
is written to find out, and nothing is remembered: a worker that dies leaves nothing but its leases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tenuto.capabilities import questions
from tenuto.capabilities.durable import Durable, Face
from tenuto.capabilities.leases import is_free
from tenuto.capabilities.runlog import FAILED, OPEN_RUNS, OVER, Head, RunLog, head_of, id_of
from tenuto.capabilities.running import Engine, Running
from tenuto.errors import Closed, Conflict, InvalidInput, Paused, RunBusy, StorageUnavailable, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Check
from tenuto.kernel.transact import Steps, drive, settle
from tenuto.kernel.work import Work, perform

log: Final = logging.getLogger("tenuto.runs")
TAKEOVERS: Final = 10
"""So often in a row a run may be taken over without getting on, before it is given up as failed."""
_PAGE: Final = 500

Functions = dict[str, Callable[..., Any]]


class Due(NamedTuple):
    """A run that somebody should go on with."""

    id: str
    head: Head
    version: int
    why: str


def due(engine: Engine) -> Iterator[Due]:
    """Yield the runs that nobody has in hand and that could go on now."""
    kernel = engine.context.kernel
    after: bytes | None = None
    while page := kernel.scan(OPEN_RUNS, after=after, limit=_PAGE):
        after = page[-1].key
        heads = [(id_of(one), head_of(one)) for one in page]
        wanted: list[bytes] = []
        for run_id, head in heads:
            own = RunLog(engine.context, run_id)
            wanted += [own.head_key, keys.pack(run_id, "run", "beat"), *_awaited(own, head)]
        found = dict(zip(wanted, kernel.read(wanted), strict=True))
        now = kernel.now()
        for run_id, head in heads:
            own = RunLog(engine.context, run_id)
            record = found[own.head_key]
            if record is None or head_of(record) != head or not is_free(found[keys.pack(run_id, "run", "beat")]):
                continue
            why = _why(head, now)
            if not why and head.status in ("waiting", "in_doubt"):
                come = [found[own.signal_key(ref)] is not None for kind, ref in head.waits if kind == "signal"]
                come += [
                    not questions.is_open(found[questions.question_key(ref)])
                    for kind, ref in head.waits
                    if kind == "question"
                ]
                come += [_can_go_on(engine, ref) for kind, ref in head.waits if kind == "run"]
                why = "what it waits for has come" if any(come) else ""
            if why:
                yield Due(run_id, head, record.version, why)


def _can_go_on(engine: Engine, run_id: str, seen: frozenset[str] = frozenset()) -> bool:
    """Tell whether a run that another one waits for is over, or could go on in that one's hands.

    Two that wait for each other, and that nobody has in hand, could: whoever goes on finds the other free.
    """
    if run_id in seen:
        return True
    own = RunLog(engine.context, run_id)
    head, _ = own.head()
    if head is None or head.status in (*OVER, "deleting"):
        return True
    kernel = engine.context.kernel
    if not is_free(kernel.read([keys.pack(run_id, "run", "beat")])[0]):
        return False
    if _why(head, kernel.now()):
        return True
    awaited = _awaited(own, head)
    found = kernel.read(awaited) if awaited else []
    come = [
        record is not None if kind == "signal" else not questions.is_open(record)
        for (kind, _), record in zip((one for one in head.waits if one[0] != "run"), found, strict=True)
    ]
    return any(come) or any(_can_go_on(engine, ref, seen | {run_id}) for kind, ref in head.waits if kind == "run")


def _awaited(own: RunLog, head: Head) -> list[bytes]:
    keyed = {"signal": own.signal_key, "question": questions.question_key}
    return [keyed[kind](ref) for kind, ref in head.waits if kind in keyed]


def _why(head: Head, now: float) -> str:
    if head.status == "queued":
        return "queued"
    if head.status == "running":
        return "interrupted"
    return "its time has come" if head.wake is not None and head.wake <= now else ""


def given_up(engine: Engine, one: Due) -> Steps[None]:
    """Write down that a run fails: it was taken over again and again, and never got on."""
    own = RunLog(engine.context, one.id)
    error = {
        "type": "Interrupted",
        "message": f"The run was taken over {one.head.takeovers} times in a row without getting on; whatever it does "
        f"next ends its process. Find out why, then call agent.runs.retry({one.id!r}).",
    }
    head = one.head._replace(status="failed", changed=engine.context.kernel.now())
    try:
        yield from settle(
            engine.context.kernel,
            [Check(own.head_key, one.version)],
            [own.line(FAILED, 0, error), *own.placed(head)],
        )
    except Conflict:
        return  # somebody else goes on with it
    log.error("%s: %s", one.id, error["message"])


class Crew:
    """Finds runs to go on with, and says how; the face that calls it does so, on threads or as tasks."""

    def __init__(self, engine: Engine, functions: Functions, *, queued: bool) -> None:
        self._engine = engine
        self._functions = functions
        self._queued = queued
        self._unknown: set[str] = set()
        self.in_hand: set[str] = set()
        self.stop = threading.Event()
        if queued and functions:
            log.info("A worker goes on with the runs of %s.", ", ".join(sorted(functions)))
        elif queued:
            log.warning("A worker has nothing to do: no durable function is registered here. Import what registers it.")

    def next(self, most: int) -> Steps[list[Due]]:
        """Return up to so many runs to go on with."""
        found: list[Due] = []
        for one in due(self._engine):
            if len(found) >= most:
                break
            if one.id in self.in_hand or (one.why == "queued" and not self._queued):
                continue
            if one.head.fn not in self._functions:
                if one.head.fn is not None and one.head.fn not in self._unknown:
                    self._unknown.add(one.head.fn)
                    log.warning(
                        "The run %r is %s and its function %r is not registered here; it stays as it is. Import the "
                        "module that registers it.",
                        one.id,
                        one.why,
                        one.head.fn,
                    )
                continue
            if one.head.takeovers >= TAKEOVERS and one.head.status == "running":
                yield from given_up(self._engine, one)
                continue
            found.append(one)
        return found

    def resuming(self, one: Due, face: Face | None = None) -> Work[str]:
        """Go on with a run, to its end or to where it pauses; return what became of it. It raises no error of its."""

        def prepared(running: Running) -> None:
            running.stopping = self.stop

        function = Durable(self._engine, str(one.head.fn), self._functions[str(one.head.fn)], {"wait": 0})
        log.info("The run %r of %r goes on (%s).", one.id, function.name, one.why)
        try:
            yield from function.running(one.id, (), {}, face=face, prepared=prepared)
        except RunBusy:
            return "busy"
        except Paused as pause:
            log.info("%s", pause)
            return "paused"
        except StorageUnavailable as error:
            log.warning("The run %r stops for now: %s", one.id, error)
            return "interrupted"
        except Exception as error:  # noqa: BLE001 - it is on the run's record
            log.warning("The run %r failed: %s: %s", one.id, type(error).__name__, error)
            return "failed"
        log.info("The run %r is completed.", one.id)
        return "completed"


def work(  # noqa: C901 - one loop
    crew: Crew, engine: Engine, *, concurrency: int, poll: float, grace: float, once: bool = False
) -> dict[str, str]:
    """Go on with runs, some at once, on threads, until told to stop; with `once`, until there is none now."""
    if concurrency < 1:
        raise InvalidInput(f"A worker goes on with at least one run at a time, not {concurrency}.")
    clock = engine.context.clock
    done: dict[str, str] = {}
    changed = threading.Event()

    def go(one: Due) -> None:
        outcome = "interrupted"
        try:
            outcome = perform(crew.resuming(one), clock)
        except BaseException as error:  # noqa: BLE001 - it ends here as it would end a process of its own
            log.warning("The run %r was interrupted: %s: %s", one.id, type(error).__name__, error)
        finally:
            done[one.id] = outcome
            crew.in_hand.discard(one.id)
            changed.set()

    def look() -> None:
        while not crew.stop.is_set():
            changed.clear()
            free = concurrency - len(crew.in_hand)
            try:
                found = drive(crew.next(free), clock) if free else []
            except Closed:
                return
            except TenutoError as error:
                log.warning("Runs cannot be looked for now: %s", error)
                found = []
            for one in found:
                if once and one.id in done:
                    continue
                crew.in_hand.add(one.id)
                # Not a pool's: Python would wait for its threads at the end, for however long a step takes.
                threading.Thread(target=go, args=(one,), name=f"tenuto-worker {one.id}", daemon=True).start()
            if once and not crew.in_hand and all(one.id in done for one in found):
                return
            changed.wait(poll)

    try:
        look()  # a loop of its own here might be left without what follows: Control-C is how this ends
    finally:
        crew.stop.set()
        waited = 0.0
        while crew.in_hand and waited < grace:
            threading.Event().wait(0.05)
            waited += 0.05
    return done
