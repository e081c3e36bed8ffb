"""How runs are forked and deleted: the two things that are done to a whole log.

A fork copies what the original had done before a step into the log of another run, some lines a commit, and is there
when the last commit writes its head: a crash before that leaves lines that belong to no run. The run's own
conversation is forked before, as a thread: a crash behind it leaves a thread, and the id is taken. Each commit checks
that the log is as the one before left it, so two forks into one id do not mix.

Deleting first writes into the head that the run is being deleted, and takes the lease from whoever has it: from
then on it is not there for anybody. Then the lines are forgotten, some a commit, with their references to large
parts; the head goes in the last one. Whoever finds a deletion that was cut off brings it to its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tenuto.capabilities import outcomes
from tenuto.capabilities.runlog import (
    AGAIN,
    ERROR,
    INTENT,
    PLAIN,
    QUEUED,
    RESULT,
    STARTED,
    WAITS,
    Head,
    Op,
    RunLog,
    Told,
    references,
    user_key,
)
from tenuto.errors import Conflict, InvalidInput, NotFound, RunBusy
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Delete, Forget, Put, Write
from tenuto.kernel.transact import Steps, backoff, settle

_SOME: Final = 200
_ABOUT: Final = frozenset({INTENT, AGAIN, RESULT, ERROR, WAITS})
Step = tuple[str, int | str]
"""A step by its name and occurrence, or by its name and key."""


def named_steps(told: Told) -> dict[int, list[Step]]:
    """Return by which names each step of a run can be meant: name and occurrence, name and key."""
    counts: dict[str, int] = {}
    found: dict[int, list[Step]] = {}
    for n in sorted(told.ops):
        identity = told.ops[n].identity
        counts[identity.name] = counts.get(identity.name, 0) + 1
        found[n] = [(identity.name, counts[identity.name])]
        if identity.key is not None:
            found[n].append((identity.name, identity.key))
    return found


def _meant(told: Told, given: Mapping[Any, Any], run_id: str) -> dict[int, Any]:
    """Return what was given for steps, by their numbers."""
    by_name = {step: n for n, steps in named_steps(told).items() for step in steps}
    found: dict[int, Any] = {}
    for which, value in given.items():
        step: Any = (which, 1) if isinstance(which, str) else which
        if step not in by_name:
            raise NotFound(
                f"The run {run_id!r} has no step {which!r} on record. See which it has with agent.runs.get({run_id!r}).steps."
            )
        found[by_name[step]] = value
    return found


def fork(  # noqa: C901, PLR0913 - what a fork is made of, one check after the other
    old: RunLog,
    new: RunLog,
    *,
    at: str | None,
    occurrence: int | str,
    args: tuple[Any, ...] | list[Any] | None,
    results: Mapping[Any, Any] | None,
    fence: Callable[[RunLog], Sequence[AnyCheck]],
    conversation: Callable[[int], Steps[None]],
) -> Steps[None]:
    """Let another run begin with what this one had done before a step; this one stays as it is.

    `conversation` is called, before anything is written, with how many messages of the run's own thread come along.
    """
    head, _ = old.must()
    told = old.told(head.first)
    cut = told.next
    if at is not None:
        cut = next((n for n, steps in named_steps(told).items() if (at, occurrence) in steps), 0)
        if not cut:
            raise NotFound(
                f"The run {old.id!r} has no step {at!r} number {occurrence!r} on record. See which it "
                f"has with agent.runs.get({old.id!r}).steps."
            )
    elif args is not None:
        raise InvalidInput("args= are those of the step at=; say which: at=STEP.")
    instead = _meant(told, results or {}, old.id)
    if any(n >= cut for n in instead):
        raise InvalidInput(f"results= are those of steps before {at!r}; that one and the rest run anew.")
    other, version = new.head()
    if other is not None and other.status != "deleting":
        raise Conflict(f"There is a run {new.id!r} already; nothing was written. Fork into another id.")
    if other is not None:
        yield from clear(new, other, version)
    said = [op.value[1] for n, op in told.ops.items() if n < cut and _speaks(op, old.id)]
    if said:
        yield from conversation(max(said))
    now = new.context.kernel.now()
    last = new.last()
    started = {
        **told.started,
        "uid": secrets.token_bytes(16),
        "parent": None,
        "forked": [old.id, at],
        "instead": {} if args is None else {"name": at, "args": list(args), "from": _after(told, cut)},
    }
    fresh = Head("queued", head.fn, head.user, None, now, now, last + 1, deadline=None)
    lines: list[tuple[Append, set[bytes]]] = [(new.line(STARTED, 0, started), set())]
    lines += _copied(old, new, head.first, cut, told, instead)
    lines.append((new.line(QUEUED, 0, None), set()))
    for start in range(0, len(lines), _SOME):
        some = lines[start : start + _SOME]
        ends = start + _SOME >= len(lines)
        final: list[Write] = []
        if ends:
            final = new.placed(fresh)
            if fresh.user is not None:
                final.append(Put(user_key(fresh.user, new.id), codec.encode(None)))
        yield from _added(new, some, last, final, fence(new) if ends else [])
        last += len(some)


def _speaks(op: Op, thread: str) -> bool:
    """Tell whether this added messages to a thread."""
    return op.identity.kind == "thread" and op.state == "done" and op.value[2] == thread


def _after(told: Told, cut: int) -> int:
    """Return the number that the first new thing of a fork will have at least."""
    return max((n for n in told.ops if n < cut), default=0) + 1


def _copied(
    old: RunLog, new: RunLog, first: int, cut: int, told: Told, instead: dict[int, Any]
) -> list[tuple[Append, set[bytes]]]:
    found: list[tuple[Append, set[bytes]]] = []
    replaced: set[int] = set()
    for entry in old.entries(first):
        if entry.forgotten:
            continue
        _, _, kind, n, *_ = codec.decode(entry.value)
        if kind not in _ABOUT or not 0 < n < cut:
            continue
        if n in instead:
            if n not in replaced:
                replaced.add(n)
                found.append((_given(new, told.ops[n], instead[n]), set()))
        elif told.ops[n].state in ("done", "error") or kind == WAITS:
            found.append((Append(new.own, entry.value), references(entry)))
    return found


def _given(new: RunLog, op: Op, result: Any) -> Append:
    value, lowered = outcomes.kept(result)
    return new.line(RESULT, op.n, [op.identity.stored(), int(lowered) or PLAIN, value, False, 0.0, [], False])


def _added(
    log: RunLog, some: list[tuple[Append, set[bytes]]], last: int, final: list[Write], fence: Sequence[AnyCheck]
) -> Steps[None]:
    by: dict[bytes, int] = {}
    for _, held in some:
        for digest in held:
            by[digest] = by.get(digest, 0) + 1
    for delay in backoff(None, most=0.02):
        checks, counted = log.blobs.counted(by)
        try:
            yield from settle(
                log.context.kernel,
                [CheckEnd(log.own, last), Check(log.head_key, 0), *checks, *fence],
                [*(line for line, _ in some), *counted, *final],
            )
        except Conflict as error:
            if log.own in error.keys or log.head_key in error.keys:
                raise Conflict(f"Somebody else has begun a run {log.id!r} meanwhile. Fork into another id.") from error
            yield delay
        else:
            return


def delete(
    log: RunLog, held_by: Callable[[], str | None], fence: Callable[[RunLog], Sequence[AnyCheck]], token: bytes
) -> Steps[bool]:
    """Delete a run and all that it has recorded; tell whether it was there. `RunBusy` if somebody has it in hand."""
    while True:
        head, version = log.head()
        if head is None:
            return False
        if head.status == "deleting":
            yield from clear(log, head, version)
            return True
        holder = held_by()
        if holder is not None:
            raise RunBusy(
                f"The run {log.id!r} is in the hands of {holder}. Wait until it is done, or call "
                f"agent.runs.cancel({log.id!r}) first."
            )
        gone = head._replace(status="deleting", changed=log.context.kernel.now())
        writes: list[Write] = [*log.placed(gone), Put(token, codec.encode(None))]
        if head.user is not None:
            writes.append(Delete(user_key(head.user, log.id)))
        try:
            yield from settle(log.context.kernel, [Check(log.head_key, version), *fence(log)], writes)
        except Conflict:
            yield 0.005


def clear(log: RunLog, head: Head, version: int) -> Steps[None]:
    """Bring a deletion to its end."""
    kernel = log.context.kernel
    first = head.first
    while True:
        page = kernel.entries(log.own, after=first - 1, limit=_SOME)
        by: dict[bytes, int] = {}
        for entry in page:
            for digest in references(entry):
                by[digest] = by.get(digest, 0) - 1
        checks, counted = log.blobs.counted(by)
        writes: list[Write] = [*counted]
        if page:
            first = page[-1].number + 1
            writes += [Forget(log.own, page[0].number, page[-1].number), *log.placed(head._replace(first=first))]
        else:
            below = kernel.scan(log.own, limit=900)
            ours = [one.key for one in below if keys.unpack(one.key)[-2] in ("signal", "child")]
            writes += [Delete(log.head_key), Delete(log.open_key), *(Delete(key) for key in ours)]
        try:
            done = yield from settle(kernel, [Check(log.head_key, version), *checks], writes)
        except Conflict:
            yield 0.005  # another is at it, or a reference was counted meanwhile
            again, version = log.head()
            if again is None or again.status != "deleting":
                return
            head, first = again, again.first
            continue
        if not page:
            return
        version = done.versions[len(counted) + 1]
