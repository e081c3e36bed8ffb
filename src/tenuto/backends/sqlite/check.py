"""Going through a whole SQLite store: every row's sum, every stream's links."""

from __future__ import annotations

import apsw

from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._sqlite_log import Moment
from tenuto.backends._sqlite_tail import read_tail
from tenuto.errors import Damaged
from tenuto.kernel.contract import Entry, Finding

_BEFORE_THE_FIRST = Entry(0, b"", 0.0, b"", b"", ())


def check_rows(connection: apsw.Connection) -> list[Finding]:
    """Return what is wrong with the rows of a store, a page at a time."""
    findings: list[Finding] = []
    streams: dict[int, bytes] = {}
    for row in rows.every_record(connection):
        try:
            rows.believed(row)
        except Damaged as error:
            findings.append(Finding("damage", str(error)))
        if row[1] == rows.STREAM:
            streams[row[2]] = row[0]
    return findings + _check_entries(connection, streams)


def check_log(connection: apsw.Connection) -> list[Finding]:
    """Return where the log goes on from entries that the tables do not have."""
    findings: list[Finding] = []
    with Moment(connection):
        for stream, pending in read_tail(connection).streams.items():
            try:
                if pending.first > 1:
                    rows.end_at(connection, stream, pending.stream, pending.first - 1)
            except Damaged as error:
                findings.append(Finding("chain", f"The log goes on from what is not there. {error}"))
    return findings


def _check_entries(connection: apsw.Connection, streams: dict[int, bytes]) -> list[Finding]:
    findings: list[Finding] = []
    seen: set[int] = set()
    last, stream = _BEFORE_THE_FIRST, -1
    for row in rows.every_entry(connection):
        if rows.stream_of(row[0]) != stream:
            last, stream = _BEFORE_THE_FIRST, rows.stream_of(row[0])
            seen.add(stream)
            if stream not in streams and not rows.has_stream(connection, stream):  # it may have begun meanwhile
                findings.append(Finding("chain", f"Entries of stream {stream} have lost their stream."))
        name = streams.get(stream, b"")
        try:
            entry = rows.believed_entry(row, name)
        except Damaged as error:
            findings.append(Finding("damage", str(error)))
            continue
        if entry.number != last.number + 1 or entry.previous != last.digest:
            where = f"Entry {entry.number} of {rows.shown(name)}"
            findings.append(Finding("chain", f"{where} does not follow the one before."))
        last = entry
    gone = [streams[stream] for stream in streams.keys() - seen]
    return findings + [Finding("chain", f"The entries of {rows.shown(name)} are missing.") for name in gone]
