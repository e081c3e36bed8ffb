"""Milestones: due dates that are met with evidence, or missed with a consequence, once.

Keys, below the tenant: `("milestones", "milestone", name)` is a milestone, and `("milestones", "due", milliseconds, name)` says
when it is due; the stream `("milestones", "log", name)` is its history. Meeting and missing check the milestone's version, so
one of them comes first. A miss asks its question in the same commit. A playbook or a durable function is started after that
commit, as a workflow or run with a fixed id, and the milestone stays in the index of what is due until then: after a crash it
is started once. If it cannot be started, people are asked instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto.capabilities._core.base import Context, Timed, must_limit, scan_all, stamp
from tenuto.capabilities._core.firing import fire_each
from tenuto.capabilities._core.values import plain
from tenuto.capabilities.people.asking import AskOptions, new_question
from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.questions import Question, QuestionEvent
from tenuto.capabilities.people.times import When, WorkingTime, is_length, time_of
from tenuto.errors import Closed, Conflict, InvalidInput, NotFound, StorageUnavailable, TenutoError
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Check, Delete, Put, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store

MilestoneStatus = Literal["pending", "met", "missed", "met late", "cancelled"]
_STATUSES: Final = get_args(MilestoneStatus)
_MILESTONE: Final = keys.pack("milestones", "milestone")
_DUE: Final = keys.pack("milestones", "due")
_LOG: Final = keys.pack("milestones", "log")
Start = Callable[[str, str, dict[str, Any]], Work[Any]]
"""Starts a playbook or a durable function by name, as the workflow or run of this id, unless there is one."""


class Milestone(NamedTuple):
    """A due date, what happens if it is missed, and its outcome."""

    name: str
    due: datetime
    status: MilestoneStatus
    evidence: Any
    on_miss: dict[str, Any] | str | None
    context: Any
    met_at: datetime | None
    missed_at: datetime | None
    started: str | None
    """The question, workflow or run that the miss started."""
    by: str | None
    starting: bool = False
    """It was missed, and what the miss starts is still to be started."""


class Milestones(Timed):
    """The milestones of a tenant. Every method is atomic, durable when it returns, and thread-safe."""

    def __init__(self, context: Context, inbox: Inbox) -> None:
        self._context = context
        self._kernel = context.kernel
        self._inbox = inbox
        self._start: dict[str, Start] = {}
        """Starts "playbook" and "function"; set by the client, as playbooks and runs build on people."""

    def _set(
        self,
        name: str,
        due: When,
        on_miss: Any = None,
        context: Any = None,
        calendar: WorkingTime | None = None,
    ) -> Work[Milestone]:
        """Set a milestone durably; the same call again returns the stored one, another date replaces it."""
        now = self._kernel.now()
        before, _ = self._look(keys.name(name, "milestone"))
        at = time_of(due, now if is_length(due) else 0.0, calendar, "due date")
        if before is None or before.due != moment(at):  # the same call after a restart may come after the date
            at = time_of(due, now, calendar, "due date")
        miss = self._consequence(on_miss, at)
        fresh = Milestone(
            name, moment(at), "pending", None, miss, plain(context, "context"),
            None, None, None, None,
        )  # fmt: skip
        delays = backoff()
        while True:
            old, version = self._look(name)
            if old is not None and is_length(due):
                fresh = fresh._replace(due=old.due)  # a restart with due="30d" does not postpone it
            if old == fresh or (old is not None and old.status != "pending" and old.due == fresh.due):
                return old
            if old is not None and old.status != "pending":
                raise Conflict(f"The milestone {name!r} is {old.status}. Use another name for the next one.")
            if (yield from self._stored(old, version, fresh, "set", {"due": fresh.due})):
                return fresh
            yield Sleep(next(delays))

    def _consequence(self, on_miss: Any, due: float) -> dict[str, Any] | str | None:
        """Return what a miss starts, validated: a question's options, a playbook, or the name of a durable function."""
        if on_miss is None or (isinstance(on_miss, str) and on_miss):
            return on_miss
        named = getattr(on_miss, "name", None)
        if hasattr(on_miss, "start") and isinstance(named, str):
            return named
        if hasattr(on_miss, "steps") and isinstance(named, str):
            return {"playbook": named}
        if isinstance(on_miss, dict) and set(on_miss) == {"playbook"}:
            return {"playbook": keys.name(on_miss["playbook"], "playbook")}
        if not isinstance(on_miss, dict) or not isinstance(on_miss.get("question"), str):
            raise InvalidInput(
                'on_miss must be {"playbook": NAME}, a playbook, {"question": "…", "to": …}, or a durable function.'
            )
        options: Any = {name: value for name, value in on_miss.items() if name != "question"}
        try:
            new_question("miss", on_miss["question"], due, **options)
        except TypeError as error:
            raise InvalidInput(f"on_miss has an unknown option: {error}. Nothing was stored.") from error
        return dict(on_miss)

    @on_store
    def meet(self, name: str, *, evidence: Any = None, by: str | None = None) -> Work[Milestone]:
        """Record durably that a milestone was met, with evidence; after its due date it is recorded as late."""
        delays = backoff()
        while True:
            old, version = self._found(name)
            if old.status not in ("pending", "missed"):
                raise Conflict(f"The milestone {name!r} is already {old.status}; nothing was written.")
            now = self._kernel.now()
            late = old.status == "missed" or now > old.due.timestamp()
            new = old._replace(
                status="met late" if late else "met", evidence=plain(evidence, "evidence"), met_at=moment(now), by=by
            )
            if (yield from self._stored(old, version, new, new.status, {"evidence": new.evidence}, by)):
                return new
            yield Sleep(next(delays))

    @on_store
    def cancel(self, name: str, *, by: str | None = None) -> Work[Milestone]:
        """Cancel a milestone durably: it can no longer be missed."""
        delays = backoff()
        while True:
            old, version = self._found(name)
            if old.status != "pending":
                raise Conflict(f"The milestone {name!r} is already {old.status}; nothing was written.")
            new = old._replace(status="cancelled", by=by)
            if (yield from self._stored(old, version, new, "cancelled", None, by)):
                return new
            yield Sleep(next(delays))

    def get(self, name: str) -> Milestone:
        """Return a milestone; `NotFound` if there is none."""
        return self._found(name)[0]

    def list(self, status: MilestoneStatus | None = None) -> list[Milestone]:
        """Return milestones by due date: all, or those of one status."""
        if status is not None and status not in _STATUSES:
            raise InvalidInput(f"status must be one of {', '.join(_STATUSES)}, or None; not {status!r}.")
        found = [Milestone(*codec.decode(record.value)) for record in scan_all(self._kernel, _MILESTONE)]
        return sorted((one for one in found if status in (None, one.status)), key=lambda one: one.due)

    def history(self, name: str) -> Sequence[QuestionEvent]:
        """Return everything that happened to a milestone, oldest first."""
        self._found(name)
        found: list[QuestionEvent] = []
        for entry in self._kernel.entries(_LOG + keys.pack(name), limit=1_000):
            writer, correlation_id, what, by, details = codec.decode(entry.value)
            found.append(QuestionEvent(moment(entry.written_at), what, by, details, writer, correlation_id))
        return found

    @on_store
    def fire(self, *, limit: int = 100) -> Work[int]:
        """Miss the milestones that are past due, each once across replicas; return how many. Workers do this too."""
        must_limit(limit)
        return (yield from fire_each(self._due(limit), self._fire))

    def _due(self, limit: int) -> Sequence[str]:
        """Return the names of milestones that are past due, the earliest first."""
        found: list[str] = []
        for record in self._kernel.scan(_DUE, limit=limit):
            at, name = keys.unpack(record.key)[-2:]
            if int(at) > self._kernel.now() * 1000:
                break
            found.append(str(name))
        return found

    def _fire(self, name: str) -> Work[int]:
        """Miss a milestone, and start what the miss starts; return 1 if this call missed it."""
        milestone, version = self._look(name)
        count = 0
        if milestone is not None and milestone.status == "pending":
            count = yield from self._miss(milestone, version)
            milestone, version = self._look(name)
        if milestone is not None and milestone.starting:
            yield from self._begin(milestone, version)
        return count

    def _miss(self, old: Milestone, version: int) -> Work[int]:
        now = self._kernel.now()
        if now < old.due.timestamp():
            return 0
        started: str | None = None
        checks: Sequence[AnyCheck] = ()
        writes: Sequence[Write] = ()
        starting = _starts(old.on_miss)
        if old.on_miss is not None:
            started = _started_id(old)
        if isinstance(old.on_miss, dict) and not starting:
            question, checks, writes = self._asked(old, old.on_miss)
            started = question.id
        new = old._replace(status="missed", missed_at=moment(now), started=started, starting=starting)
        return int((yield from self._stored(old, version, new, "missed", {"started": started}, None, checks, writes)))

    def _asked(
        self, milestone: Milestone, on_miss: dict[str, Any]
    ) -> tuple[Question, Sequence[AnyCheck], Sequence[Write]]:
        """Return the question of a miss, and what asks it."""
        options: AskOptions = {name: value for name, value in on_miss.items() if name != "question"}  # type: ignore[assignment]
        deadline = options.get("deadline")
        if deadline is not None and not is_length(deadline) and time_of(deadline, 0.0) <= self._kernel.now():
            # It passed before a worker noticed the miss: people get the time that they would have had.
            options["deadline"] = max(time_of(deadline, 0.0) - milestone.due.timestamp(), 60.0)
        context = {"milestone": milestone.name, "due": milestone.due, "context": milestone.context, **_context(options)}
        given: AskOptions = {**options, "context": context, "about": options.get("about") or milestone.name}
        return self._inbox._opening(options.get("key") or _started_id(milestone), on_miss["question"], given)

    def _begin(self, old: Milestone, version: int) -> Work[None]:
        """Start the playbook or durable function of a miss, and record that; ask people if it cannot be started."""
        kind, what = (
            ("function", old.on_miss) if isinstance(old.on_miss, str) else ("playbook", (old.on_miss or {})["playbook"])
        )
        started = str(old.started)
        checks: Sequence[AnyCheck] = ()
        writes: Sequence[Write] = ()
        details: dict[str, Any] = {"started": started}
        new = old._replace(starting=False)
        try:
            yield from self._start[kind](what, started, {"name": old.name, "due": old.due, "context": old.context})
        except (Closed, StorageUnavailable):
            raise
        except TenutoError as error:
            text = f"The milestone {old.name} was missed, and its {kind} {what} could not be started: {error}"
            question, checks, writes = self._asked(old, {"question": text})
            details = {"started": question.id, "problem": str(error)}
            new = new._replace(started=question.id)
        yield from self._stored(old, version, new, "started", details, None, checks, writes)

    def _stored(  # noqa: PLR0913 - what one change consists of
        self,
        old: Milestone | None,
        version: int,
        new: Milestone,
        what: str,
        details: Any,
        by: str | None = None,
        checks: Sequence[AnyCheck] = (),
        more: Sequence[Write] = (),
    ) -> Work[bool]:
        """Write a milestone, its place in the index and its history in one commit; False if it has changed."""
        where = _MILESTONE + keys.pack(new.name)
        writes: list[Write] = [Put(where, codec.encode(list(new)))]
        before, after = _due_key(old), _due_key(new)
        if before != after:
            writes += [Delete(before)] if before is not None else []
            writes += [Put(after, codec.encode(None))] if after is not None else []
        writes.append(Append(_LOG + keys.pack(new.name), codec.encode([*stamp(self._context), what, by, details])))
        try:
            yield from commit_once(self._kernel, [Check(where, version), *checks], [*writes, *more])
        except Conflict:
            return False
        return True

    def _found(self, name: str) -> tuple[Milestone, int]:
        found, version = self._look(keys.name(name, "milestone"))
        if found is None:
            raise NotFound(f"There is no milestone {name!r}. List them with agent.milestones.list().")
        return found, version

    def _look(self, name: str) -> tuple[Milestone | None, int]:
        record = self._kernel.read([_MILESTONE + keys.pack(name)])[0]
        return (None, 0) if record is None else (Milestone(*codec.decode(record.value)), record.version)


def _due_key(milestone: Milestone | None) -> bytes | None:
    if milestone is None or not (milestone.status == "pending" or milestone.starting):
        return None
    return _DUE + keys.pack(int(milestone.due.timestamp() * 1000), milestone.name)


def _starts(on_miss: dict[str, Any] | str | None) -> bool:
    """Return whether a miss starts a playbook or a durable function."""
    return isinstance(on_miss, str) or (on_miss is not None and "playbook" in on_miss)


def _started_id(milestone: Milestone) -> str:
    """Return the id of what a miss starts: fixed, so that it is started once."""
    return f"milestone:{milestone.name}:{int(milestone.due.timestamp())}"


def _context(options: AskOptions) -> dict[str, Any]:
    given = options.get("context")
    return {} if given is None else {"details": given}
