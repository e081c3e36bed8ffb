"""The data keys of one tenant, wrapped by master keys in the tenant's marker.

Key, below the tenant: `("tenuto", "encryption")` is the marker: the data keys with their ids, each wrapped by a master
key and bound to the tenant and the options, the id of the one that new values are sealed with, and the options. A tenant
with a marker is encrypted; one without is not. The first write of a tenant makes the marker before it, in a commit that
requires that there is none; a crash in between leaves an encrypted tenant that is empty.

Rotation replaces the marker in one commit: all data keys wrapped by the first master key, and a new data key for what is
written from then on. Values are not rewritten: that would raise their versions, which callers compare and leases are
fenced by, and entries of a stream never change. So a data key stays for as long as the tenant.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

import ormsgpack

from tenuto.errors import Conflict, InvalidInput, NewerFormat, NotEncrypted, WrongKey
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import Backend, Check, Delete, Put, Record
from tenuto.wrappers.encrypt import seal
from tenuto.wrappers.encrypt.seal import DataKey, derive

_FORMAT: Final = 1
_BEGIN: Final = b"\xe0"
_DIGEST: Final = len(digest(b""))


class Options(NamedTuple):
    """What was chosen for a tenant when its first value was written."""

    hash_names: bool
    user_keys: bool


class Keyring(NamedTuple):
    """The data keys of a tenant, opened."""

    tenant: bytes
    by_id: dict[bytes, DataKey]
    active: DataKey
    names: bytes
    """The secret that hashes names: it follows from the oldest data key and never changes."""
    options: Options
    master: bytes
    """The id of the master key that wraps the active data key."""
    version: int
    """The version of the marker."""


def marker(tenant: bytes) -> bytes:
    """Return the key of a tenant's marker."""
    return tenant + keys.ENCRYPTION


def load(backend: Backend, tenant: bytes, masters: list[bytes]) -> Keyring | None:
    """Return a tenant's data keys, None if the tenant is empty; raise `NotEncrypted` if it is in the clear."""
    record = backend.read([marker(tenant)])[0]
    if record is None:
        if not _holds_data(backend, tenant):
            return None
        record = backend.read([marker(tenant)])[0]  # again: another client may have made it before it wrote the data
        if record is None:
            raise _in_the_clear(tenant)
    return _opened(tenant, record, masters)


def create(backend: Backend, tenant: bytes, masters: list[bytes], options: Options) -> Keyring:
    """Make an empty tenant encrypted, durably; return its data keys, or those that another client made meanwhile."""
    try:
        put = Put(
            marker(tenant), _closed(tenant, [DataKey(seal.new_id(), secrets.token_bytes(32))], masters[0], options)
        )
        backend.commit([Check(marker(tenant), 0)], [put])
    except Conflict:
        pass
    else:
        if _holds_data(backend, tenant, plain=True):  # a client without a key wrote between the look and the marker
            backend.commit([], [Delete(marker(tenant))])
            raise _in_the_clear(tenant)
    made = load(backend, tenant, masters)
    if made is None:
        raise Conflict("The tenant's encryption was set up and removed at the same time. Nothing was written; retry.")
    return made


def rotate(backend: Backend, ring: Keyring, masters: list[bytes]) -> Keyring:
    """Wrap all data keys with the first master key and add a new one for what is written from now on, in one commit."""
    found = [*ring.by_id.values(), DataKey(seal.new_id(), secrets.token_bytes(32))]
    put = Put(marker(ring.tenant), _closed(ring.tenant, found, masters[0], ring.options))
    backend.commit([Check(marker(ring.tenant), ring.version)], [put])
    again = load(backend, ring.tenant, masters)
    if again is None:
        raise Conflict("The tenant's marker was removed during the rotation. Restore the store from a backup.")
    return again


def _closed(tenant: bytes, data_keys: list[DataKey], master: bytes, options: Options) -> bytes:
    bound = _bound(tenant, options)
    wrapped = [[one.id, seal.wrap(master, one.secret, bound + one.id)] for one in data_keys]
    # The list itself is authenticated by a digest under the newest key: a key cannot be dropped or put in another place.
    proof = derive(data_keys[-1].secret, b"list" + b"".join(one.id + one.secret for one in data_keys))
    content = _BEGIN + ormsgpack.packb([_FORMAT, wrapped, list(options), proof])
    return content + digest(content)


def _opened(tenant: bytes, record: Record, masters: list[bytes]) -> Keyring:
    wrapped, options, proof = _fields(record.value)
    bound = _bound(tenant, options)
    by_master = {seal.master_id(one): one for one in masters}
    found: list[DataKey] = []
    for name, blob in wrapped:
        master = by_master.get(blob[: seal.ID])
        if master is None:
            raise WrongKey(
                "None of the given keys opens this tenant's data: it was encrypted with another key, or rotated to one. "
                "Nothing was read or written. Give the current key; with a list, the current one and older ones."
            )
        found.append(DataKey(name, seal.unwrap(master, blob, bound + name)))
    if proof != derive(found[-1].secret, b"list" + b"".join(one.id + one.secret for one in found)):
        raise seal.damaged("The list of the data keys was changed")
    names = derive(found[0].secret, b"names")
    by_id = {one.id: one for one in found}
    return Keyring(tenant, by_id, found[-1], names, options, wrapped[-1][1][: seal.ID], record.version)


def _fields(value: bytes) -> tuple[list[tuple[bytes, bytes]], Options, bytes]:
    content = value[:-_DIGEST]
    if value[:1] != _BEGIN or digest(content) != value[-_DIGEST:]:  # a flipped bit is no wrong key and no newer format
        raise seal.damaged("The record of the data keys was changed")
    form, *fields = ormsgpack.unpackb(content[1:])
    if form != _FORMAT:
        raise NewerFormat("A newer version of tenuto encrypted this tenant. Nothing was changed; upgrade tenuto.")
    wrapped, options, proof = fields
    return [(bytes(name), bytes(blob)) for name, blob in wrapped], Options(*map(bool, options)), proof


def _bound(tenant: bytes, options: Options) -> bytes:
    return ormsgpack.packb(["tenuto data key", tenant, list(options)])


def _holds_data(backend: Backend, tenant: bytes, *, plain: bool = False) -> bool:
    """Return whether there is a record besides the marker; with `plain` one that is not sealed, as others write already."""
    found = [one for one in backend.scan(tenant, limit=1_000 if plain else 2) if not one.key.startswith(marker(tenant))]
    return any(not plain or one.value[:1] not in (seal.OF_TENANT, seal.OF_USER) for one in found)


def _in_the_clear(tenant: bytes) -> NotEncrypted:
    name = keys.unpack(tenant)[0]
    return NotEncrypted(
        f"The tenant {name!r} of this store holds data in the clear, and an encryption key was given. Nothing was read or "
        "written. Open it without a key, or copy it into a new store that is opened with one."
    )


def agreed(given: Options, asked: dict[str, Any]) -> None:
    """Raise `InvalidInput` if a client asks for other options than those recorded."""
    for name, wanted in asked.items():
        if wanted is not None and wanted is not getattr(given, name):
            raise InvalidInput(
                f"This tenant was encrypted with {name}={getattr(given, name)}, which is fixed. Leave {name} out, or copy "
                "the data into a new store."
            )
