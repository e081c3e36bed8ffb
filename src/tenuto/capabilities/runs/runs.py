"""Runs from outside: list, read, watch, signal, fork, cancel, delete, and resume them.

Each change is one commit that checks the run's head, so it cannot race with a holder. Cancelling revokes the lease by
writing its token: the old holder can only record what had finished by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tenuto.capabilities._core import journal, schedules
from tenuto.capabilities._core.base import Stop, Timed, must_limit, scan_all
from tenuto.capabilities._core.schedules import ScheduleInfo
from tenuto.capabilities._core.worker import IDLE_CLOCK, Chores, Worker, work
from tenuto.capabilities.leases import Lease, holder_of, is_free
from tenuto.capabilities.runs import due, history, waiting
from tenuto.capabilities.runs.delete import delete_run
from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.fork import fork_run
from tenuto.capabilities.runs.handle import run_result
from tenuto.capabilities.runs.history import RunEvent
from tenuto.capabilities.runs.live import LiveReader
from tenuto.capabilities.runs.log import (
    CANCELLED,
    COMPLETED,
    EMITTED,
    FAILED,
    OVER,
    QUEUED,
    RESULT,
    Head,
    RunLog,
    every_key,
    head_of,
    id_of,
)
from tenuto.capabilities.runs.open_run import TTL
from tenuto.capabilities.runs.recurring import all_recurring, prefix
from tenuto.capabilities.runs.results import Schema
from tenuto.capabilities.runs.views import STATUSES, RunInfo, RunRecord, RunStatus, listed, record
from tenuto.capabilities.runs.worker import Functions, RunSource, judged
from tenuto.capabilities.threads import Thread
from tenuto.errors import Conflict, InvalidInput, NotFound, RunBusy
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Entry, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Item, Sleep, Stream, Work, on_store, streamed, work_of

_PAGE = 500


class Emitted(NamedTuple):
    """A value that a run emitted."""

    number: int
    """Pass it as `after` to continue."""
    value: Any
    at: datetime
    attempt: int
    """The attempt of the step that emitted it; 0 outside steps."""
    durable: bool = True
    """False: a live value, which is not kept; the next durable value of its step replaces it."""


class Runs(Timed):
    """The runs of a tenant."""

    def __init__(self, engine: Engine, functions: Functions) -> None:
        self._engine = engine
        self._context = engine.context
        self._kernel = engine.context.kernel
        self._functions = functions
        self._chores: Chores | None = None
        """What a worker also does: the timers and deliveries of people; set by the client."""

    def recurring(self) -> list[ScheduleInfo]:
        """Return the schedules of durable functions, by function and name, with their next times."""
        return all_recurring(self._engine)

    def list(
        self, status: RunStatus | None = None, user: str | None = None, *, after: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        """Return up to `limit` runs, ordered by id, of a status or user or all, from the id after `after`."""
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"status must be one of {', '.join(STATUSES)}; not {status!r}.")
        must_limit(limit)
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
        why = self._due({name: head_of(one) for name, one in zip(names, heads, strict=True) if one is not None})
        for name, beat, one in zip(names, beats, heads, strict=True):
            if one is not None and head_of(one).status != "deleting":
                yield RunInfo(**listed(name, head_of(one), not is_free(beat), why.get(name)))

    def _due(self, heads: Mapping[str, Head]) -> dict[str, str]:
        """Return why those of these runs can continue that wait and were woken."""
        waiting = [name for name, head in heads.items() if head.status in ("waiting", "in_doubt") and head.waits]
        found = self._kernel.read([due.woken_key(name) for name in waiting]) if waiting else []
        woken = {name: one for name, one in zip(waiting, found, strict=True) if one is not None}
        return {one.id: due.why_woken(woken[one.id]) for one in judged(self._engine, list(woken)) if one.why}

    def _due_of(self, ids: Sequence[str]) -> dict[str, str]:
        """Return why those of these runs can continue that wait and were woken."""
        found = self._kernel.read([RunLog(self._context, run_id).head_key for run_id in ids])
        return self._due({name: head_of(one) for name, one in zip(ids, found, strict=True) if one is not None})

    def _overdue(self, late: float) -> Sequence[RunInfo]:
        """Return the runs that can continue since more than `late` seconds and were not taken by a worker."""
        limit = self._kernel.now() - late
        ready, timers = scan_all(self._kernel, due.READY), scan_all(self._kernel, due.TIMER)
        names = [id_of(one) for one in ready if due.parts_of(one)[1][-1] <= due.micros(limit)]
        names += [id_of(one) for one in timers if due.parts_of(one)[1][0] <= due.micros(limit)]
        names += [id_of(one) for one in scan_all(self._kernel, due.WOKEN) if one.written_at <= limit]
        return [self.info(one.id) for one in judged(self._engine, list(dict.fromkeys(names))) if one.why]

    def get(self, run_id: str) -> RunRecord:
        """Return a run with its steps, result or error, and cost; `NotFound` if there is none."""
        log = RunLog(self._context, run_id)
        head, _ = log.must()
        token, beat = self._kernel.read([keys.pack(run_id, "run", "token"), keys.pack(run_id, "run", "beat")])
        why = self._due({run_id: head}).get(run_id)
        held, holder = not is_free(beat), holder_of(token, beat)
        return record(log, head, log.read(head.first), held=held, holder=holder, due=why)

    def history(self, run_id: str, *, after: int = 0) -> Sequence[RunEvent]:
        """Return what happened to a run, oldest first, each with its writer and correlation id; `NotFound` if there is none.

        `after` leaves out the events up to a number.
        """
        log = RunLog(self._context, run_id)
        return history.events(log, log.must()[0].first, after)

    @streamed
    def follow(self, run_id: str, *, after: int | None = None, timeout: Duration | None = None) -> Stream[RunEvent]:
        """Yield what happens to a run as any process commits it; end after `timeout` without an event.

        `after` is the number of the last event seen (0: from the beginning; None: only new events). `NotFound` if there is no such run.
        """
        log = RunLog(self._context, run_id)
        head, _ = log.must()
        limit = None if timeout is None else seconds(timeout, "timeout")
        first = None if after is None else max(after, head.first - 1)
        if first is not None:
            log.need(first + 1)
        return journal.following(self._context, log.own, first, limit, history.Reader().event)

    def info(self, run_id: str) -> RunInfo:
        """Return a run's status without reading its log; `NotFound` if there is none."""
        head, _ = RunLog(self._context, run_id).must()
        beat = self._kernel.read([keys.pack(run_id, "run", "beat")])[0]
        return RunInfo(**listed(run_id, head, not is_free(beat), self._due({run_id: head}).get(run_id)))

    @on_store
    def result(self, run_id: str, *, wait: Duration | None = None) -> Work[Any]:
        """Return the result of a run, waiting up to `wait` for it.

        Raise `NotFound` if there is no such run, `TimedOut` if it is not over in time, `RunFailed` if it failed or was
        cancelled. By default do not wait; `math.inf` waits without a limit.
        """
        return (yield from run_result(RunLog(self._context, run_id), wait, Schema()))

    @streamed
    def watch(self, run_id: str, *, after: int | None = None, timeout: Duration | None = None) -> Stream[Emitted]:
        """Yield the values that a run emits, in any process, until the run is over or nothing came for `timeout`.

        Starts at the beginning, or `after` the last number seen. `NotFound` if there is no such run. Live values
        (`emit(value, durable=False)`) arrive in order too; a reader that starts late gets those since the last durable one.
        """
        log = RunLog(self._context, run_id)
        head, _ = log.must()
        if after is None:
            after = head.first - 1
        log.need(max(after + 1, head.first))
        limit = None if timeout is None else seconds(timeout, "timeout")

        def live(number: int) -> list[Emitted | None] | None:
            found, now = reader.read(number), moment(self._kernel.now())
            return None if found is None else [Emitted(number, one.value, now, one.attempt, False) for one in found]

        reader = LiveReader(log)
        for request in journal.following(
            self._context, log.own, after, limit, lambda entry: _emitted(log, entry), live
        ):
            if isinstance(request, Sleep):
                yield request
            elif request.value is None:
                return
            else:
                yield Item(request.value)

    @on_store
    def signal(self, run_id: str, event: str, payload: Any = None) -> Work[bool]:
        """Send a signal to a run durably; return False if an earlier one of this event is still pending."""
        return (yield from waiting.signal(self._engine, RunLog(self._context, run_id), event, payload))

    @on_store
    def cancel(self, run_id: str) -> Work[bool]:
        """Cancel a run and its child runs durably; return False if it was already completed or cancelled.

        Its process can begin no further step; a step that had finished by then is still recorded. A coroutine step in
        flight is cancelled when its process next renews the run's lease, within 2.5 s.
        """
        log = RunLog(self._context, run_id)
        lease = self._lease(run_id)
        while True:
            head, version = log.must()
            if head.status in ("completed", "cancelled"):
                return False
            over = head._replace(status="cancelled", changed=self._kernel.now(), wake=None, waits=())
            writes: Sequence[Write] = [
                log.line(CANCELLED, 0, None),
                *log.placed(over, head),
                *(self._engine.waking(head.parent, "child") if head.parent is not None else ()),
            ]
            taken: Sequence[Write] = [
                Put(lease._token_key, codec.encode(None)),
                Delete(keys.pack(run_id, "run", "beat")),
            ]
            try:
                yield from commit_once(self._kernel, [Check(log.head_key, version)], [*taken, *writes])
            except Conflict:
                yield Sleep(0.005)
            else:
                break
        for kind, ref in head.waits:
            asked = self._engine.inbox._look(ref)[0] if kind == "question" else None
            if asked is not None and asked.run == run_id and not asked.runs:  # no other run waits for it
                try:
                    yield from work_of(self._engine.inbox.cancel)(ref)
                except Conflict:
                    continue  # already answered
        yield from self._cancel_children(log)
        return True

    def _cancel_children(self, log: RunLog) -> Work[None]:
        after: bytes | None = None
        while page := self._kernel.scan(log.own + keys.pack("child"), after=after, limit=_PAGE):
            after = page[-1].key
            for one in page:
                child, _ = RunLog(self._context, id_of(one)).head()
                if child is not None and child.status not in (*OVER, "deleting"):
                    yield from work_of(self.cancel)(id_of(one))

    @on_store
    def retry(self, run_id: str) -> Work[None]:
        """Queue a failed or cancelled run durably again, for a worker or the same call to resume."""
        log = RunLog(self._context, run_id)
        while True:
            head, version = log.must()
            if head.status == "completed":
                raise InvalidInput(
                    f"The run {run_id!r} is completed. To repeat a part, fork it: agent.runs.fork({run_id!r}, NEW_ID, at=STEP)."
                )
            self._must_be_free(run_id)
            again = head._replace(
                status="queued", changed=self._kernel.now(), wake=None, waits=(), takeovers=0, deadline=None, failures=0
            )
            try:
                yield from commit_once(
                    self._kernel,
                    [Check(log.head_key, version), *self._unheld(log)],
                    [log.line(QUEUED, 0, None), *log.placed(again, head), *self._engine.notices.writes()],
                )
            except Conflict:
                yield Sleep(0.005)
            else:
                return

    @on_store
    def fork(
        self,
        run_id: str,
        new_id: str,
        *,
        at: str | None = None,
        occurrence: int | str = 1,
        args: Any = None,
        results: Mapping[Any, Any] | None = None,
    ) -> Work[RunInfo]:
        """Create a run durably with the recorded steps of this one before the step `at` (default: all of them).

        `occurrence` is the number or key of the step among those of its name. `args` replaces its arguments: a list the positional ones,
        a dict those keyword arguments. `results`
        replaces results of earlier steps, by name or (name, occurrence or key). The original does not change; the fork
        has its own idempotency keys. The run's own thread is forked too; a thread passed with thread= is not, pass it
        again. The fork is queued for a worker, or for the same call under the new id.
        """
        old, new = RunLog(self._context, run_id), RunLog(self._context, new_id)
        if old.id == new.id:
            raise InvalidInput(f"A fork needs another id than {run_id!r}; nothing was written.")
        if args is not None and not isinstance(args, list | tuple | dict):
            raise InvalidInput("args must be a list of the step's arguments, or a dict of its keyword arguments.")

        def conversation(upto: int) -> Work[None]:
            thread = Thread(self._engine.threads, run_id, user=None, ttl=None)
            try:
                yield from work_of(thread.fork)(new_id, upto)
            except NotFound:
                return  # deleted meanwhile

        yield from fork_run(
            old, new, at=at, occurrence=occurrence, args=args, results=results, fence=self._unheld,
            conversation=conversation, notify=self._engine.notices.writes,
        )  # fmt: skip
        head, _ = new.must()
        return RunInfo(**listed(new.id, head, held=False))

    def _span(self, run_id: str) -> tuple[int, int] | None:
        """Return the first and last line of a run; None if there is none."""
        log = RunLog(self._context, run_id)
        head, _ = log.head()
        return None if head is None or head.status == "deleting" else (head.first, log.last())

    @on_store
    def delete(self, run_id: str) -> Work[bool]:
        """Delete a run and its log durably, but not its thread; return whether it existed. `RunBusy` while it runs."""
        log, lease = RunLog(self._context, run_id), self._lease(run_id)
        return (yield from delete_run(log, lease._holder, self._unheld, lease._token_key))

    def _lease(self, run_id: str) -> Lease:
        return Lease(self._context, self._engine.renewer, run_id, kind="run", ttl=TTL, wait=None)

    def _must_be_free(self, run_id: str) -> None:
        holder = self._lease(run_id)._holder()
        if holder is not None:
            raise RunBusy(
                f"The run {run_id!r} is executed by {holder}; nothing was written. Wait until it is done, or call agent.runs.cancel({run_id!r})."
            )

    def _unheld(self, log: RunLog) -> Sequence[AnyCheck]:
        """Return the check that no process opens the run meanwhile."""
        token = self._kernel.read([self._lease(log.id)._token_key])[0]
        return [Check(self._lease(log.id)._token_key, token.version if token is not None else 0)]

    @on_store
    def stop_recurring(self, name: str, function: str) -> Work[bool]:
        """Delete the schedule of a durable function; return whether it existed. Runs already queued stay."""
        return (yield from schedules.end(self._context, prefix(function), name))

    def recover(self) -> dict[str, str]:
        """Resume the registered runs that are interrupted or due; return the outcome of each when all end or pause."""
        source = RunSource(self._engine, self._functions, recover=True)
        worker = Worker(self._kernel, source, poll=0.02, until_empty=True, stop=None)
        work(worker, IDLE_CLOCK, concurrency=4, grace=0.0, on_signal=False)
        return source.outcomes

    def work(
        self,
        *,
        concurrency: int = 4,
        poll: Duration = 0.25,
        grace: Duration = 30,
        stop: Stop | None = None,
        on_signal: bool = False,
    ) -> None:
        """Work: execute registered runs that are queued, interrupted or due, until `stop` is set; escalate and notify too.

        Then runs finish their step in flight and return to the queue; after `grace` seconds they are abandoned to
        other workers. With `on_signal`, SIGTERM and SIGINT stop the worker.
        """
        source = RunSource(self._engine, self._functions)
        worker = Worker(
            self._kernel, source, poll=seconds(poll, "poll"), until_empty=False, stop=stop, chores=self._chores
        )
        work(worker, IDLE_CLOCK, concurrency=concurrency, grace=seconds(grace, "grace"), on_signal=on_signal)


def _emitted(log: RunLog, entry: Entry) -> list[Emitted | None]:
    """Return the value that a line emits, if any; None if it is the last line of an ended run."""
    if entry.forgotten:
        return []
    _, _, kind, _, data, *_ = codec.decode(entry.value, log.blobs.find)
    at = moment(entry.written_at)
    if kind == EMITTED:
        return [Emitted(entry.number, data[0], at, data[1])]
    if kind == RESULT and data[0] is not None and data[0][0] == "emit":
        return [Emitted(entry.number, data[2], at, 0)]
    if kind == FAILED and data.get("again") is not None:  # a worker retries it
        return []
    return [None] if kind in (COMPLETED, FAILED, CANCELLED) and log.last() == entry.number else []
