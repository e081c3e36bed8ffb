"""What a server is and how it is set up, asked on every new connection before it carries anything.

A store is refused on a server that may evict keys, on a replica, and, where commits are to survive the
machine, on one that does not sync its log at each write. What a managed server does not let us ask is said
in `stats()` and warned of; there `WAITAOF` after each commit takes the place of the setting.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from redis import exceptions as driver

from tenuto.backends._redis_errors import PASSING
from tenuto.errors import InvalidInput, ReadOnly


class UncheckedServerWarning(UserWarning):
    """The server does not say whether it is set up to keep what it was given."""


class Facts(NamedTuple):
    """What is known of a server."""

    server: str
    version: str
    policy: str
    appendonly: str
    appendfsync: str
    unchecked: tuple[str, ...]
    """Settings that the server does not tell."""
    waits: bool
    """True where each commit is followed by WAITAOF, as the setting cannot be seen."""

    @property
    def survives(self) -> str:
        """Say what a commit survives as the server is set up now."""
        if self.waits or (self.appendonly, self.appendfsync) == ("yes", "always"):
            return "kill and power loss"
        if self.appendonly == "yes":
            return "a clean stop; a kill or a power loss takes the last seconds (appendfsync everysec) or more (no)"
        return "neither: without appendonly what came after the last snapshot ends with the server"


def inspect(connection: Any, where: str, durability: str) -> Facts:  # noqa: C901 - one setting after the other
    """Return what a server is, or raise if a store would lose data on it."""
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
            f"{where} is a replica, which takes no writes and may be behind. Give the address of the primary, "
            "or a redis+sentinel:// or redis+cluster:// URL, which finds it."
        )
    policy = settings.get("maxmemory-policy") or memory.get("maxmemory_policy", "")
    if policy and policy != "noeviction":
        raise InvalidInput(
            f"{where} has maxmemory-policy {policy}: when memory is full it would silently let go of what was "
            "committed. Set maxmemory-policy to noeviction, or give tenuto a server of its own."
        )
    appendonly, appendfsync = settings.get("appendonly", ""), settings.get("appendfsync", "")
    waits = False
    if durability == "full" and (appendonly, appendfsync) != ("yes", "always"):
        if appendonly and appendfsync:
            wrong = "appendonly yes" if appendonly != "yes" else "appendfsync always"
            raise InvalidInput(
                f"{where} runs with appendonly {appendonly} and appendfsync {appendfsync}, so a commit may be lost "
                f'although it was acknowledged. Set "{wrong}" there, or accept that with durability="process".'
            )
        waits = _can_wait(connection)
        if not waits:
            raise InvalidInput(
                f"{where} does not say whether it syncs its log at each write (CONFIG is forbidden), and has no "
                'WAITAOF to make sure. Allow "CONFIG GET" or WAITAOF, or accept the loss with durability="process".'
            )
    unchecked = tuple(
        name
        for name, known in (("maxmemory-policy", policy), ("appendonly", appendonly), ("appendfsync", appendfsync))
        if not known
    )
    if unchecked:
        warnings.warn(
            f"{where} does not tell {', '.join(unchecked)}; make sure of maxmemory-policy noeviction, appendonly yes "
            "and appendfsync always in its settings.",
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
    """Return a reply, None where the server does not let us ask or does not know what was asked."""
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
