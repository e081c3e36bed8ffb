"""What every capability is given: the store as its tenant sees it, a clock, and who writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tenuto.errors import Conflict, StaleLease, StateConflict, StorageUnavailable
from tenuto.kernel import correlation
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Backend, Check, Commit, Write
from tenuto.kernel.transact import Steps, ask_again, own_request


class Context(NamedTuple):
    """One client's place in a store."""

    kernel: Backend
    clock: Clock
    writer: str


class Fence(Protocol):
    """Something that lets a write through only while it is held: a lease."""

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes; raise `StaleLease` if the hold is known to be over."""
        ...

    @property
    def name(self) -> str:
        """Return what it is called, for the error."""
        ...


def commit(
    context: Context,
    checks: Sequence[AnyCheck],
    writes: Sequence[Write],
    fence: Fence | None,
    what: str,
    request: bytes | None = None,
) -> Steps[Commit]:
    """Commit once; a conflict is `StaleLease` if the fence has passed on, else `StateConflict`."""
    kernel = context.kernel
    guard = None
    if fence is not None:
        guard = fence.check
        checks = [*checks, guard]
    request = request or own_request(kernel.now())
    try:
        try:  # `settle`, written out as far as nearly all commits go
            return kernel.commit(checks, writes, request=request)
        except StorageUnavailable as error:
            return (yield from ask_again(error, kernel, checks, writes, request))
    except Conflict as error:
        if guard is not None and fence is not None and guard.key in error.keys:
            raise StaleLease(
                f"The lease {fence.name!r} has passed to another holder; nothing was written. "
                "Stop this work, or take the lease again and read what has changed.",
                error.keys,
            ) from error
        raise StateConflict(
            f"{what} was changed by somebody else; nothing was written. Read it again and decide anew.", error.keys
        ) from error


def stamp(context: Context) -> tuple[str, str | None]:
    """Return who writes, and for which request: what every journal line and record begins with."""
    return context.writer, correlation.current()
