"""The storage contract: capabilities are written on these verbs, backends implement them.

A store holds two kinds of objects under byte keys, ordered as bytes:

* a **record**: one value with a version. `Put` and `Delete` increment the version. The versions of a key
  never restart: deletion and expiry leave a tombstone with the version, and before a tombstone is purged
  the floor of its scope is raised above it. So a stale writer can never pass its check by accident.
  `read` and `scan` return records.
* a **stream**: entries numbered 1, 2, 3, … under one key. `Append` assigns the next number. An entry
  never changes; it carries the digest of the entry before it and the versions that its commit assigned.
  `Forget` erases its value permanently and leaves the rest. `entries` returns entries. A key belongs to
  a record or to a stream, never to both.

Every key begins with a tenant and a scope, and one call stays within one tenant. So a store can be
partitioned by tenant, and a commit can be one script on one node of a cluster.

`commit` is the only way to change what is stored. It is atomic, and durable when it returns. Two more verbs move
history without changing it: `load` stores exported records and entries exactly, and `trim` drops the oldest entries of a
stream. `streams` lists the streams, which `scan` does not return.
Every verb treats expired records as absent, by the time of `now()`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeGuard, final, runtime_checkable

import ormsgpack

from tenuto.errors import InvalidInput, TooLarge
from tenuto.kernel.bell import Bell
from tenuto.kernel.codec import digest
from tenuto.kernel.keys import has_tenant, tenant_of

MAX_KEY: Final = 1_024
MAX_VALUE: Final = 8 * 1024 * 1024
MAX_WRITES: Final = 1_000
MAX_COMMIT: Final = 16 * 1024 * 1024
MAX_KEYS: Final = 10_000
"""Maximum number of keys for one `read`, and of results for one `scan` or `entries`."""

EMPTY: Final = "A key must not be empty."
NOT_BOTH: Final = "A key belongs to a record or to a stream, not to both. Use another key."
ONE_TENANT: Final = "One call must stay within one tenant. Make one call for each tenant."
REQUEST_LIFE: Final = 3_600.0
"""Seconds for which the outcome of a request id is recorded."""


class Record(NamedTuple):
    """One stored value."""

    key: bytes
    value: bytes
    version: int
    written_at: float
    expires_at: float | None = None


class Entry(NamedTuple):
    """One stored entry of a stream."""

    number: int
    value: bytes
    written_at: float
    """Never earlier than the time of the entry before."""
    digest: bytes
    """Covers the value; the next entry carries it as `previous`."""
    previous: bytes
    versions: tuple[int, ...]
    """The versions that the entry's commit assigned to its writes, in order."""
    forgotten: bool = False
    """True if the value was erased by `Forget`; it is then empty."""


@final
class Check(NamedTuple):
    """Require the record at `key` to be at `version`; 0 requires that there is no live record."""

    key: bytes
    version: int


@final
class CheckEnd(NamedTuple):
    """Require the last entry of `stream` to have this `number`; 0 requires an empty stream."""

    stream: bytes
    number: int


@final
class Put(NamedTuple):
    """Set the record at `key` and increment its version. With `ttl` it expires after that many seconds."""

    key: bytes
    value: bytes
    ttl: float | None = None


@final
class Delete(NamedTuple):
    """Delete the record at `key`, leaving a tombstone. Without a live record this changes nothing."""

    key: bytes


@final
class Append(NamedTuple):
    """Append an entry to `stream`; the backend assigns the next number."""

    stream: bytes
    value: bytes


@final
class Forget(NamedTuple):
    """Erase the values of the entries `first` to `last` of `stream` that existed before the commit.

    The digests stay, so the stream can still be verified, and its numbering continues. At most 1,000 entries at once.
    """

    stream: bytes
    first: int
    last: int


AnyCheck: TypeAlias = Check | CheckEnd
Write: TypeAlias = Put | Delete | Append | Forget


class Commit(NamedTuple):
    """The outcome of a commit: for each write its version, entry number or last forgotten number; and the time."""

    versions: tuple[int, ...]
    at: float
    repeated: bool = False
    """True if this request id was applied before; this is its recorded outcome."""


class Finding(NamedTuple):
    """One defect that `check` found."""

    kind: str
    detail: str


class Backend(Protocol):
    """A store. No verb is optional and none has a default implementation."""

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, or None, all from one snapshot."""
        ...

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot.

        The prefix must begin with a whole tenant. `after` is the last key already seen, in the direction of the scan.
        """
        ...

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot.

        `after` is the last number already seen, in the direction of reading.
        """
        ...

    def commit(
        self,
        checks: Sequence[AnyCheck],
        writes: Sequence[Write],
        *,
        request: bytes | None = None,
    ) -> Commit:
        """Apply all writes if all checks hold, atomically and durably.

        Otherwise raise `Conflict` with the keys that differed and apply nothing. With a `request` made by
        `transact.new_request`, a repeated commit returns the first outcome instead of being applied twice;
        the id is looked up before the checks.
        """
        ...

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order; `after` is the last key already seen.

        The prefix must begin with a whole tenant. A page may read every key of the tenant: use large pages.
        """
        ...

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries with their times, versions and numbers; return how many were new.

        Atomic, durable, and repeatable: what is already there is skipped. A key that holds something else is a `Conflict`
        and nothing is stored. A deleted key gets a version above the deleted one. The entries of a stream must be
        consecutive. They begin a stream, extend it, or precede its first entry; then they must link to it by their
        digests (`Damaged`). The store computes the digests itself, beginning with `previous` of the first entry.
        """
        ...

    def trim(self, stream: bytes, first: int) -> int:
        """Remove the entries before number `first`, the oldest 1,000 at most; return how many were removed.

        The last entry always stays, so the numbering continues. The first entry that stays keeps the digest of the one
        before it: what is left can be verified, and `load` takes back only what was there.
        """
        ...

    def bell(self, stream: bytes) -> Bell:
        """Return a bell for a stream without a call to the store; the caller closes it.

        While it is `live` it is notified soon after any client appends. It only reduces polling. A store without
        notifications returns a plain `Bell()`.
        """
        ...

    def now(self) -> float:
        """Return the store's time in seconds since 1970.

        It goes backwards only if its clock was set back by more than `clock.MOST_BEHIND` seconds.
        """
        ...

    def check(self) -> list[Finding]:
        """Verify everything that is stored; return the defects, an empty list if there are none."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Return the kind of the store, its durability as configured now, and its size."""
        ...

    def close(self) -> None:
        """Close every connection. Closing twice is safe; any other verb then raises `Closed`."""
        ...


@runtime_checkable
class Copyable(Protocol):
    """The one ability beyond the verbs: a store that is a file can be copied while in use.

    It is not part of the contract: a server is backed up by its own tools, and wrappers do not forward this method.
    """

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a snapshot of the store into a new file, durably; return its size in bytes.

        `progress` is called with the number of copied pages and the total.
        """
        ...

    def scrub(self) -> bool:
        """Remove the old bytes of what was deleted; return False if a client still reads them."""
        ...

    def compact(self) -> int:
        """Give the free space in the file back to the disk, atomically; return by how many bytes it shrank."""
        ...


class Rotation(NamedTuple):
    """What a rotation of encryption keys has done."""

    data_keys: int
    """Number of data keys that the first key now protects; the newest seals what is written from now on."""
    user_keys: int
    """Number of records of users' keys that were sealed anew."""


@runtime_checkable
class Sealing(Protocol):
    """What a store can do besides the verbs if it is encrypted."""

    def rotate(self, tenant: str) -> Rotation:
        """Protect a tenant's data keys with the first of the given keys; see `Store.rotate`."""
        ...

    def destroy_user_key(self, tenant: str, user: str) -> bool:
        """Destroy the key of a user; see `Store.destroy_user_key`."""
        ...

    def has_user_keys(self, tenant: str) -> bool:
        """Return whether what belongs to a user of the tenant is sealed with a key of its own."""
        ...

    def seal_object(self, tenant: str, user: str | None, place: bytes, data: bytes) -> bytes:
        """Seal what is kept outside of the store, bound to a place, with the user's key if users have keys."""
        ...

    def open_object(self, tenant: str, place: bytes, data: bytes) -> bytes | None:
        """Open what `seal_object` sealed for this place; return None if the key of its user was destroyed."""
        ...


_VERBS: Final = (
    "read", "scan", "entries", "commit", "streams", "load", "trim", "bell", "now", "check", "stats", "close",
)  # fmt: skip


def is_backend(thing: object) -> TypeGuard[Backend]:
    """Return whether an object has all the verbs of a backend."""
    return all(callable(getattr(thing, verb, None)) for verb in _VERBS)


def validate(  # noqa: C901, PLR0912 - one rule after the other
    checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None
) -> None:
    """Raise `InvalidInput` unless the commit is within the limits of every backend."""
    if len(writes) > MAX_WRITES or len(checks) > MAX_WRITES:
        raise TooLarge(
            f"A commit takes up to {MAX_WRITES:,} writes and as many checks; this one has "
            f"{len(writes):,} and {len(checks):,}. Split it into several commits."
        )
    if not writes and not checks:
        raise InvalidInput("A commit must have at least one check or one write.")
    total = 0
    seen: dict[bytes, bool] = {}  # key -> whether it belongs to a record
    for write in writes:
        record = type(write) is Put or type(write) is Delete
        if seen.setdefault(write[0], record) is not record:
            raise InvalidInput(NOT_BOTH)
        if type(write) is Put or type(write) is Append:
            size = len(write[1])
            if size > MAX_VALUE:
                raise TooLarge(f"A value takes up to {MAX_VALUE:,} bytes; this one has {size:,}. Store it in parts.")
            total += size
            if type(write) is Put and write[2] is not None and not 0 < write[2] < 1e11:
                raise InvalidInput(f"A ttl must be a positive number of seconds, not {write[2]!r}.")
        elif type(write) is Forget:
            _validate_forget(write)
    if total > MAX_COMMIT:
        raise TooLarge(f"A commit takes up to {MAX_COMMIT:,} bytes; this one has {total:,}. Split it.")
    if len(seen) < len(writes):
        _validate_once(writes)
    for check in checks:
        if not 0 <= check[1] < 1 << 63:
            raise InvalidInput(f"A version must be a number from 0 to 2^63 - 1, not {check[1]}.")
        seen[check[0]] = True
    tenant = b""
    for key in seen:
        if not 0 < len(key) <= MAX_KEY:
            validate_key(key)
        if tenant and not key.startswith(tenant):
            raise InvalidInput(ONE_TENANT)
        tenant = tenant or tenant_of(key)
    if request is not None and len(request) != 16:
        raise InvalidInput("A request id must have 16 bytes. Make one with transact.new_request().")


def _validate_once(writes: Sequence[Write]) -> None:
    written = [write[0] for write in writes if type(write) is Put or type(write) is Delete]
    if len(set(written)) < len(written):
        raise InvalidInput("A commit may write each key only once. Merge the two writes.")


def _validate_forget(write: Forget) -> None:
    if not 1 <= write.first <= write.last < 1 << 63:
        raise InvalidInput(f"Forget needs 1 <= first <= last, not {write.first} to {write.last}.")
    if write.last - write.first >= MAX_WRITES:
        raise TooLarge(f"One Forget takes up to {MAX_WRITES:,} entries. Split the range.")


def content_of(write: Write) -> bytes:
    """Return what a `fingerprint` covers of a write: the digest of its value, if it has one."""
    kind = type(write)
    if kind is Delete:
        return b""
    if kind is Forget:
        return _RANGE.pack(write[1], write[2])  # type: ignore[misc]
    return digest(write[1])  # type: ignore[arg-type,misc]


def digests_of(writes: Sequence[Write]) -> list[bytes]:
    """Return `content_of` for each write; a value shared by several writes is hashed once.

    A record and its journal entry often have the same bytes: then `Put` and `Append` refer to one object.
    """
    found: list[bytes] = []
    hashed: dict[int, bytes] = {}  # by object identity, which is safe because `writes` keeps every value alive
    for write in writes:
        if type(write) is Put or type(write) is Append:
            content = hashed.get(id(write[1]))
            if content is None:
                content = hashed[id(write[1])] = digest(write[1])
        else:
            content = content_of(write)
        found.append(content)
    return found


def fingerprint(checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]) -> bytes:
    """Return a digest that identifies a commit; a request id is bound to it.

    `digests` is the result of `digests_of(writes)`.
    """
    guards = [(check[0], check[1], type(check) is Check) for check in checks]
    changes = [
        (write[0], own, _KINDS[type(write)], write[2] if type(write) is Put else None)
        for write, own in zip(writes, digests, strict=True)
    ]
    return digest(ormsgpack.packb((guards, changes)))


_KINDS: Final[dict[type, int]] = {Put: 0, Delete: 1, Append: 2, Forget: 3}
_RANGE: Final = struct.Struct(">QQ")


def validate_key(key: bytes) -> None:
    """Raise `InvalidInput` for an empty key and `TooLarge` for a key over the limit."""
    if not key:
        raise InvalidInput(EMPTY)
    if len(key) > MAX_KEY:
        raise TooLarge(
            f"A key takes up to {MAX_KEY:,} bytes with all its parts; this one has {len(key):,}. "
            "Use shorter names, or a digest of a long one."
        )


def validate_read(keys: Sequence[bytes]) -> None:
    """Raise `InvalidInput` for a read of too many keys or of several tenants."""
    if len(keys) > MAX_KEYS:
        raise InvalidInput(f"One read takes up to {MAX_KEYS:,} keys, not {len(keys):,}. Split it.")
    tenant = b""
    for key in keys if len(keys) > 1 else ():
        tenant = tenant or tenant_of(key)
        if not key.startswith(tenant):
            raise InvalidInput(ONE_TENANT)


def validate_scan(prefix: bytes, limit: int) -> None:
    """Raise `InvalidInput` for a scan across tenants or an invalid limit."""
    validate_limit(limit)
    if not has_tenant(prefix):
        raise InvalidInput("A scan must stay within one tenant. Begin its prefix with keys.pack(tenant).")


def validate_limit(limit: int) -> None:
    """Raise `InvalidInput` for an invalid page size."""
    if not 1 <= limit <= MAX_KEYS:
        raise InvalidInput(f"A limit must be from 1 to {MAX_KEYS:,}, not {limit}.")
