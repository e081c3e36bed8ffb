"""The context of every capability (store, clock, writer), and the fenced commit."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tenuto.capabilities._core.archived import NOTHING, Archive
from tenuto.capabilities._core.gates import blocked, gate_check
from tenuto.errors import Conflict, InvalidInput, NotFound, StaleLease, StateConflict, StorageUnavailable
from tenuto.hooks.events import Event
from tenuto.kernel import correlation
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Backend, Check, Commit, Record, Write
from tenuto.kernel.transact import ask_again, own_request
from tenuto.kernel.work import Work

_PAGE = 1_000
T = TypeVar("T")


class Context(NamedTuple):
    """The store as one client's tenant sees it, its clock, and the name of the writer."""

    kernel: Backend
    clock: Clock
    writer: str
    report: Callable[[Event], object] = lambda _: None
    """Pass an event to the client's hooks; return the first answer."""
    observed: bool = False
    """Whether there are hooks: without them nothing is measured."""
    archive: Archive = NOTHING
    """Brings back what was archived and is missing."""


class Timed:
    """Base of every capability with methods that may wait: they wait by the context's clock."""

    _context: Context

    @property
    def _clock(self) -> Clock:
        return self._context.clock


class Fence(Protocol):
    """A lease that guards a write: the write succeeds only while the lease is held."""

    @property
    def check(self) -> Check:
        """Return the check of a fenced commit; raise `StaleLease` if the lease is known to be lost."""
        ...

    @property
    def name(self) -> str:
        """Return the lease's name, for error messages."""
        ...


class Stop(Protocol):
    """The stop flag of a worker: an event of `threading` or `asyncio`."""

    def is_set(self) -> bool:
        """Return whether the worker should stop."""
        ...

    def set(self) -> None:
        """Ask the worker to stop."""
        ...


def commit(
    context: Context,
    checks: Sequence[AnyCheck],
    writes: Sequence[Write],
    fence: Fence | None,
    what: str,
    request: bytes | None = None,
    gate: str | None = None,
) -> Work[Commit]:
    """Commit atomically, once; a conflict raises `StaleLease` if the lease was lost, else `StateConflict`.

    With `gate`, raise `Blocked` if a question blocks that resource.
    """
    kernel = context.kernel
    given, guard = checks, None
    if fence is not None:
        guard = fence.check
        checks = [*checks, guard]
    if gate is not None:
        checks = [*checks, gate_check(gate)]
    request = request or own_request(kernel.now())
    try:
        try:  # `commit_once`, inlined for speed: nearly every commit ends here
            return kernel.commit(checks, writes, request=request)
        except StorageUnavailable as error:
            return (yield from ask_again(error, kernel, checks, writes, request))
    except Conflict as error:
        if guard is not None and fence is not None and guard.key in error.keys:
            raise StaleLease(
                f"Another holder acquired the lease {fence.name!r}; nothing was written. "
                "Stop this work, or acquire the lease again and read the current state.",
                error.keys,
            ) from error
        if gate is not None and gate_check(gate).key in error.keys:
            raise_if_blocked(kernel, gate)
            if len(error.keys) == 1:  # answered between the commit and the look: the gate is open now
                return (yield from commit(context, given, writes, fence, what, None, gate))
        raise StateConflict(
            f"{what} was changed by another writer; nothing was written. Read it again and retry.", error.keys
        ) from error


def raise_if_blocked(kernel: Backend, gate: str) -> None:
    """Raise `Blocked` if an open question blocks the resource."""
    problem = blocked(kernel, gate)
    if problem is not None:
        raise problem


def scan_all(kernel: Backend, prefix: bytes, after: bytes | None = None, limit: int | None = None) -> Iterator[Record]:
    """Yield every record below a prefix, or up to `limit` of them, in order, reading a page at a time."""
    left = math.inf if limit is None else limit
    while page := kernel.scan(prefix, after=after, limit=(most := int(min(_PAGE, left)))):
        yield from page
        left -= len(page)
        if len(page) < most or left <= 0:
            return
        after = page[-1].key


def page_after(rows: Iterable[T], cursor: Callable[[T], str], after: str | None, limit: int) -> list[T]:
    """Return up to `limit` rows, from the one after that whose cursor is `after`; `NotFound` if none has it."""
    must_limit(limit)
    left = iter(rows)
    if after is not None and all(cursor(row) != after for row in left):
        raise NotFound(f"There is no {after!r} in this list to start after. List again without `after`.")
    return list(itertools.islice(left, min(limit, sys.maxsize)))


def must_limit(limit: int) -> None:
    """Raise `InvalidInput` unless a limit is at least 1."""
    if type(limit) is not int or limit < 1:
        raise InvalidInput(f"limit must be at least 1, and a whole number, not {limit!r:.80}.")


def stamp(context: Context) -> tuple[str, str | None]:
    """Return the writer and the correlation id, with which every journal line and record begins."""
    return context.writer, correlation.current()
