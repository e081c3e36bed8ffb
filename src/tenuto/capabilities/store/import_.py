"""Import an export, and copy one store into another.

A file is verified as a whole before its first row is stored. Rows are stored in groups, each atomically, and a row that
is there already is skipped: after a crash, run it again. A key that holds something else is a `Conflict`; nothing that
exists is overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tenuto.capabilities.store import lines
from tenuto.capabilities.store.rows import Advance, Row, Total, batches, count, every_row, load
from tenuto.errors import Damaged, InvalidInput
from tenuto.kernel.contract import Backend


class Imported(NamedTuple):
    """What an import or a copy stored."""

    records: int
    streams: int
    entries: int
    new: int
    """How many of the rows were not there yet."""
    digest: str
    """Of all contents in order, as in `Exported`."""


def import_(kernel: Backend, path: str | os.PathLike[str], advance: Advance | None, *, dry: bool = False) -> Imported:
    """Store every row of an export; with `dry` only verify the file."""
    try:
        with Path(path).open("rb") as file:
            total = Total()
            for row in _rows(file):
                total.add(row)
            if dry:
                return _done(total, 0)
            file.seek(0)
            return _stored(kernel, _rows(file), total.rows, advance)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}. Check the path and run the import again.") from error


def copy(source: Backend, target: Backend, advance: Advance | None) -> Imported:
    """Store every row of one store in another."""
    return _stored(target, every_row(source), count(source) if advance is not None else 0, advance)


def _stored(kernel: Backend, rows: Iterator[Row], most: int, advance: Advance | None) -> Imported:
    total, new = Total(), 0
    for batch in batches(rows):
        new += load(kernel, batch)
        for row in batch:
            total.add(row)
        if advance is not None:
            advance(total.rows, max(most, total.rows))
    return _done(total, new)


def _done(total: Total, new: int) -> Imported:
    return Imported(total.records, total.streams, total.entries, new, total.digest)


def _rows(file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of an export; raise `Damaged` if a line or the end was changed."""
    total, ended = Total(), False
    number = 0
    for number, line in enumerate(file, 1):
        found = lines.parsed(line, number)
        if number == 1:
            lines.must_head(found)
        elif found["kind"] == "end" and not ended:
            same = (total.records, total.streams, total.entries, total.digest)
            if tuple(found.get(name) for name in ("records", "streams", "entries", "digest")) != same:
                raise lines.damaged(number)
            ended = True
        elif ended:
            raise lines.damaged(number)
        else:
            row = lines.row_of(found, number)
            total.add(row)
            yield row
    if not ended:
        raise Damaged(f"The export ends after line {number}, before its end. Nothing was imported; export again.")
