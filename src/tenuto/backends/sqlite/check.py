"""Verify a whole SQLite store: its structure, every row's checksum, every chain."""

from __future__ import annotations

from typing import Any

import apsw

from tenuto.backends.sqlite import reading, rows
from tenuto.backends.sqlite.rows import SHIFT, STREAM
from tenuto.errors import Damaged
from tenuto.kernel.contract import Entry, Finding

_BEFORE_THE_FIRST = Entry(0, b"", 0.0, b"", b"", ())


def check_structure(connection: apsw.Connection) -> list[Finding]:
    """Return the defects that SQLite itself finds."""
    lines: list[Any] = connection.execute("PRAGMA integrity_check(100)").fetchall()
    return [Finding("structure", line) for (line,) in lines if line != "ok"]


def check_rows(connection: apsw.Connection) -> list[Finding]:
    """Return the defects of records, entries and requests, all from one snapshot."""
    with reading.Moment(connection):
        findings, streams = _check_records(connection)
        return findings + _check_entries(connection, streams) + _check_requests(connection)


def _check_records(connection: apsw.Connection) -> tuple[list[Finding], dict[int, bytes]]:
    findings: list[Finding] = []
    streams: dict[int, bytes] = {}
    for page in reading.every_record(connection):
        for row in page:
            try:
                rows.verified_record(row)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
            if row[1] == STREAM:
                streams[row[2]] = row[0]
    return findings, streams


def _check_entries(connection: apsw.Connection, streams: dict[int, bytes]) -> list[Finding]:
    findings: list[Finding] = []
    seen: set[int] = set()
    last, stream = _BEFORE_THE_FIRST, -1
    for page in reading.every_entry(connection):
        for row in page:
            if row[0] >> SHIFT != stream:
                last, stream = _BEFORE_THE_FIRST, row[0] >> SHIFT
                seen.add(stream)
                if stream not in streams:
                    findings.append(Finding("chain", f"The stream {stream} of some entries is missing."))
            name = streams.get(stream, b"")
            try:
                (entry,) = rows.verified_entries([row], name)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
                continue
            if not last.number and entry.number > 1 and name and entry.number == _first(connection, name):
                last = entry  # the stream was trimmed
            if entry is not last and (entry.number != last.number + 1 or entry.previous != last.digest):
                where = f"Entry {entry.number} of {rows.shown(name)}"
                findings.append(Finding("chain", f"{where} does not follow the entry before it."))
            last = entry
    gone = [streams[stream] for stream in streams.keys() - seen]
    return findings + [Finding("chain", f"The entries of {rows.shown(name)} are missing.") for name in gone]


def _first(connection: apsw.Connection, stream: bytes) -> int:
    try:
        return reading.first_number(connection, stream)
    except Damaged:
        return 0  # reported with the records


def _check_requests(connection: apsw.Connection) -> list[Finding]:
    findings: list[Finding] = []
    for row in connection.execute("SELECT id, at, content, versions, sum FROM requests"):
        try:
            rows.verified_request(row)
        except Damaged as error:
            findings.append(Finding("damage", str(error)))
    return findings
