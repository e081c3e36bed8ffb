"""The settings of a server process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What a server accepts."""

    hosts: tuple[str, ...] | None = None
    """Names that a Host header may have, without the port; None accepts every name."""
    public_url: str = ""
    """The address that people use, for links and for the Origin check."""
    token: str | None = None
    """A key for this server alone, with every scope, for `token_tenant`."""
    token_tenant: str = "default"  # noqa: S105 - a tenant
    token_scopes: tuple[str, ...] = ("read", "write", "answer", "admin")
    """What that key may do."""
    max_body: int = 20 * 1024 * 1024
    """Maximum bytes of a request's body: a commit takes 16 MB of values, and their keys."""
    rate: float = 0.0
    """Requests per second and API key that this process accepts; 0 sets no limit."""
    threads: int = 32
    """Maximum number of concurrent calls of the store."""
    timeout: float = 30.0
    """Seconds to receive a body, and to begin a call without a Tenuto-Timeout."""
    metrics: bool = False
    """Whether /metrics is served; without it nothing is measured."""
    access_log: bool = True
    archive: str = ""
    """The only folder or bucket from which archived parts are brought back, whatever a tenant's store records; "": none."""
