"""Where things are kept: one file, one class, one driver each, chosen by a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tenuto.errors import InvalidInput
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend

DEFAULT = ".tenuto/tenuto.db"


def connect(url: str | os.PathLike[str] | None, *, durability: str = "full", clock: Clock | None = None) -> Backend:
    """Return the backend for a URL or a path. Drivers are imported here, and nothing is opened yet."""
    if url is None:
        url = os.environ.get("TENUTO_URL") or DEFAULT
    if isinstance(url, os.PathLike):
        return _sqlite(os.fspath(url), {}, durability, clock)
    if not isinstance(url, str) or not url or "\x00" in url:
        raise InvalidInput(f"A store is given as a URL or a path, not {url!r}.")
    scheme, colon, _ = url.partition(":")
    if not colon or len(scheme) < 2 or "/" in scheme or "\\" in scheme or "." in scheme:
        return _sqlite(url, {}, durability, clock)
    opener = _SCHEMES.get(scheme)
    if opener is None:
        raise InvalidInput(
            f"{scheme!r} is no kind of store. Use a path, sqlite:///path, postgresql://host/db, redis://host, "
            "or volatile: for tests."
        )
    return opener(url, durability, clock)


def _open_volatile(url: str, _durability: str, clock: Clock | None) -> Backend:
    if url.partition(":")[2].strip("/"):
        raise InvalidInput('The volatile store is written "volatile:" and takes no options.')
    from tenuto.backends.volatile import VolatileBackend  # noqa: PLC0415 - only what is used is imported

    return VolatileBackend(clock=clock)


def _open_sqlite(url: str, durability: str, clock: Clock | None) -> Backend:
    path = url.partition(":")[2].split("?", 1)[0]
    if not path.startswith("///") or path == "///":
        raise InvalidInput(
            f"{url!r} names no file. Write sqlite:///agent.db for one in this folder, "
            "sqlite:////var/lib/agent.db for one from the root, or the plain path."
        )
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    return _sqlite(unquote(path[3:]), options, durability, clock)


def _open_postgres(url: str, durability: str, clock: Clock | None) -> Backend:
    from tenuto.backends.postgres import PostgresBackend  # noqa: PLC0415

    return PostgresBackend(url, durability=durability, clock=clock)  # type: ignore[arg-type]


def _open_redis(url: str, durability: str, clock: Clock | None) -> Backend:
    from tenuto.backends.redis import RedisBackend  # noqa: PLC0415

    return RedisBackend(url, durability=durability, clock=clock)  # type: ignore[arg-type]


_SCHEMES = {
    "volatile": _open_volatile,
    "sqlite": _open_sqlite,
    "postgres": _open_postgres,
    "postgresql": _open_postgres,
    "redis": _open_redis,
    "rediss": _open_redis,
    "redis+sentinel": _open_redis,
    "rediss+sentinel": _open_redis,
    "redis+cluster": _open_redis,
    "rediss+cluster": _open_redis,
    "unix": _open_redis,
}


def _sqlite(path: str, options: dict[str, str], durability: str, clock: Clock | None) -> Backend:
    from tenuto.backends.sqlite import SqliteBackend  # noqa: PLC0415

    chosen: dict[str, Any] = {"durability": durability}
    for name, text in options.items():
        if name == "durability":
            chosen[name] = text
        elif name == "timeout":
            chosen[name] = _seconds(text)
        elif name == "accept_loss" and text in ("true", "false"):
            chosen[name] = text == "true"
        else:
            raise InvalidInput(
                f"sqlite takes no option {name}={text}; it takes durability=full|process, timeout=SECONDS "
                "and accept_loss=true|false."
            )
    return SqliteBackend(Path(path).expanduser(), clock=clock, **chosen)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"timeout is a number of seconds above 0, not {text!r}.")
    return seconds
