"""Encrypt every value of a store; keys, numbers, times and sizes stay as they are.

It stands next to the backend, below tenants and hooks: what is above it sees plain values. The backend's checksums and
the digest chains of streams cover the sealed bytes, so its own `check` needs no key; this one also opens every
record of the tenants that this client has used. Keys of its own: see `keyring` and `users`; no verb shows or changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenuto.errors import Conflict, Damaged, InvalidInput, NotFound, RequestReused, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import (
    MAX_VALUE,
    AnyCheck,
    Append,
    Backend,
    Commit,
    Entry,
    Finding,
    Put,
    Record,
    Rotation,
    Write,
    validate_read,
    validate_scan,
)
from tenuto.kernel.loading import validate_load
from tenuto.wrappers.encrypt import keyring, names, seal
from tenuto.wrappers.encrypt.keyring import Keyring, Options
from tenuto.wrappers.encrypt.moving import Loading
from tenuto.wrappers.encrypt.seal import RECORD, STREAM, DataKey
from tenuto.wrappers.encrypt.sources import Encryption, resolve
from tenuto.wrappers.encrypt.users import Users

_made: Any = tuple.__new__
_OWN: Final = 'The keys ("tenuto", "encryption", …) belong to the encryption. Use another scope.'


class Encrypt:
    """Seal what is written and open what is read, with the data keys of each tenant."""

    def __init__(self, backend: Backend, encryption: Encryption | Any) -> None:
        chosen = encryption if isinstance(encryption, Encryption) else Encryption(encryption)
        self._backend = backend
        self._source = chosen.key
        self._asked = {"hash_names": chosen.hash_names, "user_keys": chosen.user_keys}
        self._rings: dict[bytes, Keyring] = {}
        self._users: dict[bytes, Users] = {}
        self.now = backend.now
        if not callable(chosen.key):
            resolve(chosen.key)  # an invalid key is an error here, not at the first call; a callable waits for that

    # -- the verbs ---------------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read and open records."""
        if len(keys) > 1:
            validate_read(keys)
        ring = self._ring(keys[0]) if keys else None
        if ring is None:
            return [None if _is_own(key) else one for key, one in zip(keys, self._backend.read(keys), strict=True)]
        found = self._backend.read([self._place(ring, key) for key in keys])
        held = [None if one is None or _is_own(key) else one for key, one in zip(keys, found, strict=True)]
        user_keys = self._user_keys(ring, [one.value for one in held if one is not None])
        return [one and self._opened(ring, user_keys, one) for one in held]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan and open records.

        A page with records of the wrapper or of forgotten users among it is filled by further scans, of later snapshots.
        """
        validate_scan(prefix, limit)
        ring = self._ring(prefix)
        if ring is None:
            return self._backend.scan(prefix, after=after, limit=limit, reverse=reverse)
        own = keyring.marker(ring.tenant)
        inner = self._place(ring, prefix)
        start = None if after is None else self._place(ring, after)
        kept: list[Record] = []
        while len(kept) < limit and not prefix.startswith(own):
            asked = limit - len(kept)
            found = self._backend.scan(inner, after=start, limit=asked, reverse=reverse)
            others = [one for one in found if not one.key.startswith(own)]
            user_keys = self._user_keys(ring, [one.value for one in others])
            kept += [shown for one in others if (shown := self._opened(ring, user_keys, one)) is not None]
            if len(found) < asked:
                break
            start = found[-1].key
            if start.startswith(own):
                start = own if reverse else own + b"\xff"
        return kept

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read and open entries of a stream."""
        ring = self._ring(stream)
        place = stream if ring is None else self._place(ring, stream)
        found = self._backend.entries(place, after=after, limit=limit, reverse=reverse)
        if ring is None:
            return found
        user_keys = self._user_keys(ring, [one.value for one in found if not one.forgotten])
        shown = []
        for one in found:
            value = None if one.forgotten else self._content(ring, user_keys, STREAM, place, one.value)
            if value is not None and ring.options.hash_names:
                value = names.apart(value)[1]
            shown.append(_made(Entry, (one[0], value or b"", *one[2:6], value is None)))
        return shown

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Seal and commit values."""
        touched = [one[0] for one in (*checks, *writes)]
        if not touched or not keys.has_tenant(touched[0]):
            return self._backend.commit(checks, writes, request=request)  # the store rejects it
        if any(map(_is_own, touched)):
            raise InvalidInput(_OWN)
        ring = self._ring(touched[0]) or (self._create(touched[0]) if writes else None)
        if ring is None:
            return self._backend.commit(checks, writes, request=request)
        places = {key: self._place(ring, key) for key in touched} if ring.options.hash_names else {}
        guards = [_made(type(one), (places[one[0]], one[1])) for one in checks] if places else checks
        try:
            return self._committed(ring, guards, writes, request, places)
        except Conflict as error:
            raise _with_names(error, places) from None

    def _committed(
        self, ring: Keyring, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None,
        places: dict[bytes, bytes],
    ) -> Commit:  # fmt: skip
        own = self._own_keys(ring, writes)
        sealed = _sealed([key or ring.active for key in own], writes, request, places)
        try:
            return self._backend.commit(checks, sealed, request=request)
        except RequestReused:
            # The first attempt may have been made before a rotation: with the key of then the bytes are the same.
            for older in ring.by_id.values():
                if older is not ring.active:
                    again = _sealed([key or older for key in own], writes, request, places)
                    try:
                        return self._backend.commit(checks, again, request=request)
                    except RequestReused:
                        continue
            raise

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams; with hashed names those of which an entry is left that holds the name."""
        ring = self._ring(prefix)
        if ring is None or not ring.options.hash_names:
            return self._backend.streams(prefix, after=after, limit=limit)
        start = None if after is None else self._place(ring, after)
        found = self._backend.streams(self._place(ring, prefix), after=start, limit=limit)
        return [name for place in found if (name := self._name_of(ring, place)) is not None]

    def _name_of(self, ring: Keyring, place: bytes) -> bytes | None:
        for one in self._backend.entries(place, limit=1) + self._backend.entries(place, limit=1, reverse=True):
            if not one.forgotten:
                content = self._content(ring, self._user_keys(ring, [one.value]), STREAM, place, one.value)
                if content is not None:
                    return names.apart(content)[0]
        return None

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Seal and load records and entries."""
        validate_load(records, entries)
        touched = [*(one.key for one in records), *entries]
        if not touched:
            return self._backend.load(records, entries)
        if any(map(_is_own, touched)):
            raise InvalidInput(_OWN)
        ring = self._ring(touched[0]) or self._create(touched[0])
        places = {key: self._place(ring, key) for key in touched}

        def opened(kind: bytes, place: bytes, data: bytes) -> bytes | None:
            return self._content(ring, self._user_keys(ring, [data]), kind, place, data)

        def content(key: bytes, value: bytes) -> bytes:
            return _fitting(names.with_key(key, value) if ring.options.hash_names else value)

        def own(writes: Sequence[Write]) -> Sequence[DataKey | None]:
            return self._own_keys(ring, writes)

        try:
            loading = Loading(self._backend, ring, places.__getitem__, content, opened, own, records, entries)
            return loading.carry_out()
        except Conflict as error:
            raise _with_names(error, places) from None

    def trim(self, stream: bytes, first: int) -> int:
        """Trim a stream."""
        ring = self._ring(stream)
        return self._backend.trim(stream if ring is None else self._place(ring, stream), first)

    def bell(self, stream: bytes) -> Bell:
        """Return the bell of a stream."""
        ring = self._ring(stream)
        return self._backend.bell(stream if ring is None else self._place(ring, stream))

    def check(self) -> list[Finding]:
        """Check the store, and open every record of the tenants that this client has used."""
        return self._backend.check() or [
            one for ring in list(self._rings.values()) for one in self._undecryptable(ring)
        ]

    def _undecryptable(self, ring: Keyring) -> Iterator[Finding]:
        after: bytes | None = None
        while page := self._backend.scan(ring.tenant, after=after, limit=1_000):
            for one in page:
                try:
                    if not _is_own(one.key):
                        self._opened(ring, self._user_keys(ring, [one.value]), one)
                except Damaged as error:
                    yield Finding("undecryptable", f"{one.key!r}: {error}")
            after = page[-1].key

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures, and that it is encrypted."""
        return {**self._backend.stats(), "encrypted": True}

    def close(self) -> None:
        """Close the store."""
        self._backend.close()

    # -- keys ----------------------------------------------------------------------------------------

    def rotate(self, tenant: str) -> Rotation:
        """Wrap a tenant's data keys with the first master key, add a data key, and seal users' keys with it.

        Killed at any point, everything stays readable; called again, it does the rest.
        """
        start = keys.pack(keys.name(tenant, "tenant"))
        self._rings.pop(start, None)
        ring, masters = self._ring(start), resolve(self._source)
        if ring is None:
            raise NotFound(f"The tenant {tenant!r} holds no data yet, so it has no keys. Its first write makes them.")
        users = self._users[start]
        if ring.master != seal.master_id(masters[0]) or not users.has_stale():
            ring = keyring.rotate(self._backend, ring, masters)
            self._keep(ring)
        return Rotation(len(ring.by_id), users.rewrap())

    def destroy_user_key(self, tenant: str, user: str) -> bool:
        """Destroy a user's key, durably: all that it seals reads as absent. Return False if the user has none.

        Then the unreadable bytes are removed. Killed in between, another call removes them.
        """
        ring = self._ring(keys.pack(keys.name(tenant, "tenant")))
        if ring is not None and not ring.options.user_keys:
            raise InvalidInput(
                "This tenant was encrypted without user_keys. Users are forgotten there by deletion alone."
            )
        if ring is None:
            return False
        destroyed = self._users[ring.tenant].destroy(keys.name(user, "user"))
        self._users[ring.tenant].sweep()
        return destroyed

    def has_user_keys(self, tenant: str) -> bool:
        """Return whether what belongs to a user of the tenant is sealed with a key of its own."""
        ring = self._ring(keys.pack(keys.name(tenant, "tenant")))
        return ring is not None and ring.options.user_keys

    def seal_object(self, tenant: str, user: str | None, place: bytes, data: bytes) -> bytes:
        """Seal what is kept outside of the store."""
        start = keys.pack(keys.name(tenant, "tenant"))
        ring = self._ring(start) or self._create(start)
        own = user is not None and ring.options.user_keys
        key = self._users[ring.tenant].key_of(user) if own and user is not None else ring.active
        return key.seal(seal.OBJECT, start + place, data)

    def open_object(self, tenant: str, place: bytes, data: bytes) -> bytes | None:
        """Open what `seal_object` sealed; return None if the key of its user was destroyed."""
        start = keys.pack(keys.name(tenant, "tenant"))
        ring = self._ring(start)
        if ring is None:
            raise seal.damaged("This tenant has no keys")
        return self._content(ring, self._user_keys(ring, [data]), seal.OBJECT, start + place, data)

    def _ring(self, key: bytes) -> Keyring | None:
        tenant = keys.tenant_of(key)
        ring = self._rings.get(tenant)
        if ring is not None or not keys.has_tenant(key):
            return ring
        return self._keep(keyring.load(self._backend, tenant, resolve(self._source)))

    def _create(self, key: bytes) -> Keyring:
        options = Options(*(bool(self._asked[name]) for name in Options._fields))
        made = keyring.create(self._backend, keys.tenant_of(key), resolve(self._source), options)
        self._keep(made)
        return made

    def _keep(self, ring: Keyring | None) -> Keyring | None:
        if ring is not None:
            keyring.agreed(ring.options, self._asked)
            self._rings[ring.tenant] = ring
            self._users.setdefault(ring.tenant, Users(self._backend, ring)).ring = ring
        return ring

    # -- values ----------------------------------------------------------------------------------------

    @staticmethod
    def _place(ring: Keyring, key: bytes) -> bytes:
        return names.hashed(key, len(ring.tenant), ring.names) if ring.options.hash_names else key

    def _own_keys(self, ring: Keyring, writes: Sequence[Write]) -> Sequence[DataKey | None]:
        return self._users[ring.tenant].keys_for(writes) if ring.options.user_keys else [None] * len(writes)

    def _user_keys(self, ring: Keyring, values: Sequence[bytes]) -> dict[bytes, DataKey | None]:
        if not ring.options.user_keys:
            return {}
        named = {seal.key_id(value) for value in values if value[:1] == seal.OF_USER}
        return self._users[ring.tenant].keys_of(named) if named else {}

    def _opened(self, ring: Keyring, user_keys: dict[bytes, DataKey | None], one: Record) -> Record | None:
        value, key = self._content(ring, user_keys, RECORD, one.key, one.value), one.key
        if value is None:
            return None
        if ring.options.hash_names:
            key, value = names.apart(value)
        return _made(Record, (key, value, *one[2:]))  # type: ignore[no-any-return]

    def _content(
        self, ring: Keyring, user_keys: dict[bytes, DataKey | None], kind: bytes, place: bytes, data: bytes
    ) -> bytes | None:
        """Return what is sealed, or None if it is sealed with a destroyed key."""
        name = seal.key_id(data)
        if data[:1] == seal.OF_USER and name in user_keys:
            own = user_keys[name]
            return None if own is None else own.open(kind, place, data)
        key = ring.by_id.get(name)
        if key is None:  # another client has rotated the keys
            again = self._keep(keyring.load(self._backend, ring.tenant, resolve(self._source)))
            key = None if again is None else again.by_id.get(name)
            if key is None:
                raise seal.damaged("It names a key that this tenant does not have")
        return key.open(kind, place, data)


def _sealed(
    by: Sequence[DataKey], writes: Sequence[Write], request: bytes | None, places: dict[bytes, bytes]
) -> list[Write]:
    out: list[Write] = []
    for number, (key, write) in enumerate(zip(by, writes, strict=True)):
        place = places.get(write[0], write[0])
        if type(write) is Put:
            value = names.with_key(write.key, write.value) if places else write.value
            out.append(_made(Put, (place, key.seal(RECORD, place, _fitting(value), request, number), write.ttl)))
        elif type(write) is Append:
            value = names.with_key(write.stream, write.value) if places else write.value
            out.append(_made(Append, (place, key.seal(STREAM, place, _fitting(value)))))
        else:
            out.append(_made(type(write), (place, *write[1:])))
    return out


def _with_names(error: Conflict, places: Mapping[bytes, bytes]) -> Conflict:
    back = {place: key for key, place in places.items()}
    return Conflict(str(error), [back.get(place, place) for place in error.keys])


def _fitting(value: bytes) -> bytes:
    if len(value) > MAX_VALUE - seal.OVERHEAD:
        raise TooLarge(
            f"An encrypted value takes up to {MAX_VALUE - seal.OVERHEAD:,} bytes; this one has {len(value):,}. Store it in parts."
        )
    return value


def _is_own(key: bytes) -> bool:
    return key.startswith(keys.ENCRYPTION, len(keys.tenant_of(key)))
