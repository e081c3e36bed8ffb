"""The API keys of a server as operations of its JSON API: list and revoke, for admins of the keys' tenant.

Keys are created and rotated where the store is (`tenuto keys create`), not over HTTP: a stolen admin key then cannot make itself
a successor, and no reply ever holds a secret. A key of another tenant is not found, as if there were none.
"""

from __future__ import annotations

from typing import Annotated, Final

from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations import Operation
from tenuto.operations.table import described
from tenuto.servers.auth import ApiKey, Keys


def keys_list(agent: Tenuto) -> list[ApiKey]:
    """List the API keys of this tenant, without their secrets."""
    return [one for one in Keys.of(agent).list() if one.tenant == agent.tenant]


def keys_revoke(agent: Tenuto, key: Annotated[str, "Name or id of the key"]) -> ApiKey:
    """Revoke an API key of this tenant: from then on every server process refuses it. Revoking twice is safe.

    A name revokes every key of this name, also the old one of a rotation that still overlaps.
    """
    named = [one for one in keys_list(agent) if key in (one.id, one.name)]
    live = [one for one in named if one.revoked_at is None]
    if not named:
        raise NotFound(f"There is no API key {key!r} in this tenant. Nothing was revoked.")
    access = Keys.of(agent)
    return [access.revoke(one.id) for one in live or named][-1]


REPEATABLE: Final = ("keys revoke",)
"""Writes that are safe to send again as they are. The record of an Idempotency-Key is in the caller's tenant, and keys are not."""
KEYS: Final[tuple[Operation, ...]] = (
    described(keys_list, "keys list"),
    described(keys_revoke, "keys revoke", asks="Revoke the API key {key!r}?"),
)
