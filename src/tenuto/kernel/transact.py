"""Commit with a request id, so that a lost reply is resolved, and retry with back-off."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

from tenuto.errors import Conflict, InvalidInput, StorageUnavailable, TenutoError
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Write
from tenuto.kernel.work import Sleep, Work

chance = random.Random()  # noqa: S311 - jitter, not security
"""The random source of every back-off; a test seeds it."""


def new_request(now: float) -> bytes:
    """Return a new request id: the store's time in milliseconds, then 80 random bits.

    A backend uses the time to reject an id whose outcome is no longer recorded. It also keeps new ids at
    the end of the index of requests.
    """
    return int(now * 1000).to_bytes(6, "big") + os.urandom(10)


def own_request(now: float) -> bytes:
    """Return a new request id for this process only; on its first use a store need not look it up."""
    try:
        chosen = _chosen.pop()
    except IndexError:  # the system call is expensive: get the randomness for many ids at once
        drawn = os.urandom(10 * 256)
        _chosen.extend([drawn[at : at + 10] for at in range(10, len(drawn), 10)])
        chosen = drawn[:10]
    request = int(now * 1000).to_bytes(6, "big") + chosen
    if len(_unused) > 1_000:  # from backends that do not call `is_first_use`: those look ids up anyway
        _unused.clear()
    _unused[request] = None
    return request


_chosen: list[bytes] = []
_unused: dict[bytes, None] = {}


def is_first_use(request: bytes) -> bool:
    """Return whether this id came from `own_request` and is used for the first time.

    Then no store can have recorded it, so a backend need not look it up. False if unsure.
    """
    try:
        del _unused[request]
    except KeyError:
        return False
    return True


if hasattr(os, "register_at_fork"):
    # A forked child shares them with its parent.
    os.register_at_fork(after_in_child=_unused.clear)
    os.register_at_fork(after_in_child=_chosen.clear)


def request_time(request: bytes) -> float:
    """Return when a request id was made, by the store's time."""
    return int.from_bytes(request[:6], "big") / 1000


def backoff(attempts: int | None = None, *, first: float = 0.001, most: float = 0.1) -> Iterator[float]:
    """Yield jittered delays that double up to `most`: one fewer than `attempts`, or endlessly for None."""
    delay, made = first, 1
    while attempts is None or made < attempts:
        yield delay * (0.5 + chance.random())
        delay, made = min(delay * 2, most), made + 1


def commit_once(
    backend: Backend, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None = None
) -> Work[Commit]:
    """Commit exactly once, also if replies are lost: retry with the same request id.

    To retry after this function has raised, pass the same `request` again.
    """
    request = request or own_request(backend.now())
    try:
        return backend.commit(checks, writes, request=request)
    except StorageUnavailable as error:
        return (yield from ask_again(error, backend, checks, writes, request))


def ask_again(
    error: StorageUnavailable, backend: Backend, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes
) -> Work[Commit]:
    """Resolve a commit that raised an error: if its reply was lost, retry with the same request id.

    Once the outcome is unknown, only a reply for this id settles it: the commit's result, or a rejection, which a
    store decides after looking up the id. Any other failure of a retry (connection refused, read-only, full) says
    nothing about the first attempt, so the outcome stays "unknown".
    """
    if error.outcome != "unknown":
        raise error
    request = error.request or request
    failed: TenutoError = error
    for delay in backoff(4, first=0.01):
        yield Sleep(delay)
        try:
            return backend.commit(checks, writes, request=request)
        except (Conflict, InvalidInput):
            raise
        except TenutoError as again:
            failed = again
    error.request = request
    raise error from (failed if failed is not error else error.__cause__)
