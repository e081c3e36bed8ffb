"""Restore a backup into a new store: checked before it, compared after it.

A backup of a SQLite store becomes a SQLite file in one step, with all tenants; into another store, and of an export, one
tenant is copied row by row. Killed, the first leaves nothing and the second is completed by the next call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tenuto.capabilities.store.compare import Summary
from tenuto.capabilities.store.store import Store
from tenuto.errors import Damaged, InvalidInput, NotFound


class Opened(Protocol):
    """A client."""

    store: Store

    def close(self) -> None:
        """Close the store."""
        ...


def restored(open_at: Callable[[str], Opened], backup: str | os.PathLike[str], url: str) -> Summary:
    """Copy a backup, a store's file or an export, into a new store; return what it holds."""
    path = Path(backup)
    if not path.is_file():
        raise NotFound(f"There is no backup at {path.absolute()}. Nothing was restored.")
    with path.open("rb") as file:
        is_export = file.read(1) == b"{"
    source, target = open_at("volatile:" if is_export else str(path)), open_at(url)
    try:
        if is_export:
            source.store.import_(path)
        findings = source.store.check().findings
        if findings:
            raise Damaged(
                f"The backup {path} is damaged: {findings[0].detail} Nothing was restored; use another backup."
            )
        place: Path | None = getattr(target.store._file, "path", None)
        if place is not None and place.exists():
            raise InvalidInput(f"{place} exists already and was not changed. Restore into a new file.")
        if place is not None and not is_export:
            place.parent.mkdir(parents=True, exist_ok=True)
            source.store.backup(place)
        else:
            if any(one.kind != "missing" for one in target.store.compare(source.store, limit=1 << 62)):
                raise InvalidInput(
                    f"{url} holds other data and was not changed. Restore into an empty store or tenant."
                )
            target.store.copy_from(source.store)
        made = target.store.summary()
        if made != source.store.summary() or target.store.check().findings:
            raise Damaged(f"{url} differs from the backup. Do not use it; restore into another place.")
        return made
    finally:
        source.close()
        target.close()
