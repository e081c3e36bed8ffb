"""Export a tenant to a file, and continue an export that was interrupted.

The lines go to `PATH.partial`, which becomes PATH once it is complete and on disk. After a crash the next call keeps the
whole lines of the partial file and continues after the last of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from tenuto.capabilities.store import lines
from tenuto.capabilities.store.rows import Advance, Row, Total, count, every_row
from tenuto.errors import InvalidInput, TenutoError
from tenuto.kernel.contract import Backend

_EVERY: Final = 1_000


class Exported(NamedTuple):
    """What an export holds."""

    path: str
    records: int
    streams: int
    entries: int
    bytes: int
    digest: str
    """Of all contents in order: equal stores have equal digests."""
    resumed: int
    """How many rows an interrupted export had written already."""


def export(kernel: Backend, tenant: str, path: str | os.PathLike[str], advance: Advance | None) -> Exported:
    """Write every row to a new file, durably."""
    target = Path(path)
    if target.exists():
        raise InvalidInput(f"{target} exists already and was not changed. Use the name of a new file.")
    partial = target.with_name(target.name + ".partial")
    backend = str(kernel.stats()["backend"])
    total = Total()
    try:
        last = _resume(partial, tenant, backend, total)
        resumed = total.rows
        with partial.open("ab" if resumed else "wb") as file:
            if not resumed:
                file.write(lines.written(lines.header(tenant, backend, kernel.now())))
            most = count(kernel) if advance is not None else 0
            for row in every_row(kernel, last):
                file.write(lines.line_of(row))
                total.add(row)
                if advance is not None and total.rows % _EVERY == 0:
                    advance(total.rows, max(most, total.rows))
            file.write(lines.written(_end(total)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        _sync_folder(target.parent)
        size = target.stat().st_size
    except OSError as error:
        raise InvalidInput(
            f"{partial} cannot be written: {error}. The store is not affected; free space or check the path, and "
            "export again: it continues."
        ) from error
    return Exported(str(target), total.records, total.streams, total.entries, size, total.digest, resumed)


def _end(total: Total) -> dict[str, object]:
    fields = {"records": total.records, "streams": total.streams, "entries": total.entries}
    return {"kind": "end", **fields, "digest": total.digest}


def _resume(partial: Path, tenant: str, backend: str, total: Total) -> Row | None:
    """Cut a partial file after its last whole row; return that row and add all rows to `total`."""
    if not partial.exists():
        return None
    last: Row | None = None
    whole = 0
    with partial.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                found = lines.parsed(line, number)
                if number == 1:
                    if (found.get("kind"), found.get("tenant"), found.get("backend")) != (
                        "tenuto-export",
                        tenant,
                        backend,
                    ):
                        return None
                else:
                    row = lines.row_of(found, number)
                    total.add(row)
                    last = row
            except TenutoError:
                break  # the crash was here
            whole += len(line)
    if last is not None:
        os.truncate(partial, whole)
    return last


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
