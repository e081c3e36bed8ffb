"""Find values that a journal has and the store lost: rows deleted by hand, or by a faulty tool.

A checksum shows that a row changed, not that it is gone. The journal of a scope's state says which values are live, so
a value without its record is a finding. Covered: the state of scopes and the preferences of users of this tenant, where
at least one value is left. Not covered: a scope of which nothing is left, and entries that were forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Entry, Finding

_PAGE = 200
_KINDS = ("state", "user")


class _Last(NamedTuple):
    """The last change of a value in the journal."""

    version: int
    deleted: bool
    expires: float | None


def missing_values(context: Context) -> Iterator[Finding]:
    """Yield a finding for each live value of a journal whose record is missing or older."""
    for stream in _streams(context):
        known: dict[str, _Last] = {}
        number = _fold(context, stream, 0, known)
        lost = [key for key in known if _is_lost(context, stream, key, known[key])]
        if lost:  # a writer may have deleted it after the journal was read: the journal has that now
            _fold(context, stream, number, known)
        for key in lost:
            if _is_lost(context, stream, key, known[key]):
                scope, kind = keys.unpack(stream)
                place = f"the value {key!r} of {'the user ' if kind == 'user' else ''}{scope!r}"
                yield Finding(
                    "missing",
                    f"{place} is gone, though its journal has version {known[key].version}: read it with at()",
                )


def _streams(context: Context) -> Iterator[bytes]:
    """Yield the journal of each scope that has a value."""
    after: bytes | None = None
    while page := context.kernel.scan(b"", after=after, limit=_PAGE):
        for record in page:
            after = record.key
            parts = keys.unpack(record.key)
            if len(parts) == 3 and parts[1] in _KINDS:
                stream = keys.pack(parts[0], parts[1])
                yield stream
                after = stream + b"\xff"  # skip the other values of the scope
                break


def _fold(context: Context, stream: bytes, number: int, known: dict[str, _Last]) -> int:
    """Add the changes after an entry; return the number of the last one."""
    while page := context.kernel.entries(stream, after=number, limit=_PAGE):
        for entry in page:
            number = entry.number
            if not entry.forgotten:
                known.update(_changes(entry))
    return number


def _changes(entry: Entry) -> Iterator[tuple[str, _Last]]:
    _, _, noted = codec.decode(entry.value)
    for (key, value, ttl), version in zip(noted, entry.versions, strict=False):
        yield key, _Last(version, value is None, None if ttl is None else entry.written_at + ttl)


def _is_lost(context: Context, stream: bytes, key: str, last: _Last) -> bool:
    if last.deleted or (last.expires is not None and last.expires <= context.kernel.now()):
        return False
    record = context.kernel.read([stream + keys.named(key, "key")])[0]
    return record is None or record.version < last.version
