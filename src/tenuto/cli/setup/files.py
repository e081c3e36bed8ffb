"""The files that a setup changes: what would be written, backups, and how all of it is undone.

Every file is read and every change is computed before the first one is written, so a file that cannot be edited stops
the setup before anything has changed. A file is replaced atomically. The backup is a copy of the earlier file in the same folder.
Removing restores the backup byte for byte if the file is still what the setup made of it; after other edits it cuts
out the own entries alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tenuto.cli.setup import jsonc, toml
from tenuto.cli.setup.hosts import HOSTS, NAME, hook, is_own, server
from tenuto.errors import InvalidInput

BACKUP: Final = ".before-tenuto"
Status = Literal["created", "changed", "unchanged", "restored", "removed"]


class Planned(NamedTuple):
    """What would be done with a file."""

    path: Path
    before: bytes | None
    """None: there is no file."""
    after: bytes | None
    """None: the file is removed."""
    status: Status


def added(name: str, project: Path | None, *, hooks: bool) -> list[Planned]:
    """Return what adding the server, and the hooks, would change."""
    planned = []
    for path in _paths(name, project, hooks=hooks):
        before = _read(path)
        after = _edited(name, project, path, before, hooks=hooks)
        status: Status = "unchanged" if after == before else "created" if before is None else "changed"
        planned.append(Planned(path, before, after, status))
    return planned


def removed(name: str, project: Path | None) -> list[Planned]:
    """Return what removing the server and the hooks would change."""
    planned = []
    for path in _paths(name, project, hooks=True):
        before = _read(path)
        after = None if before is None else _restored(name, project, path, before)
        status: Status = "unchanged" if after == before else "removed" if after is None else "restored"
        planned.append(Planned(path, before, after, status))
    return planned


def write(planned: Sequence[Planned]) -> None:
    """Carry out what was planned. A file that another program has changed meanwhile stops it."""
    for one in planned:
        if _read(one.path) != one.before:
            raise InvalidInput(
                f"{one.path} was changed by another program just now; it was left alone. Run this again."
            )
        backup = _backup(one.path)
        if one.status == "changed":
            _replace(backup, one.before or b"", like=one.path)
        if one.after is None:
            _delete(one.path)
        elif one.after != one.before:
            _replace(one.path, one.after)
        if one.status in ("restored", "removed"):
            _delete(backup)


def _paths(name: str, project: Path | None, *, hooks: bool) -> list[Path]:
    servers, of_hooks = HOSTS[name].files(project)
    return [*dict.fromkeys((servers, of_hooks) if hooks else (servers,))]


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _edited(name: str, project: Path | None, path: Path, before: bytes | None, *, hooks: bool) -> bytes:
    """Return a file with the entries that belong into it."""
    host, shared = HOSTS[name], project is not None
    servers, of_hooks = host.files(project)
    text = _text(path, before)
    try:
        if path == servers:
            at, entry = [*host.servers, NAME], server(name, shared=shared)
            text = toml.put(text, at, entry) if path.suffix == ".toml" else _put(text, at, entry)
        if hooks and path == of_hooks:
            for key, value in host.around.items():
                text = text if key in jsonc.parse(text).value else jsonc.put(text, [key], value)
            for moment, event in host.moments.items():
                text = jsonc.append(text, ["hooks", event], hook(name, moment, shared=shared), is_own)
        return _checked(path, text).encode()
    except ValueError as error:
        raise _refused(name, path, error) from error


def _put(text: str, at: Sequence[str], entry: dict[str, Any]) -> str:
    """Set the entry of the server; settings that a person added to it stay."""
    known: Any = jsonc.parse(text).value
    for key in at:
        known = known.get(key) if isinstance(known, dict) else None
    return jsonc.put(text, at, {**known, **entry} if isinstance(known, dict) else entry)


def _restored(name: str, project: Path | None, path: Path, before: bytes) -> bytes | None:
    """Return a file without the own entries: its earlier content, if nothing else has changed since."""
    kept = _read(_backup(path))
    if kept is None or _cut(name, project, path, kept) == kept:
        for hooks in (False, True):
            with contextlib.suppress(InvalidInput):
                if _edited(name, project, path, kept, hooks=hooks) == before:
                    return kept
    return _cut(name, project, path, before)


def _cut(name: str, project: Path | None, path: Path, before: bytes) -> bytes:
    host = HOSTS[name]
    servers, of_hooks = host.files(project)
    text = _text(path, before)
    try:
        if path == servers:
            at = [*host.servers, NAME]
            text = toml.remove(text, at) if path.suffix == ".toml" else jsonc.remove(text, at)
        if path == of_hooks:
            for event in host.moments.values():
                text = jsonc.remove(text, ["hooks", event], is_own)
        return _checked(path, text).encode()
    except ValueError as error:
        raise _refused(name, path, error) from error


def _checked(path: Path, text: str) -> str:
    toml.parse(text) if path.suffix == ".toml" else jsonc.parse(text)
    return text


def _text(path: Path, raw: bytes | None) -> str:
    try:
        return (raw or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 text; no file was changed. Convert it, then run this again."
        ) from error


def _refused(name: str, path: Path, error: ValueError) -> InvalidInput:
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    return InvalidInput(
        f"{path} cannot be edited as {kind} ({error}). It was left alone, and no other file was changed. Correct it, then run: "
        f"tenuto setup {name}"
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); no file was changed. Check the path.") from error


def _replace(path: Path, content: bytes, *, like: Path | None = None) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new one.

    Its mode stays, or is that of `like`: such files hold secrets, so their copies are not readable by others either.
    """
    whole = path.resolve()  # replace what a symbolic link points to, not the link
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        model = like or whole
        mode = stat.S_IMODE(model.stat().st_mode) if model.exists() else None
        with open(fresh, "wb", opener=_private if mode is not None else None) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(whole)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written ({error.strerror}), and is unchanged. Correct that, then run this again: it is "
            "safe to repeat."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _delete(path: Path) -> None:
    """Delete a file, and its folder if that is empty then."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
