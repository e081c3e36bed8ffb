"""The keys that the contract's tests use."""

from __future__ import annotations

from tenuto.kernel import keys


def key(*parts: str | int) -> bytes:
    """Return a key in the tests' tenant and scope."""
    return keys.pack("tenant", "scope", *parts)


A, B, C = key("a"), key("b"), key("c")
LOG, OTHER = key("log"), key("other")
