"""What a Redis URL says: where the servers are, how to log in, and the options of the store.

No message repeats the URL: it may hold a password.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tenuto.backends._redis_link import Place, Target
from tenuto.errors import InvalidInput

_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SCHEMES: Final = {
    "redis": "server", "rediss": "server", "unix": "server",
    "redis+sentinel": "sentinel", "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster", "rediss+cluster": "cluster",
}  # fmt: skip


def valid_prefix(text: str) -> bytes:
    """Return the prefix of every key of a store, or raise `InvalidInput`."""
    if not text or not text.isprintable() or any(c in "{}" for c in text) or len(text) > 100:
        raise InvalidInput(f"prefix is a short name without braces, not {text!r}.")
    return text.encode()


def valid_seconds(given: Any) -> float:
    """Return a timeout, or raise `InvalidInput`."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"timeout is a number of seconds above 0, not {given!r}.")
    return seconds


def parsed(
    url: str,
) -> tuple[Target, dict[str, str]]:
    """Return what a URL names, and the options that are the store's own."""
    parts = urlsplit(url)
    kind = _SCHEMES.get(parts.scheme)
    if kind is None:
        raise InvalidInput(f"{parts.scheme!r} is no kind of Redis URL; write one of {', '.join(sorted(_SCHEMES))}.")
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
            "A Redis URL is redis://host:port/db, redis+sentinel://host:port,host:port/service/db "
            "or redis+cluster://host:port,host:port."
        )
    if options:
        raise InvalidInput(
            f"redis takes no option {', '.join(sorted(options))}; it takes durability, timeout, prefix, "
            f"sentinel_username, sentinel_password, and with TLS {', '.join(_TLS_OPTIONS)}."
        )
    if path and (not path.isdigit() or (kind == "cluster" and path != "0")):
        raise InvalidInput("A database is a number from 0, and a cluster has only database 0.")
    return (
        Target(kind, tuple(places), service, {**given, **secured, "db": int(path or 0)}, {**sentinel, **secured}, tls),
        own,
    )


def _place(text: str, port: int) -> Place:
    try:
        parts = urlsplit(f"//{text}")
        return Place(parts.hostname or "localhost", parts.port or port)
    except ValueError:
        raise InvalidInput("A host is written host:port, with a port up to 65535.") from None
