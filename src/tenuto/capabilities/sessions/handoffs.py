"""Handoffs: structured work from one agent to another, accepted once.

Keys, below the tenant: `("handoffs", "record", id)` is a handoff with its status; `("handoffs", "pending", to,
order, id)` lists those that wait for a receiver; `("handoffs", "chain", correlation id, order, id)` lists those of one
chain; `(id, "handoff", "token")` and `(id, "handoff", "beat")` are the lease of the agent that has received it.

Sending, receiving, accepting, rejecting and withdrawing are one commit each; forwarding accepts one handoff and sends
the next in one commit. A receiver that dies before it has accepted loses its lease, and the handoff goes to another. A
stale receiver cannot accept: its commit checks the lease. A fork of the thread is made before the commit that sends;
after a crash between them the same key finds the fork again.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto.capabilities._core.base import Context, Timed, must_limit, page_after, scan_all
from tenuto.capabilities._core.renewal import Renewer
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.runs import current_step
from tenuto.capabilities.sessions import schemas
from tenuto.capabilities.threads import Thread, Threads
from tenuto.errors import Conflict, InvalidInput, NotFound, StaleLease, TimedOut
from tenuto.kernel import codec, correlation, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import backoff, commit_once, own_request
from tenuto.kernel.work import Sleep, Work, on_store, work_of

HandoffStatus = Literal["pending", "accepted", "rejected", "withdrawn"]
_RECORD: Final = keys.pack("handoffs", "record")
_PENDING: Final = keys.pack("handoffs", "pending")
_CHAIN: Final = keys.pack("handoffs", "chain")
_LONGEST: Final = 512


class HandoffInfo(NamedTuple):
    """A handoff with its status and answer."""

    id: str
    to: str
    sender: str
    status: HandoffStatus
    data: Any
    summary: str | None
    decisions: list[Any]
    open_questions: list[Any]
    ruled_out: list[Any]
    """What was tried and does not work."""
    thread: str | None
    correlation_id: str
    previous: str | None
    """The handoff that was forwarded to make this one."""
    deliveries: int
    """How often it was received."""
    sent_at: datetime
    answered_at: datetime | None
    by: str | None
    """The agent that accepted or rejected it."""
    reason: str | None
    """Why it was rejected or withdrawn."""


class _Sending(NamedTuple):
    info: HandoffInfo
    checks: list[AnyCheck]
    writes: list[Write]


class Handoff(Timed):
    """A received handoff, held until it is accepted, rejected, forwarded or released.

    Its lease is renewed in the background. The fields are those of `HandoffInfo`; `data` has the type of the schema.
    """

    def __init__(self, handoffs: Handoffs, info: HandoffInfo, version: int, lease: Lease, data: Any) -> None:
        self._handoffs = handoffs
        self._context = handoffs._context
        self._version = version
        self._lease = lease
        self._request: bytes | None = None
        self.info = info
        self.id = info.id
        self.sender = info.sender
        self.data = data
        self.summary = info.summary
        self.thread = info.thread
        self.correlation_id = info.correlation_id

    @property
    def redelivered(self) -> bool:
        """Return whether it was received before: an earlier receiver may have begun the work."""
        return self.info.deliveries > 1

    @property
    def lost(self) -> bool:
        """Return whether the lease is lost, so that another agent may receive the handoff."""
        return self._lease.lost

    @on_store
    def accept(self) -> Work[HandoffInfo]:
        """Accept the handoff durably, once; raise `StaleLease` if another agent has received it meanwhile."""
        return (yield from self._answer("accepted", None))

    @on_store
    def reject(self, reason: str) -> Work[HandoffInfo]:
        """Reject the handoff durably, with a reason for the sender."""
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInput("A rejection needs a reason for the sender; nothing was written. Pass it as text.")
        return (yield from self._answer("rejected", reason))

    @on_store
    def forward(  # noqa: PLR0913 - the words of the API
        self,
        to: str,
        data: Any,
        *,
        schema: Any = None,
        summary: str | None = None,
        decisions: Sequence[Any] = (),
        open_questions: Sequence[Any] = (),
        ruled_out: Sequence[Any] = (),
        thread: str | None = None,
    ) -> Work[HandoffInfo]:
        """Accept the handoff and send the next one of its chain, in one commit; return the next one.

        The thread of this handoff goes with it, unless another is given.
        """
        next_one = self._handoffs._prepare(
            to,
            data,
            schema,
            (summary, decisions, open_questions, ruled_out),
            thread or self.thread,
            _fitting(f"{self.id}>{keys.name(to, 'receiver')}"),
            self.info,
        )
        yield from self._answer("accepted", None, next_one)
        return next_one.info

    @on_store
    def release(self) -> Work[None]:
        """Give the handoff back durably, for another agent to receive at once."""
        yield from work_of(self._lease.release)()

    def _answer(self, status: HandoffStatus, reason: str | None, also: _Sending | None = None) -> Work[HandoffInfo]:
        now = self._context.kernel.now()
        info = self.info._replace(status=status, reason=reason, by=self._context.writer, answered_at=moment(now))
        checks: list[AnyCheck] = [Check(_RECORD + keys.pack(self.id), self._version)]
        writes: list[Write] = [_put(info), Delete(_pending_key(info))]
        if also is not None:
            checks, writes = [*checks, *also.checks], [*writes, *also.writes]
        if not self._lease.token:
            raise self._stale()
        self._request = self._request or own_request(now)
        try:
            yield from self._lease._release_with(checks, writes, self._request)
        except Conflict as error:
            raise self._stale() from error
        self.info = info
        return info

    def _stale(self) -> StaleLease:
        return StaleLease(
            f"The handoff {self.id!r} is no longer held here; nothing was written. Read its status with "
            f"agent.handoff.get({self.id!r})."
        )

    def __repr__(self) -> str:
        """Describe the handoff."""
        return f"<handoff {self.id!r} from {self.sender!r}: {self.info.status}>"


class Handoffs(Timed):
    """The handoffs of a tenant. Every method is atomic, and durable when it returns."""

    def __init__(self, context: Context, renewer: Renewer, threads: Threads) -> None:
        self._context = context
        self._kernel = context.kernel
        self._renewer = renewer
        self._threads = threads

    @on_store
    def send(  # noqa: PLR0913 - the words of the API
        self,
        to: str,
        data: Any,
        *,
        schema: Any = None,
        summary: str | None = None,
        decisions: Sequence[Any] = (),
        open_questions: Sequence[Any] = (),
        ruled_out: Sequence[Any] = (),
        thread: str | None = None,
        fork: bool = False,
        key: str | None = None,
    ) -> Work[HandoffInfo]:
        """Send data to the agent named `to`, durably; return the handoff.

        `schema` is a msgspec struct, dataclass, pydantic model or JSON Schema; data that does not fit raises
        `InvalidInput` with the field named. `thread` is the conversation to continue; with `fork` the receiver gets a
        copy as of now. The same `key` sends once; inside a step the default is the step's idempotency key.
        """
        name = keys.name(to, "receiver")
        inside = current_step.get()
        chosen = key if key is not None else None if inside is None else _fitting(f"{inside.key}>{name}")
        handoff_id = secrets.token_hex(8) if chosen is None else keys.name(chosen, "key")
        if thread is not None and fork:
            thread = yield from self._fork(thread, handoff_id)
        sending = self._prepare(
            name, data, schema, (summary, decisions, open_questions, ruled_out), thread, handoff_id, None
        )
        try:
            yield from commit_once(self._kernel, sending.checks, sending.writes)
        except Conflict:
            there = self.get(handoff_id)
            if key is None or _content(there) == _content(sending.info):
                return there
            raise Conflict(
                f"The key {key!r} was used for another handoff, to {there.to!r}; nothing was sent. Choose another key, or "
                f"read the first one with agent.handoff.get({key!r})."
            ) from None
        return sending.info

    @on_store
    def receive(
        self,
        schema: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        wait: Duration | None = None,
        lease: Duration = 10,
    ) -> Work[Handoff | None]:
        """Receive the oldest handoff to this agent, durably; return None if none comes within `wait`.

        The handoff is held by a lease, renewed in the background: if this process dies before `accept`, another agent
        of the name receives it. One that does not fit `schema` is rejected with the field named, and the next one is
        tried. With `id` that handoff is received, also if it is for another agent.
        """
        left = 0.0 if wait is None else seconds(wait, "wait")
        delays = backoff(first=0.01, most=0.25)
        while True:
            found = yield from self._claim(schema, id, lease)
            if found is not None or left <= 0:
                return found
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)

    def get(self, handoff_id: str) -> HandoffInfo:
        """Return a handoff; `NotFound` if there is none."""
        record = self._kernel.read([_RECORD + keys.named(handoff_id, "handoff")])[0]
        if record is None:
            raise NotFound(f"There is no handoff {handoff_id!r}. List them with agent.handoff.list().")
        return _info(record)

    def chain(self, correlation_id: str) -> list[HandoffInfo]:
        """Return the handoffs of a correlation id, in the order in which they were sent."""
        prefix = _CHAIN + keys.named(correlation_id, "correlation id")
        ids = [str(keys.unpack(one.key)[-1]) for one in scan_all(self._kernel, prefix)]
        return [self.get(one) for one in ids]

    def list(
        self,
        to: str | None = None,
        *,
        sender: str | None = None,
        status: HandoffStatus | None = None,
        limit: int = 1_000,
        after: str | None = None,
    ) -> list[HandoffInfo]:
        """Return up to `limit` handoffs, oldest first: all, or those to a receiver, of a sender, or of a status.

        They start after the handoff with the id `after`.
        """
        must_limit(limit)
        if status is not None and status not in get_args(HandoffStatus):
            raise InvalidInput(f"status must be one of {', '.join(get_args(HandoffStatus))}, not {status!r}.")
        found = [
            info
            for info in map(_info, scan_all(self._kernel, _RECORD))
            if to in (None, info.to) and sender in (None, info.sender) and status in (None, info.status)
        ]
        return page_after(sorted(found, key=lambda info: (info.sent_at, info.id)), lambda info: info.id, after, limit)

    @on_store
    def outcome(self, handoff_id: str, *, wait: Duration | None = None) -> Work[HandoffInfo]:
        """Return a handoff that was answered, waiting up to `wait`; `TimedOut` if it is still pending."""
        left = 0.0 if wait is None else seconds(wait, "wait")
        delays = backoff(first=0.01, most=0.25)
        while (info := self.get(handoff_id)).status == "pending":
            if left <= 0:
                raise TimedOut(f"The handoff {handoff_id!r} is still pending. Wait for it with wait=.")
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)
        return info

    @on_store
    def withdraw(self, handoff_id: str, reason: str | None = None) -> Work[bool]:
        """Withdraw a pending handoff durably; return False if it was answered. A receiver gets `StaleLease`."""
        delays = backoff()
        while True:
            record = self._kernel.read([_RECORD + keys.named(handoff_id, "handoff")])[0]
            info = self.get(handoff_id) if record is None else _info(record)
            if record is None or info.status != "pending":
                return False
            gone = info._replace(
                status="withdrawn", reason=reason, by=self._context.writer, answered_at=moment(self._kernel.now())
            )
            try:
                yield from commit_once(
                    self._kernel, [Check(record.key, record.version)], [_put(gone), Delete(_pending_key(info))]
                )
            except Conflict:
                yield Sleep(next(delays))
            else:
                return True

    # -- parts -----------------------------------------------------------------------------------------------------

    def _prepare(
        self,
        to: str,
        data: Any,
        schema: Any,
        notes: tuple[str | None, Sequence[Any], Sequence[Any], Sequence[Any]],
        thread: str | None,
        handoff_id: str,
        previous: HandoffInfo | None,
    ) -> _Sending:
        """Validate a handoff; return it with the checks and writes that send it."""
        summary, decisions, open_questions, ruled_out = notes
        if not all(isinstance(one, list | tuple) for one in (decisions, open_questions, ruled_out)):
            raise InvalidInput(
                "decisions, open_questions and ruled_out must be lists of texts or data; nothing was sent."
            )
        given = correlation.current()
        chain = previous.correlation_id if previous is not None else given or secrets.token_hex(8)
        now = self._kernel.now()
        if previous is not None:  # a chain is listed in its order, whatever the clock says
            now = max(now, previous.sent_at.timestamp() + 0.000_01)
        info = HandoffInfo(
            handoff_id,
            keys.name(to, "receiver"),
            self._context.writer,
            "pending",
            schemas.stored(data, schema),
            summary,
            schemas.stored([*decisions], None),
            schemas.stored([*open_questions], None),
            schemas.stored([*ruled_out], None),
            None if thread is None else keys.name(thread, "thread"),
            chain,
            None if previous is None else previous.id,
            0,
            moment(now),
            None,
            None,
            None,
        )
        order = _order(info)
        mark = codec.encode(None)
        writes: list[Write] = [
            _put(info),
            Put(_pending_key(info), mark),
            Put(_CHAIN + keys.pack(chain, order, handoff_id), mark),
        ]
        return _Sending(info, [Check(_RECORD + keys.pack(handoff_id), 0)], writes)

    def _fork(self, thread: str, handoff_id: str) -> Work[str]:
        """Fork a thread for a handoff, once; return the fork's id."""
        forked = _fitting(f"{keys.name(thread, 'thread')}:{handoff_id}")
        with contextlib.suppress(Conflict):  # made before a crash, or by a call with the same key
            yield from work_of(Thread(self._threads, thread, user=None, ttl=None).fork)(forked)
        return forked

    def _claim(self, schema: Any, wanted: str | None, ttl: Duration) -> Work[Handoff | None]:
        """Hold the first handoff that is free and valid."""
        for record in self._candidates(wanted):
            info = _info(record)
            lease = Lease(self._context, self._renewer, info.id, kind="handoff", ttl=ttl, wait=None)
            if info.status != "pending" or lease._holder() is not None:
                continue
            taken = info._replace(deliveries=info.deliveries + 1)
            done = yield from lease._attempt([Check(record.key, record.version)], [_put(taken)])
            if done is None:
                continue  # another receiver was faster
            lease._start_renewing()
            handoff = Handoff(self, taken, done.versions[2], lease, None)
            try:
                handoff.data = schemas.typed(taken.data, schema)
            except schemas.Invalid as error:
                yield from handoff._answer("rejected", f"{error}, by the receiver's schema {schemas.name_of(schema)}")
            except BaseException:
                yield from work_of(lease.release)()
                raise
            else:
                return handoff
        return None

    def _candidates(self, wanted: str | None) -> Iterator[Record]:
        """Yield the records of pending handoffs to this agent, oldest first, or the one that is wanted."""
        if wanted is not None:
            self.get(wanted)
            ids = [wanted]
        else:
            prefix = _PENDING + keys.named(self._context.writer, "name")
            ids = [str(keys.unpack(one.key)[-1]) for one in scan_all(self._kernel, prefix)]
        for one in ids:
            record = self._kernel.read([_RECORD + keys.pack(one)])[0]
            if record is not None:
                yield record


def _fitting(name: str) -> str:
    """Return a name that is made of others; of one that is too long a digest and its end."""
    if len(name) <= _LONGEST:
        return name
    return f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}{name[-64:]}"


def _order(info: HandoffInfo) -> int:
    return int(info.sent_at.timestamp() * 1_000_000)


def _pending_key(info: HandoffInfo) -> bytes:
    return _PENDING + keys.pack(info.to, _order(info), info.id)


def _put(info: HandoffInfo) -> Put:
    return Put(_RECORD + keys.pack(info.id), codec.encode(list(info)))


def _info(record: Record) -> HandoffInfo:
    return HandoffInfo(*codec.decode(record.value))


def _content(info: HandoffInfo) -> bytes:
    """Return what two sends of one key must have in common."""
    parts = (info.to, info.data, info.summary, info.decisions, info.open_questions, info.ruled_out, info.thread)
    return codec.encode(list(parts))
