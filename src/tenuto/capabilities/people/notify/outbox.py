"""The outbox: notifications that wait for delivery, written in the commit of the question's change.

Keys, below the tenant:

- `("notify", "outbox", milliseconds, id)`: a notification, and when to deliver it.
- `("notify", "dead", milliseconds, id)`: it was given up.
- `("notify", "rate", channel)`: how many went to a channel in the current window.

Delivery is claim, send, done. The claim is one commit that moves the entry to the end of its lease, so of several
replicas one sends it. After a crash between send and done it is sent again with the same id: at least once, and
receivers drop a second one by its id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.people import records
from tenuto.capabilities.people.notify.channels import Channel, channels_of, limit_of
from tenuto.capabilities.people.questions import Question
from tenuto.errors import Conflict, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Backend, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

_OUTBOX: Final = keys.pack("notify", "outbox")
_DEAD: Final = keys.pack("notify", "dead")
_RATE: Final = keys.pack("notify", "rate")
_LEASE: Final = 60.0
"""Seconds for one delivery; then another replica tries."""
ATTEMPTS: Final = 12
_FIRST, _LONGEST = 10.0, 3_600.0


class Notice(NamedTuple):
    """A notification in the outbox."""

    id: str
    name: str
    """The person or group."""
    channel: str
    """The id of the channel."""
    event: str
    question: str
    details: Any
    created_at: datetime
    due: datetime
    attempts: int = 0
    error: str | None = None

    @property
    def key(self) -> bytes:
        """Return its key in the outbox."""
        return _OUTBOX + keys.pack(int(self.due.timestamp() * 1000), self.id)

    @property
    def dead_key(self) -> bytes:
        """Return its key among the dead."""
        return _DEAD + keys.pack(int(self.due.timestamp() * 1000), self.id)


def notices(
    context: Context, question: Question, event: str, names: Sequence[str], details: Any, members: dict[str, Any]
) -> list[Write]:
    """Return the writes that notify people of a change: one for each channel, each address once."""
    now = moment(context.kernel.now())
    found: dict[str, Channel] = {}
    for name in names:
        for person in (name, *members.get(name, ())):
            for channel in channels_of(context.kernel, person):
                found.setdefault(channel.url, channel)
    return [
        _put(Notice(_id(question, event, channel), channel.name, channel.id, event, question.id, details, now, now))
        for channel in found.values()
    ]


def _id(question: Question, event: str, channel: Channel) -> str:
    identity = f"{question.id}\0{question.asked_at.timestamp()}\0{question.changes}\0{event}\0{channel.id}"
    return f"msg_{hashlib.sha256(identity.encode()).hexdigest()[:24]}"


def _put(notice: Notice) -> Put:
    return Put(notice.key, codec.encode(list(notice)))


def notice_of(record: Record) -> Notice:
    """Return the notification of a record."""
    return Notice(*codec.decode(record.value))


def waiting(kernel: Backend) -> list[Notice]:
    """Return the notifications that wait for delivery, the earliest first."""
    return [notice_of(record) for record in scan_all(kernel, _OUTBOX)]


def dead(kernel: Backend) -> list[Notice]:
    """Return the notifications that were given up, oldest first."""
    return [notice_of(record) for record in scan_all(kernel, _DEAD)]


def due(kernel: Backend, now: float, limit: int) -> list[Record]:
    """Return the records of the notifications that are due."""
    return [record for record in kernel.scan(_OUTBOX, limit=limit) if int(keys.unpack(record.key)[-2]) <= now * 1000]


def claim(
    context: Context, notice: Notice, version: int, channel: Channel | None, *, wait: bool = False
) -> Work[tuple[Notice, int] | None]:
    """Claim a notification for one delivery; None if another replica has it or the channel is over its rate.

    With `wait` it is put off for a minute instead, because its channel has just failed.
    """
    kernel = context.kernel
    now = kernel.now()
    checks: list[AnyCheck] = [Check(notice.key, version)]
    counted: list[Write] = []
    attempts, later = notice.attempts + (not wait), now + _LEASE
    if not wait and channel is not None and channel.rate is not None:
        most, length = limit_of(channel.rate)
        where = _RATE + keys.pack(channel.id)
        record = kernel.read([where])[0]
        begun, used = codec.decode(record.value) if record is not None else (now, 0)
        begun, used = (begun, used) if begun <= now < begun + length else (now, 0)
        if used >= most:
            attempts, later = notice.attempts, begun + length
        else:
            checks.append(Check(where, record.version if record is not None else 0))
            counted.append(Put(where, codec.encode([begun, used + 1])))
    moved = notice._replace(due=moment(later), attempts=attempts)
    try:
        done = yield from commit_once(kernel, checks, [_put(moved), Delete(notice.key), *counted])
    except Conflict:
        return None
    return (moved, done.versions[0]) if attempts > notice.attempts else None


def dropped(context: Context, notice: Notice, version: int) -> Work[None]:
    """Remove a notification whose question is gone."""
    yield from _settled(context, notice, version, [Delete(notice.key)])


def forget(context: Context, questions: Collection[str]) -> Work[None]:
    """Remove the notifications about these questions, which hold their details, also the dead ones."""
    for prefix in (_OUTBOX, _DEAD):
        for record in list(scan_all(context.kernel, prefix)):
            if notice_of(record).question in questions:
                yield from commit_once(context.kernel, [], [Delete(record.key)])


def sent(context: Context, notice: Notice, version: int) -> Work[None]:
    """Record that a notification was delivered, in the history of its question too."""
    details = {"to": notice.name, "event": notice.event, "id": notice.id, "attempts": notice.attempts}
    writes: list[Write] = [Delete(notice.key), records.note(context, notice.question, "notified", details)]
    yield from _settled(context, notice, version, writes)


def failed(context: Context, notice: Notice, version: int, why: str) -> Work[None]:
    """Put a notification back with a longer delay each time; after the last attempt it is dead."""
    now = context.kernel.now()
    delay = min(_FIRST * 2 ** (notice.attempts - 1), _LONGEST)
    failed = notice._replace(error=why[:500], due=moment(now + delay))
    if notice.attempts < ATTEMPTS:
        yield from _settled(context, notice, version, [_put(failed), Delete(notice.key)])
        return
    given_up = failed._replace(due=moment(now))
    details = {"to": notice.name, "event": notice.event, "id": notice.id, "error": why[:500]}
    buried = Put(given_up.dead_key, codec.encode(list(given_up)))
    lost = records.note(context, notice.question, "not delivered", details)
    yield from _settled(context, notice, version, [buried, Delete(notice.key), lost])


def _settled(context: Context, notice: Notice, version: int, writes: Sequence[Write]) -> Work[None]:
    unique = {write[0]: write for write in reversed(writes)}  # a retry at the same millisecond is a Put, no Delete
    try:
        yield from commit_once(context.kernel, [Check(notice.key, version)], list(unique.values()))
    except Conflict:
        return  # the lease ended, and another replica has it


def revive(context: Context, notice_id: str) -> Work[None]:
    """Put a dead notification back into the outbox, with all its attempts."""
    for record in scan_all(context.kernel, _DEAD):
        notice = notice_of(record)
        if notice.id == notice_id:
            again = notice._replace(due=moment(context.kernel.now()), attempts=0)
            yield from commit_once(
                context.kernel, [Check(record.key, record.version)], [_put(again), Delete(record.key)]
            )
            return
    raise NotFound(f"There is no dead notification {notice_id!r}. List them with agent.notify.dead().")
