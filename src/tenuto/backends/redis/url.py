"""Parse a Redis URL: servers, login and the options of the store.

Error messages never include the URL, which may contain a password.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tenuto.errors import InvalidInput

_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SCHEMES: Final = {
    "redis": "server", "rediss": "server", "unix": "server",
    "redis+sentinel": "sentinel", "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster", "rediss+cluster": "cluster",
}  # fmt: skip


class Place(NamedTuple):
    """The address of a server; a Unix socket has its path as host and no port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Target(NamedTuple):
    """The parsed content of a URL."""

    kind: str
    """Either server, sentinel or cluster."""
    places: tuple[Place, ...]
    service: str
    options: dict[str, Any]
    """For every connection to a server: user, password, database, TLS."""
    sentinel: dict[str, Any]
    """For connections to sentinels."""
    tls: bool

    def __str__(self) -> str:
        """Show the address, without secrets."""
        where = ",".join(map(str, self.places))
        return f"{self.service} ({where})" if self.service else where


def valid_prefix(text: str) -> bytes:
    """Return the prefix of all Redis keys of a store, or raise `InvalidInput`."""
    if not text or not text.isprintable() or any(c in "{}" for c in text) or len(text) > 100:
        raise InvalidInput(f"prefix must be a short name without braces, not {text!r}.")
    return text.encode()


def valid_seconds(given: Any) -> float:
    """Return a timeout, or raise `InvalidInput`."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"timeout must be a number of seconds above 0, not {given!r}.")
    return seconds


def parsed(
    url: str,
) -> tuple[Target, dict[str, str]]:
    """Return the target of a URL, and the store's own options."""
    parts = urlsplit(url)
    kind = _SCHEMES.get(parts.scheme)
    if kind is None:
        raise InvalidInput(f"{parts.scheme!r} is not a Redis URL scheme. Use one of {', '.join(sorted(_SCHEMES))}.")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    own: dict[str, str] = {name: options.pop(name) for name in ("durability", "timeout", "prefix") if name in options}
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given: dict[str, Any] = {}
    if user:
        given["username"] = unquote(user)
    if password:
        given["password"] = unquote(password)
    sentinel = {
        name: options.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in options
    }
    tls = parts.scheme.startswith("rediss")
    secured: dict[str, Any] = {name: options.pop(name) for name in _TLS_OPTIONS if tls and name in options}
    if "ssl_check_hostname" in secured:
        secured["ssl_check_hostname"] = secured["ssl_check_hostname"] == "true"
    path = unquote(parts.path).strip("/")
    service = ""
    if parts.scheme == "unix":
        places = [Place("/" + path, 0)]
        path = options.pop("db", "")
    else:
        places = [_place(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(",") if host]
        if kind == "sentinel":
            service, _, path = path.partition("/")
    if not places or (kind == "sentinel" and not service) or (kind == "server" and len(places) > 1):
        raise InvalidInput(
            "A Redis URL must be redis://host:port/db, redis+sentinel://host:port,host:port/service/db "
            "or redis+cluster://host:port,host:port."
        )
    if options:
        raise InvalidInput(
            f"redis has no option {', '.join(sorted(options))}. Use durability, timeout, prefix, "
            f"sentinel_username, sentinel_password, or with TLS {', '.join(_TLS_OPTIONS)}."
        )
    if path and (not path.isdigit() or (kind == "cluster" and path != "0")):
        raise InvalidInput("A database must be a number from 0; a cluster has only database 0.")
    return (
        Target(kind, tuple(places), service, {**given, **secured, "db": int(path or 0)}, {**sentinel, **secured}, tls),
        own,
    )


def _place(text: str, port: int) -> Place:
    try:
        parts = urlsplit(f"//{text}")
        return Place(parts.hostname or "localhost", parts.port or port)
    except ValueError:
        raise InvalidInput("A host must be host:port, with a port up to 65535.") from None
