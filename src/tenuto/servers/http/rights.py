"""What an API key may reach: its tenant, its prefix, and which records of the tenant are not for it.

A storage verb takes any key of the tenant, so what an operation refuses must be refused here too:

- Notification channels make a worker send requests, with variables of its environment. Only admins write them, only writers read them.
- The key that signs answer links lets its reader answer as anyone. Only writers read it; they may answer anyway.
- `check` and the figures cover all tenants. They are for admins of the tenant that the server's own token opens.
"""

from __future__ import annotations

from typing import Final

from tenuto.capabilities.people import CHANNELS, SIGNING_KEY
from tenuto.errors import AccessDenied
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend
from tenuto.servers.auth import Access
from tenuto.wrappers.confine import Confine
from tenuto.wrappers.protect import Protect
from tenuto.wrappers.readonly import ReadOnly

_NO_KEY: Final = codec.encode(b"")
_NO_CHANNEL: Final = codec.encode(["withheld", "", "webhook"])
_WHY: Final = "Notification channels are written by API keys with the scope admin. Nothing was done; use such a key."


def view(backend: Backend, access: Access) -> Backend:
    """Return the store with the limits of an API key; a view of its tenant goes around it."""
    tenant = keys.pack(access.tenant)
    store: Backend = Confine(backend, access.tenant, access.prefix) if access.prefix else backend
    if "admin" in access.scopes:
        return store
    if {"write", "answer"} & set(access.scopes):
        return Protect(store, fixed=[tenant + CHANNELS], why=_WHY)
    hidden = {tenant + SIGNING_KEY: _NO_KEY, tenant + CHANNELS: _NO_CHANNEL}
    return Protect(ReadOnly(store), hidden=hidden, why=_WHY)


def must_operate(access: Access, tenant: str) -> None:
    """Raise `AccessDenied` unless the key may see what covers all tenants: an admin of the server's own tenant."""
    access.must()
    if access.tenant != tenant:
        raise AccessDenied(
            "This call covers all tenants, so it takes an admin key of the tenant that the server's own token opens. "
            "Nothing was done; run it where the store is."
        )
