"""Backends: one package or file for each kind of store, chosen by URL."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tenuto.errors import InvalidInput
from tenuto.kernel import logs
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend, is_backend

DEFAULT = ".tenuto/tenuto.db"


def connect(
    url: str | os.PathLike[str] | Backend | None,
    *,
    durability: str = "full",
    clock: Clock | None = None,
    api_key: str | None = None,
) -> Backend:
    """Return the backend for a URL or a path, or the one given. The driver is imported here; nothing is opened yet."""
    logs.stamp()
    if url is None:
        url = os.environ.get("TENUTO_URL") or default_path()
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        from tenuto.backends.remote import RemoteBackend  # noqa: PLC0415 - import only the driver in use

        return RemoteBackend(url, api_key=api_key, clock=clock)
    if api_key is not None:
        raise InvalidInput("api_key belongs to a server's URL, https://host. Leave it out for this store.")
    if not isinstance(url, str | os.PathLike) and is_backend(url):
        return url
    if isinstance(url, os.PathLike):
        return _sqlite(os.fspath(url), {}, durability, clock)
    if not isinstance(url, str) or not url or "\x00" in url:
        raise InvalidInput(f"A store must be a URL, a path or a backend, not {url!r}.")
    scheme, colon, _ = url.partition(":")
    if not colon or len(scheme) < 2 or "/" in scheme or "\\" in scheme or "." in scheme:
        return _sqlite(url, {}, durability, clock)
    opener = _SCHEMES.get(scheme)
    if opener is None:
        raise InvalidInput(
            f"{scheme!r} is not a supported store. Use a path, sqlite:///path, postgresql://host/db, redis://host, "
            "https://host of a tenuto server, or volatile: for tests."
        )
    return opener(url, durability, clock)


def default_path() -> Path:
    """Return the path of the default store: the nearest existing one in this folder or above, else one in this folder.

    The search ends at the root of a git repository, below the home folder, and at a folder that belongs to another
    user or that other users can write: a store that someone else has put there is never used.
    """
    own = Path(DEFAULT)
    try:
        here = Path.cwd()
        if own.exists() or (here / ".git").exists() or here == Path.home():
            return own
        for folder in here.parents:
            about = folder.stat()
            foreign = about.st_uid != os.getuid() or about.st_mode & stat.S_IWOTH
            if foreign or folder in (Path.home(), Path(folder.anchor)):
                break
            if (folder / DEFAULT).exists():
                return folder / DEFAULT
            if (folder / ".git").exists():
                break
    except (OSError, RuntimeError):  # a deleted folder, or a user without a home folder
        return own
    return own


def _open_volatile(url: str, _durability: str, clock: Clock | None) -> Backend:
    if url.partition(":")[2].strip("/"):
        raise InvalidInput('The URL of the volatile store is "volatile:", without options.')
    from tenuto.backends.volatile import VolatileBackend  # noqa: PLC0415 - import only the driver in use

    return VolatileBackend(clock=clock)


def _open_sqlite(url: str, durability: str, clock: Clock | None) -> Backend:
    path = url.partition(":")[2].split("?", 1)[0]
    if not path.startswith("///") or path == "///":
        raise InvalidInput(
            f"{url!r} names no file. Use sqlite:///agent.db for a file in this folder, "
            "sqlite:////var/lib/agent.db for an absolute path, or the plain path."
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
                f"sqlite has no option {name}={text}. Use durability=full|process, timeout=SECONDS "
                "or accept_loss=true|false."
            )
    return SqliteBackend(Path(path).expanduser(), clock=clock, **chosen)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"timeout must be a number of seconds above 0, not {text!r}.")
    return seconds
