"""The lines of an export: JSON, one row a line, described in docs/export-format.md.

Values stay encoded, as base64 of the stored bytes, so that every type is kept; `digest` is over those bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from tenuto.capabilities.store.rows import Row
from tenuto.errors import Damaged, InvalidInput, NewerFormat
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import Entry, Record

FORMAT: Final = 1


def header(tenant: str, backend: str, at: float) -> dict[str, Any]:
    """Return the first line."""
    return {"kind": "tenuto-export", "format": FORMAT, "tenant": tenant, "backend": backend, "at": at}


def written(line: dict[str, Any]) -> bytes:
    """Return a line with its line feed."""
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def line_of(row: Row) -> bytes:
    """Return the line of a row."""
    if row.record is not None:
        key, value, version, at, expires = row.record
        return written(
            {
                "kind": "record",
                "key": _parts(key),
                "version": version,
                "written_at": at,
                "expires_at": expires,
                "digest": digest(value).hex(),
                "value": base64.b64encode(value).decode(),
            }
        )
    assert row.entry is not None
    number, value, at, own, previous, versions, forgotten = row.entry
    return written(
        {
            "kind": "entry",
            "stream": _parts(row.stream),
            "number": number,
            "written_at": at,
            "versions": list(versions),
            "chain": own.hex(),
            "previous": previous.hex(),
            **({"forgotten": True} if forgotten else {}),
            "digest": digest(value).hex(),
            "value": base64.b64encode(value).decode(),
        }
    )


def parsed(line: bytes, number: int) -> dict[str, Any]:
    """Return a line as an object, or raise `Damaged` with its number."""
    try:
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("kind"), str):
            return found
    except ValueError:
        pass
    raise damaged(number)


def must_head(found: dict[str, Any]) -> None:
    """Raise unless an object is the first line of an export that this version can read."""
    if found["kind"] != "tenuto-export":
        raise InvalidInput("This file is not an export of tenuto: its first line is another. Nothing was imported.")
    if found.get("format") != FORMAT:
        raise NewerFormat(
            f"This export has format {found.get('format')}, this version reads {FORMAT}. Nothing was imported; "
            "upgrade tenuto."
        )


def row_of(found: dict[str, Any], number: int) -> Row:
    """Return the row of a line whose digest holds, or raise `Damaged` with the line's number."""
    try:
        value = base64.b64decode(found["value"], validate=True)
        if digest(value).hex() != found["digest"]:
            raise damaged(number)
        if found["kind"] == "record":
            expires = found["expires_at"]
            at, until = float(found["written_at"]), None if expires is None else float(expires)
            return Row(Record(_key(found["key"]), value, int(found["version"]), at, until))
        if found["kind"] == "entry":
            entry = Entry(
                int(found["number"]),
                value,
                float(found["written_at"]),
                bytes.fromhex(found["chain"]),
                bytes.fromhex(found["previous"]),
                tuple(int(version) for version in found["versions"]),
                bool(found.get("forgotten")),
            )
            return Row(None, _key(found["stream"]), entry)
    except (KeyError, TypeError, ValueError, binascii.Error):
        pass
    raise damaged(number)


def damaged(number: int) -> Damaged:
    """Return the error for a line that was changed."""
    return Damaged(
        f"Line {number} of the export is damaged. Nothing after the last whole export is lost: use another copy."
    )


def _parts(key: bytes) -> list[Any]:
    return [
        {"bytes": base64.b64encode(part).decode()} if isinstance(part, bytes) else part for part in keys.unpack(key)
    ]


def _key(parts: list[Any]) -> bytes:
    return keys.pack(*(base64.b64decode(part["bytes"]) if isinstance(part, dict) else part for part in parts))
