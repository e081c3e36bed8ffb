"""Blobs: large texts and bytes, deduplicated by digest and reference-counted.

Keys, below the tenant: `("blobs", "head", digest)` holds size, number of parts, reference count and whether the blob
is complete; `("blobs", "part", digest, n)` holds part n. The digest is the SHA-256 of the content.

Storing a blob is a commit of its head, commits of its parts, and a commit that marks it complete. The record that
refers to the blob increments the count and checks the head in its own commit, so a reference never dangles: a sweep in
between is a `Conflict`. A crash leaves a head without references; the sweep deletes it after an hour.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.errors import Conflict, Damaged, TooLarge
from tenuto.kernel import codec, keys
from tenuto.kernel.codec import Held
from tenuto.kernel.contract import Check, Delete, Put, Record, Write
from tenuto.kernel.transact import commit_once
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Work

PART: Final = 1 << 20
LIMIT: Final = 900 * PART
"""The largest blob, in bytes: one commit must be able to delete all parts."""
GRACE: Final = 3_600.0
"""Seconds before a sweep deletes an unreferenced blob: a writer may be about to refer to it."""
_AT_ONCE: Final = 8
_HEADS: Final = keys.pack("blobs", "head")


class Head(NamedTuple):
    """A blob's size in bytes, number of parts and reference count, and whether all parts are stored."""

    size: int
    parts: int
    references: int
    whole: bool


Content: TypeAlias = str | bytes | Callable[[], Iterator[bytes]]
"""The content of a blob, or a function that returns a new iterator over its pieces."""


def digest_of(content: Content) -> bytes:
    """Return the SHA-256 digest of a blob's content."""
    if isinstance(content, str | bytes):
        return hashlib.sha256(content.encode() if isinstance(content, str) else content).digest()
    total = hashlib.sha256()
    for piece in content():
        total.update(piece)
    return total.digest()


class Blobs:
    """The blobs of a tenant."""

    def __init__(self, context: Context) -> None:
        self._kernel = context.kernel

    def ensure(self, contents: Mapping[bytes, Content]) -> Work[None]:
        """Store the missing blobs durably, without references; `counted` adds those."""
        names = list(contents)
        for digest, known in zip(names, self._read_heads(names), strict=True):
            if known is None or not _head(known).whole:
                content = contents[digest]
                if callable(content):
                    yield from self._store(digest, sum(map(len, content())), _regrouped(content()), known)
                else:
                    raw = content.encode() if isinstance(content, str) else content
                    yield from self._store(digest, len(raw), _sliced(raw), known)

    def _store(self, digest: bytes, size: int, parts: Iterator[bytes], known: Record | None) -> Work[None]:
        if size > LIMIT:
            raise TooLarge(f"A text or bytes value has {size:,} bytes; the limit is {LIMIT:,}. Split it.")
        count = (size + PART - 1) // PART
        head = Head(size, count, 0, whole=False)
        key, version = _key(digest), known.version if known else 0
        try:
            # Two writers of the same blob both store its parts, and either may mark it complete.
            if known is None or known.written_at < self._kernel.now() - GRACE / 2:
                done = yield from commit_once(self._kernel, [Check(key, version)], [Put(key, _encoded(head))])
                version = done.versions[0]
            number = 0
            while some := list(itertools.islice(parts, _AT_ONCE)):
                yield from commit_once(
                    self._kernel, [], [Put(_part(digest, number + n), part) for n, part in enumerate(some)]
                )
                number += len(some)
            whole = Put(key, _encoded(head._replace(whole=True)))
            yield from commit_once(self._kernel, [Check(key, version)], [whole])
        except Conflict:
            return  # Another writer completed it, or a sweep deleted it: `counted` finds out which.

    def counted(self, changes: Mapping[bytes, int]) -> tuple[list[Check], list[Write]]:
        """Return the checks and writes that add (+1) or remove (-1) references; `Conflict` if a blob is missing."""
        checks: list[Check] = []
        writes: list[Write] = []
        names = [name for name, by in changes.items() if by]
        for digest, record in zip(names, self._read_heads(names), strict=True):
            head = None if record is None else _head(record)
            if record is None or head is None or not head.whole:
                if changes[digest] > 0:
                    raise Conflict("A blob is incomplete or was deleted; nothing was written. Retry.", [_key(digest)])
                continue
            checks.append(Check(record.key, record.version))
            left = max(0, head.references + changes[digest])
            writes.append(Put(record.key, _encoded(head._replace(references=left))))
        return checks, writes

    def get(self, digest: bytes) -> bytes:
        """Return a blob's content, verified by its digest; raise `Damaged` if that fails."""
        record = self._kernel.read([_key(digest)])[0]
        if record is not None:
            content = b"".join(self._parts(digest, _head(record).parts))
            if digest_of(content) == digest:
                return content
        raise Damaged(f"The blob {digest.hex()[:16]} is missing or its checksum is wrong. Restore it from a backup.")

    def records(self, digest: bytes) -> Iterator[Record]:
        """Yield the records of a blob's parts; raise `Damaged` if one is missing."""
        head = self._kernel.read([_key(digest)])[0]
        count = _head(head).parts if head is not None and _head(head).whole else -1
        for start in range(0, max(count, 0), _AT_ONCE):
            for record in self._kernel.read([_part(digest, n) for n in range(start, min(start + _AT_ONCE, count))]):
                if record is None:
                    count = -1
                    break
                yield record
        if count < 0:
            raise Damaged(f"The blob {digest.hex()[:16]} is missing. Restore it from a backup.")

    def find(self, held: Held) -> str | bytes:
        """Return the content to which a `Held` refers."""
        content = self.get(held.digest)
        return content.decode() if held.text else content

    def sweep(self, *, limit: int = 100, grace: float = GRACE) -> Work[int]:
        """Delete up to `limit` blobs that had no reference for `grace` seconds; return how many."""
        removed = 0
        before = self._kernel.now() - grace
        for record in list(scan_all(self._kernel, _HEADS)):
            head = _head(record)
            if head.references or record.written_at >= before:
                continue
            digest = keys.unpack(record.key)[-1]
            parts: list[Write] = [Delete(_part(digest, n)) for n in range(head.parts)]  # type: ignore[arg-type]
            try:
                yield from commit_once(self._kernel, [Check(record.key, record.version)], [Delete(record.key), *parts])
            except Conflict:
                continue  # it has a reference now
            removed += 1
            if removed == limit:
                break
        return removed

    def _parts(self, digest: bytes, count: int) -> Iterator[bytes]:
        for start in range(0, count, _AT_ONCE):
            wanted = [_part(digest, n) for n in range(start, min(start + _AT_ONCE, count))]
            for record in self._kernel.read(wanted):
                yield record.value if record is not None else b""

    def _read_heads(self, names: Sequence[bytes]) -> list[Record | None]:
        found: list[Record | None] = []
        for start in range(0, len(names), 100):
            found += self._kernel.read([_key(name) for name in names[start : start + 100]])
        return found


def lifted(value: Any) -> tuple[Any, dict[bytes, Content]]:
    """Return a copy of a value with references in place of large texts and bytes, and these by digest."""
    contents: dict[bytes, Content] = {}

    def lift(inner: Any) -> Any:
        kind = type(inner)
        if kind is dict:
            return {name: lift(one) for name, one in inner.items()}
        if kind is list:
            return [lift(one) for one in inner]
        if (kind is str or kind is bytes) and len(inner) >= LARGE:
            raw = inner.encode() if kind is str else inner
            digest = digest_of(raw)
            contents[digest] = raw
            return codec.stand_in(Held(digest, len(raw), kind is str))
        return inner

    return lift(value), contents


def held_in(value: Any) -> set[bytes]:
    """Return the digests of the blobs to which a value refers, when it was decoded without resolving them."""
    if type(value) is Held:
        return {value.digest}
    inner = value.values() if type(value) is dict else value if type(value) is list else ()
    return set().union(*(held_in(one) for one in inner))


def changes(begin: Iterable[bytes], end: Iterable[bytes] = ()) -> dict[bytes, int]:
    """Return how much each blob's reference count changes, for `counted`; a record counts once per blob."""
    by = dict.fromkeys(begin, 1)
    for digest in end:
        by[digest] = by.get(digest, 0) - 1
    return by


def _sliced(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PART):
        yield content[start : start + PART]


def _regrouped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts, without holding all of them in memory."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        while len(gathered) >= PART:
            yield bytes(gathered[:PART])
            del gathered[:PART]
    if gathered:
        yield bytes(gathered)


def _key(digest: bytes) -> bytes:
    return _HEADS + keys.pack(digest)


def _part(digest: bytes, number: int) -> bytes:
    return keys.pack("blobs", "part", digest, number)


def _encoded(head: Head) -> bytes:
    return codec.encode(list(head))


def _head(record: Record) -> Head:
    return Head(*codec.decode(record.value))
