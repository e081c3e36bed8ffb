"""The narrow waist: everything above is written on these verbs, everything below implements them.

A store holds two kinds of things under byte keys that sort as bytes:

* a **record**: one value with a version. `Put` and `Delete` raise the version by one. Versions of a
  key never restart: deleting leaves a tombstone that keeps the count, so does expiry, and before a
  tombstone is purged the floor of its scope is raised above it. A stale writer can therefore never
  pass its check by accident. Records are seen by `read` and `scan`.
* a **stream**: entries numbered 1, 2, 3, … under one key. `Append` gives the next number. An entry
  never changes; it carries the digest of the entry before it and the versions that its own commit
  gave to its writes. `Forget` takes its value away, for good, and leaves the rest. Streams are seen by
  `entries`. A key is a record's or a stream's, not both's.

Every key begins with a tenant and a scope, and one call stays within one tenant: that is what lets a
store be partitioned by tenant, and a commit be one script on one node of a cluster.

`commit` is the only way to change anything. It is atomic, and durable when it returns.
Expired means absent, to every verb, decided by `now()`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeGuard, final

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
"""How many keys one `read` may ask for, and how many one `scan` or `entries` may return."""

EMPTY: Final = "A key has at least one byte."
NOT_BOTH: Final = "A key is a record's or a stream's, not both's; use another key."
ONE_TENANT: Final = "One call stays within one tenant; make one for each."
REQUEST_LIFE: Final = 3_600.0
"""For how many seconds the outcome of a request id is known."""


class Record(NamedTuple):
    """One value as it is stored."""

    key: bytes
    value: bytes
    version: int
    written_at: float
    expires_at: float | None = None


class Entry(NamedTuple):
    """One entry of a stream as it is stored."""

    number: int
    value: bytes
    written_at: float
    """Never earlier than that of the entry before."""
    digest: bytes
    """Covers the value; the next entry carries it as `previous`."""
    previous: bytes
    versions: tuple[int, ...]
    """The versions that the entry's own commit gave to its writes, in order."""
    forgotten: bool = False
    """True when its value was taken away; it is empty then."""


@final
class Check(NamedTuple):
    """The record at `key` must be at `version`; 0 means that there must be no live record."""

    key: bytes
    version: int


@final
class CheckEnd(NamedTuple):
    """The last entry of `stream` must have this `number`; 0 means that there must be none."""

    stream: bytes
    number: int


@final
class Put(NamedTuple):
    """Set the record at `key`; its version rises by one. With `ttl` it expires after so many seconds."""

    key: bytes
    value: bytes
    ttl: float | None = None


@final
class Delete(NamedTuple):
    """End the record at `key`, leaving a tombstone. Where there is none this changes nothing."""

    key: bytes


@final
class Append(NamedTuple):
    """Add an entry at the end of `stream`; the backend gives it the next number."""

    stream: bytes
    value: bytes


@final
class Forget(NamedTuple):
    """Take away the values of the entries `first` to `last` of `stream`, as far as they were there before the commit.

    What links them stays, so that the stream can still be verified, and its numbers go on. At most 1,000 at once.
    """

    stream: bytes
    first: int
    last: int


AnyCheck: TypeAlias = Check | CheckEnd
Write: TypeAlias = Put | Delete | Append | Forget


class Commit(NamedTuple):
    """What a commit did: one version (or entry number, or the last that was to be forgotten) for each write, and when."""

    versions: tuple[int, ...]
    at: float
    repeated: bool = False
    """True when this request id had been applied before and this is its recorded outcome."""


class Finding(NamedTuple):
    """One thing that `check` found wrong."""

    kind: str
    detail: str


class Backend(Protocol):
    """Where things are kept. No verb is optional and none has a default implementation."""

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one moment, or None where there is none."""
        ...

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records below `prefix` in key order, all from one moment.

        The prefix begins with a whole tenant; what is below that, a scope or less, is the caller's. `after` is the last key already seen: the scan goes on behind it, in its own direction.
        """
        ...

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream by number, all from one moment.

        `after` is the last number already seen: the reading goes on behind it, in its own direction.
        """
        ...

    def commit(
        self,
        checks: Sequence[AnyCheck],
        writes: Sequence[Write],
        *,
        request: bytes | None = None,
    ) -> Commit:
        """Apply all writes if all checks hold, atomically, and durably before it returns.

        Otherwise `Conflict` names the keys that differed and nothing is applied. With a `request`
        made by `transact.new_request`, committing again returns the first outcome instead of
        applying twice; the id is looked up before the checks.
        """
        ...

    def bell(self, stream: bytes) -> Bell:
        """Return a bell for a stream, at once and without asking the store; the caller closes it.

        While it is `live` it rings soon after any client has added entries. It only saves polls: nothing
        may rest on it, and a store that cannot tell returns a plain `Bell()`, which stays silent.
        """
        ...

    def now(self) -> float:
        """Return the store's time in seconds since 1970. It never goes backwards."""
        ...

    def check(self) -> list[Finding]:
        """Verify everything that is stored and say what is wrong; an empty list is a clean bill."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Say what this store is, how durable it is as it is set up now, and how large."""
        ...

    def close(self) -> None:
        """Let go of every connection. Calling it again does nothing; any other verb is `Closed`."""
        ...


_VERBS: Final = ("read", "scan", "entries", "commit", "bell", "now", "check", "stats", "close")


def is_backend(thing: object) -> TypeGuard[Backend]:
    """Tell whether something has all the verbs of a backend, by itself or from what it wraps."""
    return all(callable(getattr(thing, verb, None)) for verb in _VERBS)


def validate(  # noqa: C901, PLR0912 - one rule after the other
    checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None
) -> None:
    """Raise `InvalidInput` unless the commit is within the limits that hold on every backend."""
    if len(writes) > MAX_WRITES or len(checks) > MAX_WRITES:
        raise TooLarge(
            f"A commit takes up to {MAX_WRITES:,} writes and as many checks; this one has "
            f"{len(writes):,} and {len(checks):,}. Split it into several commits."
        )
    if not writes and not checks:
        raise InvalidInput("A commit has at least one check or one write.")
    total = 0
    seen: dict[bytes, bool] = {}  # each key, and whether it is a record's
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
                raise InvalidInput(f"A ttl is a positive number of seconds, not {write[2]!r}.")
        elif type(write) is Forget:
            _validate_forget(write)
    if total > MAX_COMMIT:
        raise TooLarge(f"A commit takes up to {MAX_COMMIT:,} bytes; this one has {total:,}. Split it.")
    if len(seen) < len(writes):
        _validate_once(writes)
    for check in checks:
        if not 0 <= check[1] < 1 << 63:
            raise InvalidInput(f"A version is a number from 0 to 2^63 - 1, not {check[1]}.")
        seen[check[0]] = True
    tenant = b""
    for key in seen:
        if not 0 < len(key) <= MAX_KEY:
            validate_key(key)
        if tenant and not key.startswith(tenant):
            raise InvalidInput(ONE_TENANT)
        tenant = tenant or tenant_of(key)
    if request is not None and len(request) != 16:
        raise InvalidInput("A request id has 16 bytes; make one with transact.new_request().")


def _validate_once(writes: Sequence[Write]) -> None:
    written = [write[0] for write in writes if type(write) is Put or type(write) is Delete]
    if len(set(written)) < len(written):
        raise InvalidInput("A commit may write each key once; merge the two writes.")


def _validate_forget(write: Forget) -> None:
    if not 1 <= write.first <= write.last < 1 << 63:
        raise InvalidInput(f"Entries are forgotten from one number to a later one, not {write.first} to {write.last}.")
    if write.last - write.first >= MAX_WRITES:
        raise TooLarge(f"Up to {MAX_WRITES:,} entries are forgotten at once; go by steps.")


def content_of(write: Write) -> bytes:
    """Return what stands for a write's content in a `fingerprint`: a digest of its value, if it has one."""
    kind = type(write)
    if kind is Delete:
        return b""
    if kind is Forget:
        return _RANGE.pack(write[1], write[2])  # type: ignore[misc]
    return digest(write[1])  # type: ignore[arg-type,misc]


def fingerprint(checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]) -> bytes:
    """Return what a request id is bound to: the same commit has it, any other has another.

    `digests` holds what `content_of` says of each write.
    """
    shape = [
        [[check[0], check[1], type(check) is Check] for check in checks],
        [
            [write[0], own, _KINDS[type(write)], write.ttl if type(write) is Put else None]
            for write, own in zip(writes, digests, strict=True)
        ],
    ]
    return digest(ormsgpack.packb(shape))


_KINDS: Final[dict[type, int]] = {Put: 0, Delete: 1, Append: 2, Forget: 3}
_RANGE: Final = struct.Struct(">QQ")


def validate_key(key: bytes) -> None:
    """Raise `InvalidInput` for an empty key and `TooLarge` for one over the limit."""
    if not key:
        raise InvalidInput(EMPTY)
    if len(key) > MAX_KEY:
        raise TooLarge(
            f"A key takes up to {MAX_KEY:,} bytes with all its parts; this one has {len(key):,}. "
            "Use shorter names, or a digest of the long one."
        )


def validate_read(keys: Sequence[bytes]) -> None:
    """Raise `InvalidInput` for a read of too many keys or of several tenants'."""
    if len(keys) > MAX_KEYS:
        raise InvalidInput(f"One read takes up to {MAX_KEYS:,} keys, not {len(keys):,}. Split it.")
    tenant = b""
    for key in keys if len(keys) > 1 else ():
        tenant = tenant or tenant_of(key)
        if not key.startswith(tenant):
            raise InvalidInput(ONE_TENANT)


def validate_scan(prefix: bytes, limit: int) -> None:
    """Raise `InvalidInput` for a scan that is not within one tenant, or whose page no backend serves."""
    validate_limit(limit)
    if not has_tenant(prefix):
        raise InvalidInput("A scan stays within one tenant: its prefix begins with keys.pack(tenant).")


def validate_limit(limit: int) -> None:
    """Raise `InvalidInput` for a page size that no backend serves."""
    if not 1 <= limit <= MAX_KEYS:
        raise InvalidInput(f"A limit is from 1 to {MAX_KEYS:,}, not {limit}.")
