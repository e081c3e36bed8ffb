"""Encryption of a store (extra `crypto`): a wrapper next to the backend.

`sources` finds the keys, `keyring` holds the data keys of a tenant, `seal` has the form of a value, `names` hashes keys.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tenuto.kernel.contract import Backend
from tenuto.wrappers.encrypt.sources import VARIABLE, Encryption, KeySource, new_key

__all__ = ["Encryption", "KeySource", "encrypted", "key_from_environment", "new_key"]


def key_from_environment() -> str | None:
    """Return where the key is if `$TENUTO_ENCRYPTION_KEY` is set, else None."""
    return f"env:{VARIABLE}" if os.environ.get(VARIABLE) else None


def encrypted(backend: Backend, key: KeySource | Encryption | None = None) -> Backend:
    """Return a store that is encrypted with a key, by default that of `$TENUTO_ENCRYPTION_KEY`; without one, the store."""
    if key is None or (isinstance(key, Encryption) and key.key is None):
        place = key_from_environment()
        if place is None:
            return backend
        key = Encryption(place) if key is None else replace(key, key=place)
    from tenuto.wrappers.encrypt.wrapper import Encrypt  # noqa: PLC0415 - needs the extra `crypto`

    return Encrypt(backend, key)
