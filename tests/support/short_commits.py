"""Commits for which a backend may have a short way, one after the other, in every state that a key can be in."""

from typing import Any

from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

A, B, C, D = (keys.pack("t", "s", "log", name) for name in "abcd")
LOG, LATE, NEW = keys.pack("t", "s", "log"), keys.pack("t", "s", "z"), keys.pack("t", "s", "a")
WAIT = "wait"

COMMITS: list[Any] = [
    ([], [Put(A, b"absent"), Append(LOG, b"absent")]),
    ([], [Put(A, b"there"), Append(LOG, b"there")]),
    ([Check(A, 2)], [Put(A, b"checked"), Append(LOG, b"checked")]),
    ([Check(A, 2)], [Put(A, b"late"), Append(LOG, b"late")]),
    ([Check(A, 0)], [Put(A, b"not absent"), Append(LOG, b"e")]),
    ([Check(A, 3)], [Put(A, b"alone")]),
    ([Check(A, 1 << 63)], [Put(A, b"far off")]),
    ([], [Append(LOG, b"alone")]),
    ([Check(A, 4)], [Append(LOG, b"under a lease")]),
    ([Check(A, 3)], [Append(LOG, b"a lost lease")]),
    ([Check(B, 0)], [Append(LOG, b"nobody has the lease")]),
    ([Check(B, 1)], [Append(LOG, b"somebody should have it")]),
    ([Check(A, 4)], [Append(NEW, b"a new stream under a lease")]),
    ([Check(A, 4)], [Append(LATE, b"a stream behind the lease")]),
    ([], [Append(LATE, b"a stream behind the key")]),
    ([], [Put(A, b"behind"), Append(LATE, b"behind")]),
    ([], [Append(LOG, b"first"), Put(A, b"then")]),
    ([Check(B, 0)], [Put(A, b"another is checked"), Append(LOG, b"e")]),
    ([], [Put(A, b"for a while", 5.0), Append(LOG, b"e")]),
    ([Check(A, 8)], [Put(A, b"it has not expired"), Append(LOG, b"e")]),
    ([], [Put(A, b"for a while", 5.0)]),
    ([Check(A, 10)], [Append(LOG, b"the lease runs")]),
    WAIT,
    ([Check(A, 10)], [Append(LOG, b"the lease has run out")]),
    ([Check(A, 10)], [Put(A, b"it has expired"), Append(LOG, b"e")]),
    ([], [Put(A, b"expired"), Append(LOG, b"e")]),
    ([], [Delete(A)]),
    ([Check(A, 12)], [Append(LOG, b"the lease was released")]),
    ([Check(A, 0)], [Append(LOG, b"free")]),
    ([Check(A, 12)], [Put(A, b"a tombstone has no version"), Append(LOG, b"e")]),
    ([], [Put(A, b"a tombstone"), Append(LOG, b"e")]),
    ([Check(B, 13)], [Put(A, b"it has that version, and another should"), Append(LOG, b"e")]),
    ([Check(B, 1)], [Put(B, b"absent, and should be there"), Append(LOG, b"e")]),
    ([Check(B, 0)], [Put(B, b"absent, as it should be"), Append(LOG, b"e")]),
    ([Check(B, 0)], [Put(B, b"there, and should be absent"), Append(LOG, b"e")]),
    ([], [Delete(B)]),
    ([Check(B, 0)], [Put(B, b"a tombstone, so absent"), Append(LOG, b"e")]),
    ([], [Put(B, b"for a while", 5.0)]),
    WAIT,
    ([Check(B, 0)], [Put(B, b"expired, so absent"), Append(LOG, b"e")]),
    ([], [Put(C, b"absent")]),
    ([], [Put(C, b"there")]),
    ([], [Put(D, b"absent"), Append(LOG, b"e")]),
    ([], [Put(LOG, b"not both")]),
    ([], [Append(A, b"not both")]),
    ([], [Put(LOG, b"not both"), Append(keys.pack("t", "s"), b"e")]),
    ([], [Append(keys.pack("t"), b"no scope")]),
    ([], [Put(A, b""), Append(LOG, b"")]),
]


def outcomes(store: Any, clock: HeldClock, *, requested: bool) -> list[Any]:
    found: list[Any] = []
    for step in COMMITS:
        if step is WAIT:
            clock.advance(6)
            continue
        clock.advance(0.125)
        request = new_request(store.now()) if requested else None
        try:
            found.append(store.commit(*step, request=request))
            if requested:
                found.append(store.commit(*step, request=request))
        except (Conflict, InvalidInput) as error:
            found.append((type(error), getattr(error, "keys", ())))
    return [*found, store.read([A, B, C, D]), store.entries(LOG), store.entries(LATE), store.check()]
