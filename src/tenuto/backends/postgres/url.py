"""Parse a Postgres URL: libpq's part and the options of the store. No message contains a password."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenuto.errors import InvalidInput

_OPTIONS: Final = ("schema", "pool", "timeout", "durability")


def split(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without tenuto's options, and those options."""
    if "://" not in url:
        return url, {}
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    own = {name: text for name, text in pairs if name in _OPTIONS}
    rest = [(name, text) for name, text in pairs if name not in _OPTIONS]
    return base + ("?" + urlencode(rest) if rest else ""), own


def conninfo(base: str, timeout: float) -> tuple[str, str]:
    """Return the connection string, and the address without its password."""
    try:
        given = conninfo_to_dict(base)
    except psycopg.ProgrammingError:
        raise InvalidInput(
            "The URL is not a valid Postgres URL. Use postgresql://user@host:5432/database, "
            "with special characters in names and passwords percent-encoded."
        ) from None
    defaults: dict[str, str | int | None] = {
        "client_encoding": "utf8",
        "application_name": "tenuto",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": int(timeout * 1000),
    }
    made = make_conninfo("", **{**defaults, **given})
    host = given.get("host") or given.get("hostaddr") or "local socket"
    port = f":{given['port']}" if given.get("port") else ""
    return made, f"postgres at {host}{port}/{given.get('dbname') or given.get('user') or ''}"


def number(name: str, text: str | float, least: float, most: float) -> float:
    """Return a numeric option within its limits, or raise `InvalidInput`."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not least <= found <= most:
        raise InvalidInput(f"{name} must be a number from {least:g} to {most:g}, not {text!r}.")
    return found
