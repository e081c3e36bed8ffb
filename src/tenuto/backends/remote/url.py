"""Parse the URL of a server: address, base path and the options of the client.

    https://host                                      https://host/tenuto?timeout=10&ca=/etc/ca.pem
    http://127.0.0.1:8377                             plain HTTP on this machine only
    http://10.0.0.7:8377?insecure=true                plain HTTP to another machine: anyone between can read the key

A proxy is taken from `$HTTPS_PROXY`, `$HTTP_PROXY` and `$NO_PROXY`: http://user:password@host:port. Error messages never include the URL.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from tenuto.errors import InvalidInput


class Place(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Proxy(NamedTuple):
    """A proxy between the client and the server."""

    place: Place
    headers: str
    """What the proxy is sent with each request that it reads: its user and password, if it has them."""


class Target(NamedTuple):
    """The parsed content of a URL."""

    place: Place
    base: str
    """The path in front of every path of the server, without a slash at its end."""
    tls: ssl.SSLContext | None
    proxy: Proxy | None
    timeout: float

    def __str__(self) -> str:
        """Show the address, without secrets."""
        return f"{'https' if self.tls else 'http'}://{self.place}{self.base}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parsed(url: str, timeout: float) -> Target:
    """Return the target of a URL, or raise `InvalidInput`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput("The server's URL is malformed. Use https://host or https://host:port/path.") from None
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host or parts.fragment or not url.isprintable() or " " in url:
        raise InvalidInput("A server's URL must be https://host, https://host:port or https://host/path.")
    if parts.username or parts.password:
        raise InvalidInput("A server's URL carries no password. Pass api_key= or set $TENUTO_API_KEY.")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    seconds = _seconds(options.pop("timeout", timeout))
    insecure, authority = options.pop("insecure", "false"), options.pop("ca", None)
    if options or insecure not in ("true", "false"):
        raise InvalidInput(
            f"A server's URL has no option {', '.join(sorted(options)) or 'insecure=' + insecure}. "
            "Use timeout=SECONDS, ca=FILE or insecure=true."
        )
    secure = parts.scheme == "https"
    if not secure and insecure != "true" and not is_loopback(host):
        raise InvalidInput(
            "http:// would send the API key unencrypted to another machine. Use https://, or add ?insecure=true "
            "on a network that you trust."
        )
    place = Place(host, port or (443 if secure else 80))
    return Target(
        place, parts.path.rstrip("/"), _context(authority) if secure else None, _proxy(parts.scheme, place), seconds
    )


def _context(authority: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"The file of ca= cannot be used ({error}). Name a file of certificates in PEM.") from error


def _proxy(scheme: str, place: Place) -> Proxy | None:
    found = getproxies().get(scheme)
    if not found or is_loopback(place.host) or proxy_bypass(place.host):
        return None
    try:
        parts = urlsplit(found if "//" in found else f"//{found}")
        port = parts.port or 3128
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("", "http") or not parts.hostname:
        raise InvalidInput(
            f"The proxy in ${scheme.upper()}_PROXY must be http://host:port. Nothing was done; "
            f"correct it, or name {place.host} in $NO_PROXY."
        )
    if parts.username is None:
        return Proxy(Place(parts.hostname, port), "")
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    known = base64.b64encode(user.encode()).decode()
    return Proxy(Place(parts.hostname, port), f"Proxy-Authorization: Basic {known}\r\n")


def _seconds(given: str | float) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"timeout must be a number of seconds above 0, not {given!r}.")
    return seconds
