"""Forking a run: a new run starts with the recorded steps before a given one.

Lines are copied in several commits; the fork exists once the last one writes its head. A crash before that leaves
lines that belong to no run. The run's own thread is forked first: a crash after it leaves a thread with the new id.
Each commit checks the end of the new log, so two forks into one id do not mix.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tenuto.capabilities.runs.delete import clear
from tenuto.capabilities.runs.log import (
    AGAIN,
    ERROR,
    INTENT,
    PLAIN,
    QUEUED,
    RESULT,
    STARTED,
    WAITS,
    Head,
    History,
    Op,
    RunLog,
    references,
    user_key,
)
from tenuto.capabilities.runs.results import to_stored
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Put, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work

_SOME: Final = 200
_ABOUT: Final = frozenset({INTENT, AGAIN, RESULT, ERROR, WAITS})
Step = tuple[str, int | str]
"""A step by its name and occurrence, or by its name and key."""


def named_steps(history: History) -> dict[int, list[Step]]:
    """Return for each step number how it can be named: by name and occurrence, or name and key."""
    counts: dict[str, int] = {}
    found: dict[int, list[Step]] = {}
    for n in sorted(history.ops):
        identity = history.ops[n].identity
        counts[identity.name] = counts.get(identity.name, 0) + 1
        found[n] = [(identity.name, counts[identity.name])]
        if identity.key is not None:
            found[n].append((identity.name, identity.key))
    return found


def _meant(history: History, given: Mapping[Any, Any], run_id: str) -> dict[int, Any]:
    """Return the values given for steps, by step number."""
    by_name = {step: n for n, steps in named_steps(history).items() for step in steps}
    found: dict[int, Any] = {}
    for which, value in given.items():
        step: Any = (which, 1) if isinstance(which, str) else which
        if step not in by_name:
            raise NotFound(
                f"The run {run_id!r} has no recorded step {which!r}. List its steps with agent.runs.get({run_id!r}).steps."
            )
        found[by_name[step]] = value
    return found


def fork_run(  # noqa: C901, PLR0913 - the options of a fork, one check after the other
    old: RunLog,
    new: RunLog,
    *,
    at: str | None,
    occurrence: int | str,
    args: tuple[Any, ...] | list[Any] | dict[str, Any] | None,
    results: Mapping[Any, Any] | None,
    fence: Callable[[RunLog], Sequence[AnyCheck]],
    conversation: Callable[[int], Work[None]],
    notify: Callable[[], list[Write]],
) -> Work[None]:
    """Create a run with the recorded steps of this one before the step `at`, durably; this one does not change.

    `conversation` is called before the first write, with the number of messages of the run's own thread to fork;
    `notify` returns the write that notifies idle workers.
    """
    head, _ = old.must()
    history = old.read(head.first)
    cut = history.next
    if at is not None:
        cut = next((n for n, steps in named_steps(history).items() if (at, occurrence) in steps), 0)
        if not cut:
            raise NotFound(
                f"The run {old.id!r} has no recorded step {at!r} number {occurrence!r}. List its steps with "
                f"agent.runs.get({old.id!r}).steps."
            )
    elif args is not None:
        raise InvalidInput("args= needs the step that gets them: pass at=STEP too.")
    instead = _meant(history, results or {}, old.id)
    if any(n >= cut for n in instead):
        raise InvalidInput(f"results= is only for steps before {at!r}: that step and later ones run again.")
    other, version = new.head()
    if other is not None and other.status != "deleting":
        raise Conflict(f"The run {new.id!r} already exists; nothing was written. Fork into another id.")
    if other is not None:
        yield from clear(new, other, version)
    said = [op.value[1] for n, op in history.ops.items() if n < cut and _speaks(op, old.id)]
    if said:
        yield from conversation(max(said))
    now = new.context.kernel.now()
    last = new.last()
    started = {
        **history.started,
        "uid": secrets.token_bytes(16),
        "parent": None,
        "forked": [old.id, at],
        "instead": {}
        if args is None
        else {"name": at, "args": dict(args) if isinstance(args, dict) else list(args), "from": _after(history, cut)},
    }
    fresh = Head("queued", head.fn, head.user, None, now, now, last + 1, deadline=None)
    lines: list[tuple[Append, set[bytes]]] = [(new.line(STARTED, 0, started), set())]
    lines += _copied(old, new, head.first, cut, history, instead)
    lines.append((new.line(QUEUED, 0, None), set()))
    for start in range(0, len(lines), _SOME):
        some = lines[start : start + _SOME]
        ends = start + _SOME >= len(lines)
        final: list[Write] = []
        if ends:
            final = [*new.placed(fresh), *notify()]
            if fresh.user is not None:
                final.append(Put(user_key(fresh.user, new.id), codec.encode(None)))
        yield from _added(new, some, last, final, fence(new) if ends else [])
        last += len(some)


def _speaks(op: Op, thread: str) -> bool:
    """Return whether this appended messages to the thread."""
    return op.identity.kind == "thread" and op.state == "done" and op.value[2] == thread


def _after(history: History, cut: int) -> int:
    """Return the lowest number that a new step of a fork can have."""
    return max((n for n in history.ops if n < cut), default=0) + 1


def _copied(
    old: RunLog, new: RunLog, first: int, cut: int, history: History, instead: dict[int, Any]
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
                found.append((_given(new, history.ops[n], instead[n]), set()))
        elif history.ops[n].state in ("done", "error") or kind == WAITS:
            found.append((Append(new.own, entry.value), references(entry)))
    return found


def _given(new: RunLog, op: Op, result: Any) -> Append:
    value, lowered = to_stored(result)
    return new.line(RESULT, op.n, [op.identity.stored(), int(lowered) or PLAIN, value, False, 0.0, [], False])


def _added(
    log: RunLog, some: list[tuple[Append, set[bytes]]], last: int, final: list[Write], fence: Sequence[AnyCheck]
) -> Work[None]:
    by = Counter(digest for _, held in some for digest in held)
    delays = backoff(most=0.02)
    while True:
        checks, counted = log.blobs.counted(by)
        try:
            yield from commit_once(
                log.context.kernel,
                [CheckEnd(log.own, last), Check(log.head_key, 0), *checks, *fence],
                [*(line for line, _ in some), *counted, *final],
            )
        except Conflict as error:
            if log.own in error.keys or log.head_key in error.keys:
                raise Conflict(f"Another process created the run {log.id!r}. Fork into another id.") from error
            yield Sleep(next(delays))
        else:
            return
