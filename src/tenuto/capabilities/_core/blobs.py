"""Blobs: large texts and bytes, each stored once, however many things refer to it.

Keys, below the tenant: `("blobs", "head", digest)` says how long a blob is, in how many parts, whether they are
all there, and how many records refer to it; `("blobs", "part", digest, n)` holds its part n. The digest is the
SHA-256 of the content.

Storing one is a commit that announces it, commits of its parts, and one that says it is whole and checks that
the announcement still stands (a sweep takes only what was announced an hour ago). Whatever refers to it does so in a commit of its own that counts the reference in
the head and checks it. So a reference never leads nowhere: a sweep in between has changed the head, and the
commit is a conflict. A crash anywhere before leaves a head without references, and the sweep takes it away with
its parts an hour later. Ending a reference is part of the commit that ends what refers.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tenuto.capabilities.context import Context
from tenuto.errors import Conflict, Damaged, TooLarge
from tenuto.kernel import codec, keys
from tenuto.kernel.codec import Held
from tenuto.kernel.contract import Check, Delete, Put, Record, Write
from tenuto.kernel.transact import Steps, settle
from tenuto.kernel.tree import LARGE

PART: Final = 1 << 20
LIMIT: Final = 900 * PART
"""The largest blob: its parts must go in one commit when it is taken away."""
GRACE: Final = 3_600.0
"""So long a blob that nobody refers to is kept, in seconds: somebody may be about to."""
_AT_ONCE: Final = 8
_HEADS: Final = keys.pack("blobs", "head")


class Head(NamedTuple):
    """What is known of a blob: its length, its parts, and how many records refer to it."""

    size: int
    parts: int
    references: int
    whole: bool


Content: TypeAlias = str | bytes | Callable[[], Iterator[bytes]]
"""What a blob holds; or a function that yields it in pieces, each time anew."""


def digest_of(content: Content) -> bytes:
    """Return the name of a blob."""
    if isinstance(content, str | bytes):
        return hashlib.sha256(content.encode() if isinstance(content, str) else content).digest()
    total = hashlib.sha256()
    for piece in content():
        total.update(piece)
    return total.digest()


class Blobs:
    """The large things of a tenant."""

    def __init__(self, context: Context) -> None:
        self._kernel = context.kernel

    def ensure(self, contents: Mapping[bytes, Content]) -> Steps[None]:
        """Store what is not there yet, by digest. Nothing refers to it yet: `counted` does that."""
        names = list(contents)
        for digest, known in zip(names, self._read_heads(names), strict=True):
            if known is None or not _head(known).whole:
                content = contents[digest]
                if callable(content):
                    yield from self._store(digest, sum(map(len, content())), _regrouped(content()), known)
                else:
                    raw = content.encode() if isinstance(content, str) else content
                    yield from self._store(digest, len(raw), _sliced(raw), known)

    def _store(self, digest: bytes, size: int, parts: Iterator[bytes], known: Record | None) -> Steps[None]:
        if size > LIMIT:
            raise TooLarge(f"One text or bytes takes up to {LIMIT:,} bytes; this one has {size:,}. Split it.")
        count = (size + PART - 1) // PART
        head = Head(size, count, 0, whole=False)
        key, version = _key(digest), known.version if known else 0
        try:
            # One that somebody else has just announced is stored by both, and either may say that it is whole.
            if known is None or known.written_at < self._kernel.now() - GRACE / 2:
                done = yield from settle(self._kernel, [Check(key, version)], [Put(key, _encoded(head))])
                version = done.versions[0]
            number = 0
            while some := list(itertools.islice(parts, _AT_ONCE)):
                yield from settle(
                    self._kernel, [], [Put(_part(digest, number + n), part) for n, part in enumerate(some)]
                )
                number += len(some)
            whole = Put(key, _encoded(head._replace(whole=True)))
            yield from settle(self._kernel, [Check(key, version)], [whole])
        except Conflict:
            # Somebody else was faster, or a sweep came by. Whoever refers to it next finds out which.
            return

    def counted(self, changes: Mapping[bytes, int]) -> tuple[list[Check], list[Write]]:
        """Return what a commit adds to begin (+1) or end (-1) references; `Conflict` if a blob is gone."""
        checks: list[Check] = []
        writes: list[Write] = []
        names = [name for name, by in changes.items() if by]
        for digest, record in zip(names, self._read_heads(names), strict=True):
            head = None if record is None else _head(record)
            if record is None or head is None or not head.whole:
                if changes[digest] > 0:
                    raise Conflict("A large part is not whole yet, or was taken away.", [_key(digest)])
                continue
            checks.append(Check(record.key, record.version))
            left = max(0, head.references + changes[digest])
            writes.append(Put(record.key, _encoded(head._replace(references=left))))
        return checks, writes

    def get(self, digest: bytes) -> bytes:
        """Return a blob, or raise `Damaged` if it is not what was stored."""
        record = self._kernel.read([_key(digest)])[0]
        if record is not None:
            content = b"".join(self._parts(digest, _head(record).parts))
            if digest_of(content) == digest:
                return content
        raise Damaged(
            f"The large part {digest.hex()[:16]} is missing or not what was stored. Restore it from a backup."
        )

    def find(self, held: Held) -> str | bytes:
        """Return what stands behind a `Held`."""
        content = self.get(held.digest)
        return content.decode() if held.text else content

    def sweep(self, *, limit: int = 100, grace: float = GRACE) -> Steps[int]:
        """Take away up to `limit` blobs that nobody has referred to for a while; return how many."""
        removed = 0
        before = self._kernel.now() - grace
        for record in list(self._heads()):
            head = _head(record)
            if head.references or record.written_at >= before:
                continue
            digest = keys.unpack(record.key)[-1]
            parts: list[Write] = [Delete(_part(digest, n)) for n in range(head.parts)]  # type: ignore[arg-type]
            try:
                yield from settle(self._kernel, [Check(record.key, record.version)], [Delete(record.key), *parts])
            except Conflict:
                continue  # somebody refers to it after all
            removed += 1
            if removed == limit:
                break
        return removed

    def _heads(self) -> Iterator[Record]:
        after: bytes | None = None
        while page := self._kernel.scan(_HEADS, after=after, limit=1_000):
            yield from page
            after = page[-1].key

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
    """Return a value with stand-ins for its large texts and bytes, and those by digest; the value itself stays as it is."""
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
    """Return the digests of what stands in for large parts in a value that was decoded without looking for them."""
    if type(value) is Held:
        return {value.digest}
    inner = value.values() if type(value) is dict else value if type(value) is list else ()
    return set().union(*(held_in(one) for one in inner))


def changes(begin: Iterable[bytes], end: Iterable[bytes] = ()) -> dict[bytes, int]:
    """Return the references that begin and end, as `counted` takes them; each record refers to a blob once."""
    by = dict.fromkeys(begin, 1)
    for digest in end:
        by[digest] = by.get(digest, 0) - 1
    return by


def _sliced(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PART):
        yield content[start : start + PART]


def _regrouped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts, without ever holding all of them."""
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
