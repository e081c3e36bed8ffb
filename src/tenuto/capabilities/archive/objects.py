"""The content of an archived object: a header, one line a row as in an export, and an end line with a digest of all rows.

The header is plain; if the store is encrypted, every further line is sealed, with the key of the user if users have keys,
and bound to the object and its place in it. The pieces of blobs come first. Nothing of a damaged object is returned.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from tenuto.capabilities.archive.parts import LOGS, Part, item_key
from tenuto.capabilities.store import Row, Total, lines
from tenuto.errors import Damaged, Encrypted, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record, Sealing

_KIND: Final = "tenuto-archive"
_FORMAT: Final = 1


class Seals(NamedTuple):
    """How the lines of one tenant's objects are sealed; not at all without `sealing`."""

    sealing: Sealing | None
    tenant: str

    def closed(self, part: Part, number: int, line: bytes) -> bytes:
        """Return a line as it is stored."""
        if self.sealing is None:
            return line
        sealed = self.sealing.seal_object(self.tenant, part.user, _bound(part, number), line)
        return base64.b64encode(sealed) + b"\n"

    def opened(self, part: Part, number: int, line: bytes) -> bytes | None:
        """Return a line of a sealed object, or None if the key of its user was destroyed."""
        assert self.sealing is not None
        try:
            sealed = base64.b64decode(line, validate=False)
        except binascii.Error:
            raise lines.damaged(number) from None
        return self.sealing.open_object(self.tenant, _bound(part, number), sealed)


def _bound(part: Part, number: int) -> bytes:
    return keys.pack("archive", part.object, number)


def write(path: Path, part: Part, rows: Iterable[Row], seals: Seals) -> tuple[int, str]:
    """Write an object to a local file; return its size and the digest of its rows."""
    total = Total()
    with path.open("wb") as file:
        sealed = seals.sealing is not None
        file.write(lines.written({"kind": _KIND, "format": _FORMAT, "tenant": seals.tenant, "sealed": sealed}))
        for number, row in enumerate(rows, 2):
            total.add(row)
            file.write(seals.closed(part, number, lines.line_of(row)))
        end = {"kind": "end", "rows": total.rows, "digest": total.digest}
        file.write(seals.closed(part, total.rows + 2, lines.written(end)))
        return file.tell(), total.digest


class Content:
    """An object that was fetched into a local file and verified against what the store recorded of it."""

    def __init__(self, file: BinaryIO, part: Part, seals: Seals) -> None:
        self._file, self._part, self._seals = file, part, seals
        self.entries: list[Entry] = []
        self.records: list[Record] = []
        self._pieces: dict[bytes, list[tuple[int, int]]] = {}
        """Of each blob, where its pieces are: offset and line number."""
        self.readable = True
        """False if the key of its user was destroyed: then it holds nothing."""
        try:
            self._read()
        except Damaged as error:
            raise Damaged(
                f"The object {part.object} in the archive {part.place}, of the {part.kind} {part.name!r}, is damaged: it "
                "was changed or cut. Nothing of it was stored; restore the object from a backup of the archive."
            ) from error

    def blobs(self) -> dict[bytes, Any]:
        """Return each blob with a function that returns an iterator over its pieces."""
        return {digest: (lambda found=found: self._read_pieces(found)) for digest, found in self._pieces.items()}

    def _read(self) -> None:
        part, total, offset, ended = self._part, Total(), 0, False
        for number, stored in enumerate(self._file, 1):
            if number == 1:
                self._must_head(lines.parsed(stored, number))
            else:
                line = self._line(number, stored)
                if line is None:
                    self.readable = False
                    return
                if ended:
                    raise lines.damaged(number)
                found = lines.parsed(line, number)
                if found["kind"] == "end":
                    ended = (found.get("rows"), found.get("digest")) == (total.rows, total.digest)
                    if not ended or part.digest not in ("", total.digest):
                        raise lines.damaged(number)
                else:
                    row = lines.row_of(found, number)
                    total.add(row)
                    self._place(row, number, offset)
            offset += len(stored)
        if not ended:
            raise lines.damaged(0)

    def _must_head(self, found: dict[str, Any]) -> None:
        if (found["kind"], found.get("format"), found.get("tenant")) != (_KIND, _FORMAT, self._seals.tenant):
            raise lines.damaged(1)
        if found.get("sealed") is not (self._seals.sealing is not None):
            if not found.get("sealed"):
                raise lines.damaged(1)
            raise Encrypted("This archived object is encrypted, and no key was given. Pass encryption_key=.")

    def _line(self, number: int, stored: bytes) -> bytes | None:
        return stored if self._seals.sealing is None else self._seals.opened(self._part, number, stored)

    def _place(self, row: Row, number: int, offset: int) -> None:
        part = self._part
        if row.entry is not None:
            if part.kind not in LOGS or row.stream != part.stream or row.entry.number not in part.numbers:
                raise lines.damaged(number)
            self.entries.append(row.entry)
            return
        assert row.record is not None
        parts = keys.unpack(row.record.key)
        if parts[:2] == ("blobs", "part"):
            self._pieces.setdefault(parts[2], []).append((offset, number))  # type: ignore[arg-type]
        elif part.kind not in LOGS and row.record.key == item_key(part, parts[-1]) and parts[-1] in part.numbers:  # type: ignore[arg-type]
            self.records.append(row.record)
        else:
            raise lines.damaged(number)

    def _read_pieces(self, places: list[tuple[int, int]]) -> Iterator[bytes]:
        for offset, number in places:
            self._file.seek(offset)
            line = self._line(number, self._file.readline())
            if line is None:
                raise TenutoError("The key of the object's user was destroyed during the read. Read it again.")
            row = lines.row_of(lines.parsed(line, number), number)
            assert row.record is not None
            yield row.record.value
