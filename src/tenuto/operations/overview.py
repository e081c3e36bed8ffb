"""Operations that show where attention is needed: runs with their last step, the number of runs by status, changes.

All read the heads of the runs; only the rows of one page are read whole. A watch scans the heads at most a tenth of its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

from tenuto.capabilities.runs import RunInfo, RunRecord, RunStatus
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, NotFound
from tenuto.kernel.durations import moment, seconds
from tenuto.kernel.work import Item, Items, Sleep, Stream
from tenuto.operations.table import Rows, operation, page

_ALL: Final = 1_000_000
_PAUSE: Final = 0.5
"""The least seconds between two looks at the store."""
_LINE: Final = 200
"""Characters of an error or a question in a row."""
_SHARE: Final = 10
"""A watch looks again after this many times what the last look took."""
Attention = Literal["person", "failed", "in_doubt"]


class RunRow(NamedTuple):
    """A run in the overview."""

    id: str
    status: RunStatus
    attention: Attention | None
    """person: it waits for an answer. failed, in_doubt: it does not continue by itself."""
    function: str | None
    user: str | None
    step: str | None
    """The name of its last step."""
    done: int
    """The number of its completed steps."""
    steps: int
    cost: float
    error: str | None
    question: str | None
    """The id of the question for whose answer it waits."""
    asks: str | None
    """The text of that question."""
    wakes: datetime | None
    created_at: datetime
    updated_at: datetime
    forked_from: str | None


class RunCounts(NamedTuple):
    """The number of runs by status."""

    person: int
    """Those that wait for a person's answer, whatever their status."""
    queued: int
    running: int
    waiting: int
    interrupted: int
    in_doubt: int
    failed: int
    completed: int
    cancelled: int


class Changed(NamedTuple):
    """A run or a question that has changed."""

    number: int
    """Milliseconds since 1970, of the store's clock; pass it as `after` to continue. A change may be repeated then."""
    kind: Literal["run", "question"]
    id: str
    status: str
    at: datetime


@operation("runs overview", "id", "attention", "status", "step", "error", "cost", "updated_at")
def runs_overview(
    agent: Tenuto,
    *,
    search: Annotated[str | None, "Only runs whose id, function or user contains this"] = None,
    status: Annotated[str | None, "Only runs with this status, or that need attention: person"] = None,
    since: Annotated[str | None, 'Only runs that changed within this time, e.g. "24h"'] = None,
    before: Annotated[str | None, 'Only runs that changed longer ago than this, e.g. "12h"'] = None,
    limit: Annotated[int, "Maximum number of runs"] = 50,
    after: Annotated[str | None, "Start after the run with this id"] = None,
) -> list[RunRow]:
    """List runs by the attention they need: those that wait on a person, failed or in doubt, then the newest."""
    now = agent.kernel.now()
    earliest = 0.0 if since is None else now - seconds(since, "since")
    latest = now if before is None else now - seconds(before, "before")
    wanted = _status(status)
    found = [
        one
        for one in agent.runs.list(limit=_ALL)
        if wanted in (None, one.status, _attention(one))
        and earliest <= one.updated_at.timestamp() <= latest + 1
        and _mentions(one, search)
    ]
    order: dict[str | None, int] = {"person": 0, "failed": 1, "in_doubt": 1}
    found.sort(key=lambda one: (order.get(_attention(one), 2), -one.updated_at.timestamp(), one.id))
    listed = page(found, lambda one: one.id, after, limit)
    rows = Rows(row for one in listed for row in _row(agent, one))
    rows.more = listed.more
    return rows


@operation("runs counts")
def runs_counts(agent: Tenuto) -> RunCounts:
    """Count the runs by status, and those that wait for a person's answer."""
    counts = dict.fromkeys(RunCounts._fields, 0)
    for one in agent.runs.list(limit=_ALL):
        counts[one.status] += 1
        counts["person"] += _attention(one) == "person"
    return RunCounts(**counts)


@operation("watch", "at", "kind", "id", "status")
def watch(
    agent: Tenuto,
    *,
    after: Annotated[int | None, "Start with the changes since this number"] = None,
    timeout: Annotated[str | None, "Stop after this long without a change"] = None,
) -> Iterator[Changed]:
    """Print the runs and questions that change, as they change, in any process."""
    limit = None if timeout is None else seconds(timeout, "timeout")
    return Items(_changes(agent, after, limit), agent.clock)


def _changes(agent: Tenuto, after: int | None, timeout: float | None) -> Stream[Changed]:
    known: dict[tuple[str, str], Any] | None = None
    left = timeout
    while True:
        began = time.monotonic()
        now = agent.kernel.now()
        seen = dict(_seen(agent, now))
        for changed in sorted(_news(known, seen, after, now), key=lambda one: (one.number, one.id)):
            left = timeout
            yield Item(changed)
        known = {about: version for about, (version, _) in seen.items()}
        if left is not None and left <= 0:
            return
        pause = max(_PAUSE, (time.monotonic() - began) * _SHARE)
        pause = pause if left is None else min(pause, left)
        yield Sleep(pause)
        left = None if left is None else left - pause


def _seen(agent: Tenuto, now: float) -> Iterator[tuple[tuple[str, str], tuple[Any, Changed]]]:
    for run in agent.runs.list(limit=_ALL):
        version = (run.status, run.updated_at, run.due)
        yield ("run", run.id), (version, Changed(_number(run.updated_at), "run", run.id, run.status, run.updated_at))
    for asked in agent.inbox.list(limit=_ALL):
        at = asked.asked_at
        changed = Changed(int(now * 1000), "question", asked.id, asked.status, at)
        yield ("question", asked.id), ((asked.changes, asked.status), changed)


def _news(
    known: Mapping[tuple[str, str], Any] | None,
    seen: Mapping[tuple[str, str], tuple[Any, Changed]],
    after: int | None,
    now: float,
) -> Iterator[Changed]:
    if known is None:
        if after is not None:
            yield from (one for _, one in seen.values() if one.kind == "run" and one.number >= after)
        return
    yield from (one for about, (version, one) in seen.items() if known.get(about) != version)
    for kind, name in known.keys() - seen.keys():
        status = "deleted" if kind == "run" else "closed"
        yield Changed(int(now * 1000), cast("Literal['run', 'question']", kind), name, status, moment(now))


def _number(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _status(given: str | None) -> str | None:
    known = ("person", *RunCounts._fields[1:])
    if given is not None and given not in known:
        raise InvalidInput(f"status must be one of {', '.join(known)}; not {given!r}.")
    return given


def _mentions(run: RunInfo, search: str | None) -> bool:
    if not search:
        return True
    text = search.casefold()
    return any(text in part.casefold() for part in (run.id, run.function, run.user) if part)


def _attention(run: RunInfo) -> Attention | None:
    asks = any(kind == "question" for kind, _ in run.waits_for) and run.due is None
    if asks and run.status in ("waiting", "in_doubt"):
        return "person"
    return run.status if run.status in ("failed", "in_doubt") else None


def _row(agent: Tenuto, run: RunInfo) -> Iterator[RunRow]:
    try:
        record = agent.runs.get(run.id)
    except NotFound:  # deleted since it was listed
        return
    last = record.steps[-1] if record.steps else None
    question = next((ref for kind, ref in run.waits_for if kind == "question"), None)
    yield RunRow(
        id=run.id,
        status=run.status,
        attention=_attention(run),
        function=run.function,
        user=run.user,
        step=None if last is None else last.name,
        done=sum(step.status == "completed" for step in record.steps),
        steps=len(record.steps),
        cost=record.cost,
        error=_said(record),
        question=question,
        asks=_asked(agent, question),
        wakes=run.wakes,
        created_at=run.created_at,
        updated_at=run.updated_at,
        forked_from=record.forked_from,
    )


def _said(record: RunRecord) -> str | None:
    if record.error is None:
        return None
    failed = next((step.error for step in reversed(record.steps) if step.error is not None), None)
    return _cut(str(failed if failed is not None and record.error.type == "StepFailed" else record.error))


def _asked(agent: Tenuto, question: str | None) -> str | None:
    try:
        return None if question is None else _cut(agent.inbox.get(question).text)
    except NotFound:  # deleted since
        return None


def _cut(text: str) -> str:
    return text if len(text) <= _LINE else f"{text[:_LINE]}…"
