"""Prune by age: journals of state, finished runs, ended tasks, checkpoints, and what expired or deleted things left.

It owns no keys. Each commit removes up to 250 entries, or one run, task or thread; a crash between two leaves
less to do for the next call. The last entry of every stream stays, so numbers continue, and the first one that stays
carries the digest of the one before it, so the chain verifies. Records are never touched by pruning a journal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.checkpoints import Checkpoints, Retention
from tenuto.capabilities.runs import RunInfo, Runs
from tenuto.capabilities.store import Pruned, every_stream
from tenuto.capabilities.tasks import OVER, Tasks, task_of
from tenuto.capabilities.threads import Thread, Threads
from tenuto.errors import RunBusy
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend, Delete
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.work import Sleep, Work, work_of

_JOURNALS: Final = ("state", "user")
_NOTICES: Final = ("tasks", "due")
_FINISHED: Final = ("completed", "failed", "cancelled")
_PAGE: Final = 500
_AT_ONCE: Final = 250
"""Entries removed in one commit: others wait for one such commit at most."""
_PAUSE: Final = 0.002
"""Seconds between two commits, in which others commit."""


class Pruner:
    """Prunes one client's tenant."""

    def __init__(self, context: Context, runs: Runs, tasks: Tasks, checkpoints: Checkpoints, threads: Threads) -> None:
        self._context = context
        self._kernel = context.kernel
        self.now = context.kernel.now
        self._runs = runs
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._threads = threads

    def prune(
        self, rule: Retention, scope: str | None = None, *, dry: bool = False, most: float = math.inf
    ) -> Work[Pruned]:
        """Remove what a rule no longer keeps; with `scope` only the journals of that scope. Stop after `most` commits."""
        now, budget = self._kernel.now(), _Budget(most)
        journals = runs = tasks = checkpoints = threads = 0
        if rule.journals is not None:
            journals = yield from self._prune_journals(_cut(now, rule.journals, "journals"), scope, budget, dry=dry)
        if scope is None:
            if rule.runs is not None:
                runs = yield from self._prune_runs(_cut(now, rule.runs, "runs"), budget, dry=dry)
            if rule.tasks is not None:
                tasks = yield from self._prune_tasks(_cut(now, rule.tasks, "tasks"), budget, dry=dry)
            if rule.of_checkpoints is not None:
                checkpoints = yield from self._checkpoints._prune_all(rule.of_checkpoints, dry=dry)
            if rule.threads is not None:
                threads = yield from self._prune_threads(_cut(now, rule.threads, "threads"), budget, dry=dry)
        return Pruned(journals, runs, tasks, checkpoints, threads)

    # -- journals ----------------------------------------------------------------------------------

    def _prune_journals(self, cut: float, scope: str | None, budget: _Budget, *, dry: bool) -> Work[int]:
        prefix = b"" if scope is None else keys.named(scope, "scope")
        total = 0
        for stream in every_stream(self._kernel, prefix=prefix):
            parts = keys.unpack(stream)
            if len(parts) != 2 or parts[1] not in (*_JOURNALS, *_NOTICES):
                continue
            keep = first_since(self._kernel, stream, cut)
            total += yield from self._trim(stream, keep, budget, dry=dry)
            if budget.over:
                break
        return total

    def _trim(self, stream: bytes, first: int, budget: _Budget, *, dry: bool) -> Work[int]:
        if dry:
            there = self._kernel.entries(stream, limit=1)
            return max(0, first - there[0].number) if there else 0
        total = 0
        there = self._kernel.entries(stream, limit=1)
        at = there[0].number if there else first
        while at < first and not budget.over and (count := self._kernel.trim(stream, min(first, at + _AT_ONCE))):
            total += count
            at += count
            budget.take()
            yield Sleep(_PAUSE)
        return total

    # -- runs, tasks -------------------------------------------------------------------------------

    def _prune_runs(self, cut: float, budget: _Budget, *, dry: bool) -> Work[int]:
        total = 0
        for run in old_runs(self._runs, cut):
            if not dry:
                try:
                    yield from work_of(self._runs.delete)(run.id)
                except RunBusy:
                    continue
                budget.take()
                yield Sleep(_PAUSE)
            total += 1
            if budget.over:
                return total
        for stream, name in self._of_kind("run"):  # what deleted runs left
            if not dry and self._kernel.read([keys.pack("runs", "index", "every", name)])[0] is None:
                yield from self._trim(stream, 1 << 62, budget, dry=dry)
        return total

    def _prune_tasks(self, cut: float, budget: _Budget, *, dry: bool) -> Work[int]:
        total = 0
        for record in scan_all(self._kernel, keys.pack("tasks", "task")):
            task = task_of(record)
            if task.status not in OVER or (task.finished or record.written_at) >= cut:
                continue
            if not dry:
                task_id = str(keys.unpack(record.key)[-1])
                yield from self._tasks._changed(task_id, record, task, [Delete(record.key)])
                budget.take()
                yield Sleep(_PAUSE)
            total += 1
            if budget.over:
                break
        return total

    # -- threads -----------------------------------------------------------------------------------

    def _prune_threads(self, cut: float, budget: _Budget, *, dry: bool) -> Work[int]:
        total = 0
        for stream, name in self._of_kind("thread"):
            newest = self._kernel.entries(stream, limit=1, reverse=True)[0]
            writer = Thread(self._threads, name, user=None, ttl=None)._writer
            if newest.written_at >= cut or not writer.is_over:
                continue
            first = self._kernel.entries(stream, limit=1)[0].number
            if first == newest.number and newest.forgotten:
                continue
            if dry:
                total += first < newest.number
                continue
            yield from writer.end(expired=True)
            if not self._kernel.scan(stream + keys.pack("fork"), limit=1):
                end = self._kernel.entries(stream, limit=1, reverse=True)[0].number
                total += (yield from self._trim(stream, end, budget, dry=False)) > 0
            budget.take()
            if budget.over:
                break
        return total

    def _of_kind(self, kind: str) -> Iterator[tuple[bytes, str]]:
        """Yield the streams of a kind with the name of what they belong to."""
        for stream in every_stream(self._kernel):
            parts = keys.unpack(stream)
            if len(parts) == 2 and parts[1] == kind:
                yield stream, str(parts[0])


class _Budget:
    """How many commits are left."""

    def __init__(self, most: float) -> None:
        self._left = most

    @property
    def over(self) -> bool:
        return self._left <= 0

    def take(self) -> None:
        self._left -= 1


def old_runs(runs: Runs, cut: float) -> Iterator[RunInfo]:
    """Yield the runs that ended before a time, without the records of `agent.once` and `agent.merge`."""
    after: str | None = None
    while page := runs.list(after=after, limit=_PAGE):
        after = page[-1].id
        for one in page:
            # Those records are what keeps a call from being repeated.
            kept = one.id.startswith(("once:", "merge:"))
            if not kept and one.status in _FINISHED and one.updated_at.timestamp() < cut:
                yield one


def _cut(now: float, keep: Duration, what: str) -> float:
    return now - seconds(keep, what)


def first_since(kernel: Backend, stream: bytes, cut: float) -> int:
    """Return the number of the first entry that was written at a time or later, by bisection; times never go back."""
    oldest, newest = kernel.entries(stream, limit=1), kernel.entries(stream, limit=1, reverse=True)
    if not oldest:
        return 1
    low, high = oldest[0].number, newest[0].number + 1
    while low < high:
        middle = (low + high) // 2
        found = kernel.entries(stream, after=middle - 1, limit=1)
        if found and found[0].written_at < cut:
            low = middle + 1
        else:
            high = middle
    return low
