"""What adapters share that store values by a path: sessions, checkpoints, snapshots, logs.

    records = Records(agent, "strands")
    records.put({"state": {}}, "session", "s-1")
    number = records.append(event, "events", "s-1")            # 1, 2, 3 …

Keys: `(namespace, "records", *path)`, a record with a ttl if the namespace has one; a log keeps its entries at
`(…, "at", number)` and their count at `(…, "count")`. Every method is one commit, atomic and durable when it returns;
`delete_under` is one commit per 1,000 records, and a crash between two leaves the rest, which a repeated call deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tenuto.adapters.conversation import bridged
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import in_thread
from tenuto.client import Tenuto
from tenuto.errors import Conflict
from tenuto.kernel import codec, keys, transact
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.work import Sleep, Work, perform

T = TypeVar("T")
Part = str | int
_PAGE: Final = 1_000


class Found(NamedTuple):
    """A record: the rest of its path, and its value."""

    path: tuple[Any, ...]
    value: Any


class Change:
    """Reads and writes that are committed together, if nothing that was read has changed meanwhile."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._checks: dict[bytes, AnyCheck] = {}
        self._writes: dict[bytes, Write] = {}

    def get(self, *path: Part) -> Any:
        """Return a value, or None."""
        key = self._records.key(*path)
        record = self._records.kernel.read([key])[0]
        self._checks[key] = Check(key, 0 if record is None else record.version)
        return None if record is None else codec.decode(record.value)

    def put(self, value: Any, *path: Part) -> None:
        """Set a value."""
        key = self._records.key(*path)
        self._writes[key] = Put(key, codec.encode(value), self._records.ttl)

    def delete(self, *path: Part) -> None:
        """Delete a value."""
        key = self._records.key(*path)
        self._writes[key] = Delete(key)

    def append(self, values: Sequence[Any], *path: Part) -> int:
        """Append values to a log; return the number of the last one, from 1."""
        number = self.get(*path, "count") or 0
        for value in values:
            number += 1
            self.put(value, *path, "at", number)
        self.put(number, *path, "count")
        return int(number)

    def commit(self) -> None:
        """Commit; raise `Conflict` if something that was read has changed."""
        if self._writes:
            work = transact.commit_once(self._records.kernel, list(self._checks.values()), list(self._writes.values()))
            perform(work, self._records.clock)


class Records:
    """Values by path in one namespace of an agent's store."""

    def __init__(self, agent: Tenuto | AsyncTenuto, namespace: str, *, ttl: Duration | None = None) -> None:
        self.agent, self._pool = bridged(agent)
        self.kernel, self.clock = self.agent.kernel, self.agent.clock
        self.ttl = ttl_seconds(ttl)
        self._prefix = keys.named(namespace, "namespace") + keys.pack("records")

    def key(self, *path: Part) -> bytes:
        """Return the key of a path."""
        return self._prefix + keys.pack(*path)

    def get(self, *path: Part) -> Any:
        """Return a value, or None."""
        record = self.kernel.read([self.key(*path)])[0]
        return None if record is None else codec.decode(record.value)

    def put(self, value: Any, *path: Part) -> None:
        """Set a value."""
        self.change(lambda change: change.put(value, *path))

    def delete(self, *path: Part) -> bool:
        """Delete a value; return whether there was one."""

        def act(change: Change) -> bool:
            found = change.get(*path) is not None
            if found:
                change.delete(*path)
            return found

        return self.change(act)

    def append(self, value: Any, *path: Part) -> int:
        """Append a value to a log; return its number, from 1."""
        return self.change(lambda change: change.append([value], *path))

    def log(self, *path: Part, after: int = 0, limit: int | None = None) -> list[Found]:
        """Return the entries of a log after a number: their number as path, and their value."""
        return self.under(*path, "at", after=after, limit=limit)

    def under(self, *path: Part, begins: str = "", after: Part | None = None, limit: int | None = None) -> list[Found]:
        """Return all values below a path in key order; with `begins`, those whose next part begins so."""
        above = self.key(*path)
        prefix = above + (keys.pack(begins)[:-1] if begins else b"")  # a text ends with NUL: any that begins so
        seen = None if after is None else above + keys.pack(after)
        found: list[Found] = []
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self.kernel.scan(prefix, after=seen, limit=size)
            found += [Found(keys.unpack(one.key[len(above) :]), codec.decode(one.value)) for one in page]
            if len(page) < size:
                break
            seen = page[-1].key
        return found

    def delete_under(self, *path: Part) -> int:
        """Delete all values at and below a path; return how many there were."""
        deleted = 0
        while page := self.kernel.scan(self.key(*path), limit=_PAGE):
            perform(transact.commit_once(self.kernel, [], [Delete(one.key) for one in page]), self.clock)
            deleted += len(page)
        return deleted

    def change(self, act: Callable[[Change], T]) -> T:
        """Call `act` and commit what it writes; again if another process was faster."""
        delays = transact.backoff(most=0.02)
        while True:
            change = Change(self)
            result = act(change)
            try:
                change.commit()
            except Conflict:
                perform(_pause(next(delays)), self.clock)
            else:
                return result

    async def call(self, act: Callable[..., T], *args: Any) -> T:
        """Call a function that uses the store on a thread; it is completed even if the caller is cancelled."""
        return await in_thread(self._pool, lambda: act(*args))


def _pause(seconds: float) -> Work[None]:
    yield Sleep(seconds)
