"""Folding: what the log of a SQLite store says is written into its tables, each row with its sums.

Of a record only its newest form is written, of a stream every entry. It happens inside a transaction of the
caller's, which also empties the log and counts, so a crash leaves all of it or nothing.
"""

from __future__ import annotations

from typing import Any

import apsw
import ormsgpack

from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._sqlite_log import Decided
from tenuto.backends._sqlite_rows import STREAM
from tenuto.backends._sqlite_tail import Tail
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import Forget


def write(connection: apsw.Connection, tail: Tail) -> None:
    """Write what a tail holds into the tables, which must be as of its floor."""
    kept = [rows.record_row(key, *row[1:6]) for key, row in tail.records.items()]
    added: list[tuple[Any, ...]] = []
    for stream, pending in tail.streams.items():
        if pending.first == 1:
            kept.append(rows.record_row(stream, STREAM, pending.stream, pending.given[0][2], None, None))
            last = rows.End(pending.stream, 0, 0.0, b"")
        else:
            last = rows.linked_to(connection, pending.stream, pending.first - 1)
        for _, value, at, versions in pending.given:
            last, row = rows.following(last, at, versions, value)
            added.append(row)
    run = connection.executemany
    if kept:
        run(rows.SET_RECORD, kept)
    if added:
        run(rows.ADD_ENTRY, added)
    if tail.requests:
        run("INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?)", [_outcome(commit) for commit in tail.requests.values()])


def _outcome(commit: Decided) -> tuple[bytes | None, bytes, bytes]:
    body = ormsgpack.packb([commit.at, *commit.versions])
    return commit.request, commit.content, digest(commit.request or b"", commit.content, body)[:8] + body


def forget(connection: apsw.Connection, write: Forget, stream: int, end: int) -> None:
    """Take away the values of entries that are in the tables; what links them stays."""
    if write.first > end:  # a larger number would reach into the ids of another stream
        return
    found = rows.forgettable(connection, write.stream, stream, write.first, min(write.last, end))
    gone = [(rows.forgotten(own, total), row_id) for row_id, _, _, _, total, _, own in found]
    if gone:
        connection.executemany("UPDATE entries SET value = NULL, digest = ? WHERE id = ?", gone)
