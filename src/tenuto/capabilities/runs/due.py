"""The index of runs for workers: which are queued, which become due, which are executed, which were woken.

Keys, below the tenant:

- `("runs", "due", "ready", function, -priority, since, id)`: the run is queued;
- `("runs", "due", "timer", function, time, id)`: it waits, at the latest until this time;
- `("runs", "due", "held", function, id)`: a process executes it, or died over it;
- `("runs", "due", "woken", id)`: an answer, a signal or the end of a child run came;
- the stream `("runs", "due")` and the record `("runs", "due", "idle")` notify idle workers (`_core/notices.py`).

The first three are a function of the run's head, and change in every commit that changes the head: a run has at most
one of them, and none once it is over. A woken record is written in the commit of the answer or the signal, for the run
and for the runs that wait for it, since a worker may have to resume those instead. Opening the run deletes it: the run
then looks at what it waits for. So an event that comes before the opening is seen, and one that comes after it leaves a
woken record for the next time.

A crash between two commits leaves a run in its place. A `held` run whose lease is free is interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend, Delete, Put, Record, Write

if TYPE_CHECKING:
    from tenuto.capabilities.runs.log import Head

DUE_RUNS: Final = keys.pack("runs", "due")
READY, TIMER, HELD, WOKEN = (keys.pack("runs", "due", place) for place in ("ready", "timer", "held", "woken"))
_ENDED: Final = frozenset({"completed", "failed", "cancelled", "deleting"})
_NEVER: Final = 1 << 62


def moved(run_id: str, before: Head | None, after: Head) -> list[Write]:
    """Return the writes that keep the index true when a run's head changes."""
    old = None if before is None else _place(run_id, before)
    new = _place(run_id, after)
    writes: list[Write] = []
    if old != new:
        writes += [Delete(old)] if old is not None else []
        writes += [Put(new, b"")] if new is not None else []
    if before is not None and (after.status == "running" or after.status in _ENDED):
        writes.append(Delete(woken_key(run_id)))
    return writes


def _place(run_id: str, head: Head) -> bytes | None:
    function = keys.pack(head.fn or "")
    if head.status == "queued":
        return READY + function + keys.pack(-head.priority, micros(head.changed), run_id)
    if head.status in ("waiting", "in_doubt") and head.wake is not None:
        return TIMER + function + keys.pack(micros(head.wake), run_id)
    # Without a function no worker can execute it: it needs no place.
    return HELD + function + keys.pack(run_id) if head.status == "running" and head.fn is not None else None


def woken_key(run_id: str) -> bytes:
    """Return the key of the record that a run was woken."""
    return WOKEN + keys.pack(run_id)


def woken(run_id: str, why: str) -> Put:
    """Return the write that wakes a run; `why` is one word for people."""
    return Put(woken_key(run_id), codec.encode(why))


def why_woken(record: Record) -> str:
    """Return why a run was woken: answered, signalled, cancelled or child."""
    return str(codec.decode(record.value))


def micros(at: float) -> int:
    """Return the form of a time in keys."""
    return _NEVER if math.isinf(at) else min(int(at * 1e6), _NEVER)


def parts_of(record: Record) -> tuple[str, list[int], str]:
    """Return the function, the numbers and the run id in a key of the index."""
    parts = keys.unpack(record.key)
    at = len(parts) - 1
    while isinstance(parts[at - 1], int):
        at -= 1
    return str(parts[at - 1]), [int(one) for one in parts[at:-1]], str(parts[-1])


def by_function(
    kernel: Backend, section: bytes, wanted: Collection[str], limit: int
) -> Iterator[tuple[str, list[Record]]]:
    """Yield each function that has runs in a section, with the first records of it if it is wanted.

    The runs of other functions are skipped, however many there are.
    """
    after: bytes | None = None
    while page := kernel.scan(section, after=after, limit=limit):
        function = parts_of(page[0])[0]
        own = section + keys.pack(function)
        yield function, [one for one in page if one.key.startswith(own)] if function in wanted else page[:1]
        after = own + b"\xff"
