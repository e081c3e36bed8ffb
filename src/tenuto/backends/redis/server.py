"""Inspect a server's kind and settings, on every new connection before its first use.

tenuto refuses a server that may evict keys, a replica, and with `durability="full"` a server that does not sync
its log at each write. Settings that a managed server hides are listed in `stats()` and cause a warning; then
`WAITAOF` after each commit replaces the setting.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from redis import exceptions as driver

from tenuto.backends.redis.errors import PASSING
from tenuto.errors import InvalidInput, ReadOnly


class UncheckedServerWarning(UserWarning):
    """The server hides settings that durability depends on."""


class Facts(NamedTuple):
    """The facts known about a server."""

    server: str
    version: str
    policy: str
    appendonly: str
    appendfsync: str
    unchecked: tuple[str, ...]
    """Settings that the server hides."""
    waits: bool
    """True if each commit is followed by WAITAOF, because the setting is hidden."""

    @property
    def survives(self) -> str:
        """Return what a commit survives with the current settings."""
        if self.waits or (self.appendonly, self.appendfsync) == ("yes", "always"):
            return "kill and power loss"
        if self.appendonly == "yes":
            return "a clean stop; a kill or a power loss loses the last seconds (appendfsync everysec) or more (no)"
        return "nothing: without appendonly a stop of the server loses all commits since its last snapshot"


def inspect(connection: Any, where: str, durability: str) -> Facts:  # noqa: C901 - one branch for each setting
    """Return the facts about a server, or raise if it could lose data."""
    settings: dict[str, str] = {}
    asked = ("maxmemory-policy", "appendonly", "appendfsync")
    for name in asked:
        connection.send_command("CONFIG", "GET", name)
    for command in (("ROLE",), ("INFO", "server"), ("INFO", "memory")):
        connection.send_command(*command)
    for name in asked:
        reply = _reply(connection)
        if reply:
            settings[name] = reply[1].decode()
    role, server, memory = _reply(connection), _info(_reply(connection)), _info(_reply(connection))
    if role and role[0] != b"master":
        raise ReadOnly(
            f"{where} is a replica, which is read-only and may lag. Nothing was written; use the address of the primary, "
            "or a redis+sentinel:// or redis+cluster:// URL, which finds it."
        )
    policy = settings.get("maxmemory-policy") or memory.get("maxmemory_policy", "")
    if policy and policy != "noeviction":
        raise InvalidInput(
            f"{where} has maxmemory-policy {policy}: when memory is full it silently deletes "
            "committed data. Set maxmemory-policy to noeviction, or use a separate server."
        )
    appendonly, appendfsync = settings.get("appendonly", ""), settings.get("appendfsync", "")
    waits = False
    if durability == "full" and (appendonly, appendfsync) != ("yes", "always"):
        if appendonly and appendfsync:
            wrong = "appendonly yes" if appendonly != "yes" else "appendfsync always"
            raise InvalidInput(
                f"{where} runs with appendonly {appendonly} and appendfsync {appendfsync}, so an acknowledged commit "
                f'may be lost. Set "{wrong}" there, or accept the loss with durability="process".'
            )
        waits = _can_wait(connection)
        if not waits:
            raise InvalidInput(
                f"{where} does not tell whether it syncs its log at each write (CONFIG is forbidden), and has no "
                'WAITAOF to enforce it. Allow "CONFIG GET" or WAITAOF, or accept the loss with durability="process".'
            )
    unchecked = tuple(
        name
        for name, known in (("maxmemory-policy", policy), ("appendonly", appendonly), ("appendfsync", appendfsync))
        if not known
    )
    if unchecked:
        warnings.warn(
            f"{where} hides the settings {', '.join(unchecked)}. Check that it has maxmemory-policy noeviction, "
            "appendonly yes and appendfsync always.",
            UncheckedServerWarning,
            stacklevel=2,
        )
    valkey = server.get("server_name") == "valkey" or "valkey_version" in server
    return Facts(
        "valkey" if valkey else "redis",
        server.get("valkey_version") or server.get("redis_version", ""),
        policy,
        appendonly,
        appendfsync,
        unchecked,
        waits,
    )


def _reply(connection: Any) -> Any:
    """Return a reply, or None if the command is unknown or forbidden."""
    try:
        return connection.read_response()
    except driver.AuthenticationError:
        raise
    except driver.ResponseError as error:
        if str(error).startswith(PASSING):
            raise
        return None


def _info(raw: bytes | None) -> dict[str, str]:
    lines = (raw or b"").decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _can_wait(connection: Any) -> bool:
    connection.send_command("WAITAOF", 1, 0, 1000)
    reply = _reply(connection)
    return bool(reply) and reply[0] >= 1
