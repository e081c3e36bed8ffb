"""Keys of users: what belongs to a user is sealed with a key of its own, and destroying that key forgets the user.

Keys, below the tenant's marker: `("key", id)` holds a user's key, sealed with a data key of the tenant, or after its
destruction the time of it; `("user", hash)` the id of a user's key; `("owner", hash)` the user of a thread, run, workflow
or task. All are written before the commit that needs them; a crash in between leaves a key that nothing uses. What is
sealed with a destroyed key reads as absent, an entry of a stream as forgotten. A process keeps a user's key in memory for
`MOST_CACHED` seconds at most, and so long it may still read.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tenuto.errors import Conflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Backend, Check, Delete, Forget, Put, Record, Write
from tenuto.wrappers.encrypt import keyring, owners, seal
from tenuto.wrappers.encrypt.keyring import Keyring
from tenuto.wrappers.encrypt.seal import OF_USER, RECORD, DataKey

MOST_CACHED: Final = 30.0
_MANY: Final = 10_000
_PAGE: Final = 200


class _Cached(NamedTuple):
    until: float
    value: Any


class Users:
    """The user keys of one tenant."""

    def __init__(self, backend: Backend, ring: Keyring) -> None:
        self._backend = backend
        self.ring = ring
        self._root = keyring.marker(ring.tenant)
        self._cache: dict[bytes, _Cached] = {}

    # -- reading ---------------------------------------------------------------------------------------

    def keys_of(self, names: Iterable[bytes]) -> dict[bytes, DataKey | None]:
        """Return users' keys by id, None for a destroyed one; raise `Damaged` if one is missing."""
        wanted = {name: self._root + keys.pack("key", name) for name in names}
        found = self._known(list(wanted.values()))
        opened: dict[bytes, DataKey | None] = {}
        for name, place in wanted.items():
            stored = found[place]
            if stored is None:
                raise seal.damaged("The key of its user is missing, and was not destroyed on purpose")
            secret = codec.decode(stored)
            opened[name] = DataKey(name, secret, OF_USER) if isinstance(secret, bytes) else None
        return opened

    def _known(self, places: Sequence[bytes]) -> dict[bytes, bytes | None]:
        now = time.monotonic()
        held = {place: self._cache.get(place) for place in places}
        missing = [place for place, one in held.items() if one is None or one.until < now]
        known = {place: one.value for place, one in held.items() if one is not None and one.until >= now}
        for start in range(0, len(missing), 1_000):
            some = missing[start : start + 1_000]
            for place, record in zip(some, self._backend.read(some), strict=True):
                known[place] = None if record is None else self._open(record)
                self._keep(place, known[place])
        return known

    def _keep(self, place: bytes, value: bytes | None) -> None:
        if len(self._cache) > _MANY:
            self._cache.clear()
        self._cache[place] = _Cached(time.monotonic() + MOST_CACHED, value)

    def _open(self, record: Record) -> bytes:
        key = self.ring.by_id.get(seal.key_id(record.value))
        if key is None:
            raise seal.damaged("It names a key that this tenant does not have")
        return key.open(RECORD, record.key, record.value)

    # -- writing ---------------------------------------------------------------------------------------

    def keys_for(self, writes: Sequence[Write]) -> list[DataKey | None]:
        """Return for each write the key of the user whose data it writes, made if there is none yet; else None."""
        begin = len(self.ring.tenant)
        parts = [_parts(write[0][begin:]) if type(write) is Put or type(write) is Append else () for write in writes]
        given = {owned: owners.user_of(one) for one in parts if (owned := owners.learned(one)) is not None}
        asked = [None if owners.user_of(one) else owners.owned_by(one) for one in parts]
        place_of = {owned: self._hashed("owner", *owned) for owned in {*given, *asked} - {None} if owned is not None}
        known = self._known(list(place_of.values())) if place_of else {}
        for owned, user in given.items():
            self._record_owner(place_of[owned], user, known[place_of[owned]])
        chosen: list[str | None] = []
        for one, owned in zip(parts, asked, strict=True):
            user = owners.user_of(one)
            if user is None and owned is not None:
                stored = known[place_of[owned]]
                user = given.get(owned) or (None if stored is None else stored.decode())
            chosen.append(user)
        by_user = {user: self.key_of(user) for user in set(chosen) if user is not None}
        return [None if user is None else by_user[user] for user in chosen]

    def _record_owner(self, place: bytes, user: str | None, known: bytes | None) -> None:
        value = (user or "").encode()
        if known != value:
            self._backend.commit([], [Put(place, self.ring.active.seal(RECORD, place, value))])
            self._keep(place, value)

    def key_of(self, user: str) -> DataKey:
        """Return a user's key, made durably if there is none yet."""
        by_name = self._hashed("user", user)
        while True:
            name = self._known([by_name])[by_name]
            if name is not None:
                key = self.keys_of([name])[name]
                if key is not None:
                    return key
            made = DataKey(seal.new_id(), secrets.token_bytes(32), OF_USER)
            place = self._root + keys.pack("key", made.id)
            secret = self.ring.active.seal(RECORD, place, codec.encode(made.secret))
            listed = Put(by_name, self.ring.active.seal(RECORD, by_name, made.id))
            self._cache.pop(by_name, None)
            try:
                self._backend.commit([Check(by_name, 0)], [Put(place, secret), listed])
            except Conflict:
                continue  # another client has just made one
            return made

    def destroy(self, user: str) -> bool:
        """Destroy a user's key, durably; return False if the user has none."""
        by_name = self._hashed("user", user)
        self._cache.clear()
        record = self._backend.read([by_name])[0]
        if record is None:
            return False
        place = self._root + keys.pack("key", self._open(record))
        mark = self.ring.active.seal(RECORD, place, codec.encode(self._backend.now()))
        self._backend.commit([Check(by_name, record.version)], [Put(place, mark), Delete(by_name)])
        self._cache.clear()
        return True

    def sweep(self) -> None:
        """Remove the records and the values of entries that destroyed keys seal: no one can read them.

        Each page is one commit. Killed anywhere, it can be called again and does the rest.
        """
        after = None
        while page := self._backend.scan(self.ring.tenant, after=after, limit=_PAGE):
            dead = self._unreadable([one.value for one in page])
            gone: list[Write] = [Delete(one.key) for one in page if one.value[: 1 + seal.ID] in dead]
            if gone:
                self._backend.commit([], gone)
            after = page[-1].key
        stream = None
        while some := self._backend.streams(self.ring.tenant, after=stream, limit=_MANY):
            for stream in some:
                self._sweep_stream(stream)

    def _sweep_stream(self, stream: bytes) -> None:
        number = 0
        while found := self._backend.entries(stream, after=number, limit=_PAGE):
            dead = self._unreadable([one.value for one in found if not one.forgotten])
            gone = [one.number for one in found if not one.forgotten and one.value[: 1 + seal.ID] in dead]
            if gone:
                self._backend.commit([], [Forget(stream, one, one) for one in gone])
            number = found[-1].number

    def _unreadable(self, values: Sequence[bytes]) -> set[bytes]:
        names = {value[1 : 1 + seal.ID] for value in values if value[:1] == OF_USER}
        return {OF_USER + name for name, key in self.keys_of(names).items() if key is None}

    def rewrap(self) -> int:
        """Seal the records of users that older data keys seal with the active one; return how many.

        Each page is one commit. Killed anywhere, it can be called again and does the rest.
        """
        count, after = 0, None
        while page := self._backend.scan(self._root, after=after, limit=_PAGE):
            stale = [one for one in page if one.key != self._root and seal.key_id(one.value) != self.ring.active.id]
            if stale:
                puts = [Put(one.key, self.ring.active.seal(RECORD, one.key, self._open(one))) for one in stale]
                try:
                    self._backend.commit([Check(one.key, one.version) for one in stale], puts)
                except Conflict:
                    continue  # another client changed one of the page: read it again
                count += len(stale)
            after = page[-1].key
        return count

    def has_stale(self) -> bool:
        """Return whether a rotation was left unfinished."""
        after = None
        while page := self._backend.scan(self._root, after=after, limit=_PAGE):
            if any(one.key != self._root and seal.key_id(one.value) != self.ring.active.id for one in page):
                return True
            after = page[-1].key
        return False

    def _hashed(self, kind: str, *names: str) -> bytes:
        content = keys.pack(kind, *names)
        return self._root + keys.pack(kind, hashlib.blake2b(content, key=self.ring.names, digest_size=16).digest())


def _parts(key: bytes) -> tuple[keys.Part, ...]:
    try:
        return keys.unpack(key)
    except ValueError:  # no capability makes such a key
        return ()
