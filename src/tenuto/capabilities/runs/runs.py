"""Runs, seen from outside: listed, read, watched, signalled, forked, cancelled, deleted, and gone on with.

What is done to a run from outside is one commit that checks its head, so it never meets a holder unseen. Cancelling
takes the lease away by writing its token: whoever had it can add nothing more, except what had been done by then.
"""

from __future__ import annotations

import signal as signals
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tenuto.capabilities import journal, lives, recovery, waiting
from tenuto.capabilities.leases import Lease, is_free
from tenuto.capabilities.recovery import Crew, Functions
from tenuto.capabilities.runlog import (
    CANCELLED,
    COMPLETED,
    EMITTED,
    FAILED,
    OVER,
    QUEUED,
    RESULT,
    RunLog,
    every_key,
    head_of,
    id_of,
)
from tenuto.capabilities.running import TTL, Engine
from tenuto.capabilities.runviews import STATUSES, RunInfo, RunRecord, listed, record
from tenuto.capabilities.threads import Thread
from tenuto.errors import Conflict, InvalidInput, NotFound, RunBusy
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Check, Delete, Entry, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import Steps, paced, settle

_PAGE = 500


class Emitted(NamedTuple):
    """Something that a run gave to whoever watches it."""

    number: int
    """Go on behind it with `after`."""
    value: Any
    at: datetime
    attempt: int
    """Which attempt of a step gave it; 0 outside of steps."""


class Runs:
    """The runs of a tenant."""

    def __init__(self, engine: Engine, functions: Functions) -> None:
        self._engine = engine
        self._context = engine.context
        self._kernel = engine.context.kernel
        self._functions = functions

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    # -- reading -----------------------------------------------------------------------------------------------

    def list(
        self, status: str | None = None, user: str | None = None, *, after: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        """Return runs in the order of their ids: all, those in a status, those of a user.

        `limit` returns so many at most; `after` goes on behind the last id seen.
        """
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"A run is {', '.join(STATUSES)}; not {status!r}.")
        if limit < 1:
            raise InvalidInput(f"A limit is 1 or more, not {limit}.")
        prefix = every_key(user)
        seen = None if after is None else prefix + keys.named(after, "run id")
        found: list[RunInfo] = []
        while len(found) < limit and (page := self._kernel.scan(prefix, after=seen, limit=_PAGE)):
            seen = page[-1].key
            found += (one for one in self._listed(page, user) if status in (None, one.status))
        return found[:limit]

    def _listed(self, page: Sequence[Record], user: str | None) -> Iterator[RunInfo]:
        names = [id_of(one) for one in page]
        wanted = [keys.pack(name, "run", "beat") for name in names]
        heads: list[Record | None] = [*page]
        if user is not None:
            found = self._kernel.read([*wanted, *(RunLog(self._context, name).head_key for name in names)])
            beats, heads = found[: len(names)], found[len(names) :]
        else:
            beats = self._kernel.read(wanted)
        for name, beat, one in zip(names, beats, heads, strict=True):
            if one is not None and head_of(one).status != "deleting":
                yield RunInfo(**listed(name, head_of(one), not is_free(beat)))

    def get(self, run_id: str) -> RunRecord:
        """Return a run with its steps, its result or error, and what it cost; `NotFound` if there is none."""
        log = RunLog(self._context, run_id)
        head, _ = log.must()
        beat = self._kernel.read([keys.pack(run_id, "run", "beat")])[0]
        return record(log, head, log.told(head.first), held=not is_free(beat))

    def info(self, run_id: str) -> RunInfo:
        """Return a run as it is listed, without reading its log; `NotFound` if there is none."""
        head, _ = RunLog(self._context, run_id).must()
        beat = self._kernel.read([keys.pack(run_id, "run", "beat")])[0]
        return RunInfo(**listed(run_id, head, not is_free(beat)))

    def watch(self, run_id: str, *, after: int | None = None, timeout: Duration | None = None) -> Iterator[Emitted]:
        """Iterate over what a run emits, as it lands, across processes, until the run is over.

        From its beginning, or `after` the last number seen. With `timeout` it ends when nothing has come for so long.
        """
        for step in self.watching(run_id, after=after, timeout=timeout):
            if isinstance(step, Pause):
                step.sleep(self.clock)
            else:
                yield step

    def watching(
        self, run_id: str, *, after: int | None = None, timeout: Duration | None = None
    ) -> Generator[Emitted | Pause, None, None]:
        """Yield what a run emits; a pause means that there is nothing now."""
        log = RunLog(self._context, run_id)
        if after is None:
            head, _ = log.head()
            after = head.first - 1 if head is not None else 0
        limit = None if timeout is None else seconds(timeout, "timeout")

        def told(entry: Entry) -> list[Emitted | None]:
            return _emitted(log, entry)

        for step in journal.following(self._context, log.own, after, limit, told):
            if step is None:
                return
            yield step

    # -- doing something to a run ------------------------------------------------------------------------------

    @paced
    def signal(self, run_id: str, event: str, payload: Any = None) -> Steps[bool]:
        """Send a signal to a run, durably; tell whether it counts: an earlier one that was not taken yet wins."""
        return (yield from waiting.signal(self._context, RunLog(self._context, run_id), event, payload))

    @paced
    def cancel(self, run_id: str) -> Steps[bool]:
        """Cancel a run and those it began, durably; tell whether it was not over yet.

        Whoever has it in hand can begin no further step; what it had done by then is still recorded.
        """
        log = RunLog(self._context, run_id)
        lease = self._lease(run_id)
        while True:
            head, version = log.must()
            if head.status in ("completed", "cancelled"):
                return False
            over = head._replace(status="cancelled", changed=self._kernel.now(), wake=None, waits=())
            writes: Sequence[Write] = [log.line(CANCELLED, 0, None), *log.placed(over)]
            taken: Sequence[Write] = [
                Put(lease.token_key, codec.encode(None)),
                Delete(keys.pack(run_id, "run", "beat")),
            ]
            try:
                yield from settle(self._kernel, [Check(log.head_key, version)], [*taken, *writes])
            except Conflict:
                yield 0.005
            else:
                break
        for kind, ref in head.waits:
            if kind == "question" and self._engine.inbox.look(ref)[0] is not None:
                try:
                    yield from self._engine.inbox.cancel.steps(self._engine.inbox, ref)  # type: ignore[attr-defined]
                except Conflict:
                    continue  # it was answered before
        for one in self._kernel.scan(log.own + keys.pack("child"), limit=10_000):
            child, _ = RunLog(self._context, id_of(one)).head()
            if child is not None and child.status not in (*OVER, "deleting"):
                yield from self.cancel.steps(self, id_of(one))  # type: ignore[attr-defined]
        return True

    @paced
    def retry(self, run_id: str) -> Steps[None]:
        """Let a run that failed or was cancelled go on, by a worker or by the same call; durably queued."""
        log = RunLog(self._context, run_id)
        while True:
            head, version = log.must()
            if head.status == "completed":
                raise InvalidInput(
                    f"The run {run_id!r} is completed. To do it otherwise, fork it: agent.runs.fork({run_id!r}, NEW_ID, at=STEP)."
                )
            self._must_be_free(run_id)
            again = head._replace(
                status="queued", changed=self._kernel.now(), wake=None, waits=(), takeovers=0, deadline=None
            )
            try:
                yield from settle(
                    self._kernel,
                    [Check(log.head_key, version), *self._unheld(log)],
                    [log.line(QUEUED, 0, None), *log.placed(again)],
                )
            except Conflict:
                yield 0.005
            else:
                return

    @paced
    def fork(
        self,
        run_id: str,
        new_id: str,
        *,
        at: str | None = None,
        occurrence: int | str = 1,
        args: Any = None,
        results: Mapping[Any, Any] | None = None,
    ) -> Steps[RunInfo]:
        """Begin another run with what this one had done before the step `at`; without it, with all it has done.

        `occurrence` says which step of that name: a number, or its key. `args` are given to that step instead of
        what the code gives it. `results` replace those of steps before it: by name, or by (name, occurrence or key).
        The original stays as it is, and the fork's steps have idempotency keys of their own. The run's own
        conversation is forked with it; one that was given with thread= is not, give it again. It is queued: a
        worker, or the same call under the new id, goes on with it.
        """
        old, new = RunLog(self._context, run_id), RunLog(self._context, new_id)
        if old.id == new.id:
            raise InvalidInput(f"A fork has an id of its own, not {run_id!r} again; the original stays as it is.")
        if args is not None and not isinstance(args, list | tuple):
            raise InvalidInput("args= are the step's arguments, as a list or a tuple.")

        def conversation(upto: int) -> Steps[None]:
            thread = Thread(self._engine.threads, run_id, user=None, ttl=None)
            try:
                yield from thread.fork.steps(thread, new_id, upto)  # type: ignore[attr-defined]
            except NotFound:
                return  # it was deleted since

        yield from lives.fork(
            old, new, at=at, occurrence=occurrence, args=args, results=results, fence=self._unheld,
            conversation=conversation,
        )  # fmt: skip
        head, _ = new.must()
        return RunInfo(**listed(new.id, head, held=False))

    @paced
    def delete(self, run_id: str) -> Steps[bool]:
        """Take a run and its record away, for good; tell whether it was there. `RunBusy` while somebody has it.

        Its conversation is a thread of its own, and stays.
        """
        log, lease = RunLog(self._context, run_id), self._lease(run_id)
        return (yield from lives.delete(log, lease.holder, self._unheld, lease.token_key))

    def _lease(self, run_id: str) -> Lease:
        return Lease(self._context, self._engine.keeper, run_id, kind="run", ttl=TTL, wait=None)

    def _must_be_free(self, run_id: str) -> None:
        holder = self._lease(run_id).holder()
        if holder is not None:
            raise RunBusy(
                f"The run {run_id!r} is in the hands of {holder}; nothing was written. Wait until it is done, or call agent.runs.cancel({run_id!r})."
            )

    def _unheld(self, log: RunLog) -> Sequence[AnyCheck]:
        """Return the check that nobody takes the run meanwhile."""
        token = self._kernel.read([self._lease(log.id).token_key])[0]
        return [Check(self._lease(log.id).token_key, token.version if token is not None else 0)]

    # -- going on with runs ------------------------------------------------------------------------------------

    def recover(self) -> dict[str, str]:
        """Go on with the registered runs that were interrupted, or are due to wake; return what became of each.

        It returns when they have ended or pause. Queued ones are a worker's.
        """
        crew = Crew(self._engine, self._functions, queued=False)
        return recovery.work(crew, self._engine, concurrency=4, poll=0.02, grace=0.0, once=True)

    def work(
        self,
        *,
        concurrency: int = 4,
        poll: Duration = 0.25,
        grace: Duration = 30,
        stop: threading.Event | None = None,
        on_signal: bool = False,
    ) -> None:
        """Be a worker: go on with registered runs that are queued, interrupted or due, until told to stop.

        To stop, runs in hand end their step in flight and go back to the queue; after `grace` they are left as they
        are. With `on_signal`, SIGTERM and SIGINT say so.
        """
        crew = Crew(self._engine, self._functions, queued=True)
        if stop is not None:
            crew.stop = stop
        if on_signal:
            for number in (signals.SIGTERM, signals.SIGINT):
                signals.signal(number, lambda *_: crew.stop.set())
        recovery.work(crew, self._engine, concurrency=concurrency, poll=seconds(poll), grace=seconds(grace))


def _emitted(log: RunLog, entry: Entry) -> list[Emitted | None]:
    """Return what a line gives to those who watch; None where it ends the run, and nothing has come behind it."""
    if entry.forgotten:
        return []
    _, _, kind, _, data, *_ = codec.decode(entry.value, log.blobs.find)
    at = moment(entry.written_at)
    if kind == EMITTED:
        return [Emitted(entry.number, data[0], at, data[1])]
    if kind == RESULT and data[0] is not None and data[0][0] == "emit":
        return [Emitted(entry.number, data[2], at, 0)]
    return [None] if kind in (COMPLETED, FAILED, CANCELLED) and log.last() == entry.number else []
