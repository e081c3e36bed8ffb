"""API keys of a server: 256-bit secrets, shown once and stored as hashes.

Keys live in the store that the server serves, in a tenant of their own that no API key can name, so every server
process reads the same list. Each request reads its key's record: a revocation is effective at once, everywhere.

Keys, in the tenant `tenuto:access`: `("keys", "key", id)` is an API key; `("keys", "used", id)` is when it was last
used, written at most once a minute. Creating, revoking and rotating are one commit each. A crash before it leaves everything unchanged.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from tenuto.client import Tenuto
from tenuto.errors import AccessDenied, Conflict, InvalidInput, NotFound, ReadOnly, StorageUnavailable
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import Backend, Check, Put, Record
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import perform
from tenuto.wrappers.tenant import Tenant

Scope = Literal["read", "write", "answer", "admin"]
SCOPES: Final = get_args(Scope)
ACCESS: Final = "tenuto:access"
"""The tenant of the keys themselves."""
_KEY: Final = keys.pack("keys", "key")
_USED: Final = keys.pack("keys", "used")
_USED_EVERY: Final = 60.0
_NO_KEY: Final = "There is no valid API key in this request. Nothing was done; send Authorization: Bearer tk_…"
_UNKNOWN: Final = hashlib.sha256(b"no key").digest()


class Access(NamedTuple):
    """Who calls, and what the caller may do."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    prefix: str

    def must(self, *wanted: str) -> None:
        """Raise `AccessDenied` unless the key has one of these scopes, or admin."""
        if not {"admin", *wanted} & set(self.scopes):
            raise AccessDenied(
                f"This call needs an API key with the scope {' or '.join(wanted or ('admin',))}; "
                f"this one has {', '.join(self.scopes)}. Nothing was done."
            )


class ApiKey(NamedTuple):
    """An API key without its secret."""

    id: str
    name: str
    tenant: str
    scopes: list[str]
    prefix: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def is_valid(self, now: float) -> bool:
        """Return whether the key opens anything at this time."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > moment(now))


class NewKey(NamedTuple):
    """A new API key; its text is shown once."""

    id: str
    name: str
    api_key: str


class _Stored(NamedTuple):
    digest: bytes
    name: str
    tenant: str
    scopes: list[str]
    prefix: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class Keys:
    """The API keys of a store."""

    def __init__(
        self,
        backend: Backend,
        token: str | None = None,
        token_tenant: str = "default",  # noqa: S107 - a tenant
        token_scopes: tuple[str, ...] = SCOPES,
    ) -> None:
        self._backend: Backend = Tenant(backend, ACCESS)
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()
        self._token_access = Access("token", "token", token_tenant, token_scopes, "")
        self._used: dict[str, float] = {}

    @classmethod
    def of(cls, agent: Tenuto) -> Self:
        """Return the API keys of a client's store, with what that client may do: confined or read-only, it may nothing."""
        found = cls(agent.kernel)
        found._backend = agent.for_tenant(ACCESS).kernel
        return found

    def create(
        self, name: str, *, tenant: str, scopes: Sequence[str], prefix: str = "", expires: Duration | None = None
    ) -> NewKey:
        """Create an API key durably; its text is returned here and never again."""
        now = self._backend.now()
        ends = None if expires is None else now + seconds(expires)
        stored = _Stored(b"", _named(name), _tenant(tenant), _scopes(scopes), _prefix(prefix), now, ends, None)
        if any(one.name == name and one.is_valid(now) for one in self.list()):
            raise Conflict(f"There is an API key named {name!r} already; nothing was written. Choose another name.")
        return self._write(stored, None)

    def rotate(self, key: str, *, overlap: Duration | None = None) -> NewKey:
        """Replace an API key by a new one with the same name and rights; the old one ends now, or after `overlap`."""
        record, old = self._found(key)
        now = self._backend.now()
        ends = now if overlap is None else now + seconds(overlap)
        if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
            raise Conflict(f"The API key {key!r} is no longer valid; nothing was written. Create a new one.")
        ends = ends if old.expires_at is None else min(ends, old.expires_at)
        return self._write(old._replace(created_at=now), (record, old._replace(expires_at=ends)))

    def revoke(self, key: str) -> ApiKey:
        """Revoke an API key durably: from then on every server process refuses it. Revoking twice is safe.

        A name revokes every key of this name in one commit, also the old one of a rotation that still overlaps.
        """
        record, stored = self._found(key)
        live = [one.id for one in self.list() if key in (one.id, one.name) and one.revoked_at is None]
        records = [one for one in self._backend.read([_KEY + keys.pack(one) for one in live]) if one is not None]
        if records:
            now = self._backend.now()
            checks = [Check(one.key, one.version) for one in records]
            writes = [Put(one.key, codec.encode(list(_stored(one)._replace(revoked_at=now)))) for one in records]
            perform(commit_once(self._backend, checks, writes), SystemClock())
            stored = stored._replace(revoked_at=stored.revoked_at or now)
        return self._shown(record, stored)

    def list(self) -> list[ApiKey]:
        """Return all API keys, oldest first, without their secrets."""
        found: list[ApiKey] = []
        after: bytes | None = None
        while page := self._backend.scan(_KEY, after=after, limit=1_000):
            found += [self._shown(record, _stored(record)) for record in page]
            after = page[-1].key
        return sorted(found, key=lambda one: one.created_at)

    def verify(self, text: str | None) -> Access:
        """Return what an API key may do; raise `AccessDenied` without saying why it is not valid.

        An unknown id takes the same path as a wrong secret, so the time of the refusal tells nothing.
        """
        if text is None:
            raise AccessDenied(_NO_KEY)
        own = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        if self._token is not None and hmac.compare_digest(own, self._token):
            return self._token_access
        parts = text.split("_")
        usable = len(parts) >= 3 and parts[0] == "tk" and parts[1].isalnum() and len(parts[1]) == 12
        key_id = parts[1] if usable else "0" * 12
        record = self._backend.read([_KEY + keys.pack(key_id)])[0]
        stored = None if record is None else _stored(record)
        right = hmac.compare_digest(own, _UNKNOWN if stored is None else stored.digest)
        now = self._backend.now()
        if stored is None or not right or stored.revoked_at is not None:
            raise AccessDenied(_NO_KEY)
        if stored.expires_at is not None and stored.expires_at <= now:
            raise AccessDenied(_NO_KEY)
        if now - self._used.get(key_id, 0.0) > _USED_EVERY:
            self._used[key_id] = now
            with suppress(StorageUnavailable, ReadOnly):  # a store that takes no writes is still read
                self._backend.commit([], [Put(_USED + keys.pack(key_id), codec.encode(now))])
        return Access(key_id, stored.name, stored.tenant, tuple(stored.scopes), stored.prefix)

    def _write(self, stored: _Stored, replaced: tuple[Record, _Stored] | None) -> NewKey:
        key_id = secrets.token_hex(6)
        text = f"tk_{key_id}_{secrets.token_urlsafe(32)}"
        stored = stored._replace(digest=hashlib.sha256(text.encode()).digest())
        at = _KEY + keys.pack(key_id)
        checks, writes = [Check(at, 0)], [Put(at, codec.encode(list(stored)))]
        if replaced is not None:
            record, old = replaced
            checks.append(Check(record.key, record.version))
            writes.append(Put(record.key, codec.encode(list(old))))
        perform(commit_once(self._backend, checks, writes), SystemClock())
        return NewKey(key_id, stored.name, text)

    def _found(self, key: str) -> tuple[Record, _Stored]:
        """Return an API key by its id, or by its name: the newest one that is not revoked."""
        named = [one for one in self.list() if key in (one.id, one.name)]
        live = [one for one in named if one.revoked_at is None]
        record = None
        if named:
            record = self._backend.read([_KEY + keys.pack((live or named)[-1].id)])[0]
        if record is None:
            raise NotFound(f"There is no API key {key!r}. List them with: tenuto keys list")
        return record, _stored(record)

    def _shown(self, record: Record, stored: _Stored) -> ApiKey:
        key_id = str(keys.unpack(record.key)[-1])
        used = self._backend.read([_USED + keys.pack(key_id)])[0]
        times = [stored.created_at, stored.expires_at, stored.revoked_at, used and codec.decode(used.value)]
        created, expires, revoked, last = [None if one is None else moment(one) for one in times]
        assert created is not None
        return ApiKey(
            key_id, stored.name, stored.tenant, list(stored.scopes), stored.prefix, created, expires, revoked, last
        )


def _stored(record: Record) -> _Stored:
    found: Any = codec.decode(record.value)
    return _Stored(*found)


def _named(name: str) -> str:
    if not keys.name(name, "name of an API key").isprintable():
        raise InvalidInput("The name of an API key must be printable text.")
    return name


def _tenant(tenant: str) -> str:
    if keys.name(tenant, "tenant") == ACCESS:
        raise InvalidInput(f"{ACCESS!r} holds the API keys themselves. Choose another tenant.")
    return tenant


def _scopes(scopes: Sequence[str]) -> list[str]:
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidInput(f"An API key needs scopes among {', '.join(SCOPES)}, not {', '.join(scopes) or 'none'}.")
    return [one for one in SCOPES if one in scopes]


def _prefix(prefix: str) -> str:
    if prefix:
        keys.name(prefix, "prefix")
    return prefix
