"""Every row of a tenant in one order: the records by key, then the streams by key with their entries by number.

Export, copy and comparison read a store only through these rows, and so through whatever wrappers the client has. A page
is one snapshot, the whole is not: what is written meanwhile may or may not be among the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import ormsgpack

from tenuto.kernel.codec import digest
from tenuto.kernel.contract import MAX_COMMIT, Backend, Entry, Record

_PAGE: Final = 500
_STREAMS: Final = 5_000
_BATCH: Final = 500
_MOST_BYTES: Final = MAX_COMMIT * 3 // 4
Advance = Callable[[int, int], None]
"""Called now and then with the number of rows done and an estimate of all."""


class Row(NamedTuple):
    """A record or, with `stream`, an entry."""

    record: Record | None
    stream: bytes = b""
    entry: Entry | None = None

    @property
    def place(self) -> tuple[bool, bytes, int]:
        """Return where the row is in the order of all rows."""
        if self.record is not None:
            return False, self.record.key, 0
        assert self.entry is not None
        return True, self.stream, self.entry.number

    @property
    def content(self) -> bytes:
        """Return what the row says, the same in every store that holds it. Digests of entries belong to their store."""
        if self.record is not None:
            _, value, version, written, expires = self.record
            return ormsgpack.packb([self.record.key, version, written, expires, digest(value)])
        assert self.entry is not None
        number, value, written, _, _, versions, forgotten = self.entry
        return ormsgpack.packb([self.stream, number, written, list(versions), forgotten, digest(value)])


class Total:
    """Counts rows and digests their contents, in order."""

    def __init__(self) -> None:
        self.records = self.entries = self.streams = 0
        self._last = b""
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, row: Row) -> None:
        """Add the next row."""
        if row.record is not None:
            self.records += 1
        else:
            self.entries += 1
            self.streams += row.stream != self._last
            self._last = row.stream
        self._hash.update(row.content)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.records + self.entries

    @property
    def digest(self) -> str:
        """Return the digest of everything added, in hexadecimal."""
        return self._hash.hexdigest()


def every_row(kernel: Backend, after: Row | None = None) -> Iterator[Row]:
    """Yield every row, or those after the given one."""
    is_entry, key, number = (False, None, 0) if after is None else after.place
    if not is_entry:
        yield from _records(kernel, key)
        key, number = None, 0
    elif key is not None:
        yield from _entries(kernel, key, number)
    for stream in every_stream(kernel, key):
        yield from _entries(kernel, stream, 0)


def _records(kernel: Backend, after: bytes | None) -> Iterator[Row]:
    while page := kernel.scan(b"", after=after, limit=_PAGE):
        for record in page:
            yield Row(record)
        after = page[-1].key


def every_stream(kernel: Backend, after: bytes | None = None, prefix: bytes = b"") -> Iterator[bytes]:
    """Yield the key of every stream with a prefix, in key order."""
    while page := kernel.streams(prefix, after=after, limit=_STREAMS):
        yield from page
        if len(page) < _STREAMS:
            return
        after = page[-1]


def _entries(kernel: Backend, stream: bytes, after: int) -> Iterator[Row]:
    while page := kernel.entries(stream, after=after, limit=_PAGE):
        for entry in page:
            yield Row(None, stream, entry)
        if len(page) < _PAGE:
            return
        after = page[-1].number


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in groups that fit one `load`."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        own = len(row.record.value if row.record is not None else row.entry.value if row.entry is not None else b"")
        if batch and (len(batch) >= _BATCH or size + own > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += own
    if batch:
        yield batch


def load(kernel: Backend, batch: Sequence[Row]) -> int:
    """Store a group of rows; return how many were new."""
    entries: dict[bytes, list[Entry]] = {}
    for row in batch:
        if row.entry is not None:
            entries.setdefault(row.stream, []).append(row.entry)
    return kernel.load([row.record for row in batch if row.record is not None], entries)


def count(kernel: Backend) -> int:
    """Return an estimate of the number of rows, of all tenants."""
    figures = kernel.stats()
    inner = figures.get("store")
    if isinstance(inner, dict):  # of a server
        figures = inner
    return int(figures.get("records", 0)) + int(figures.get("entries", 0))
