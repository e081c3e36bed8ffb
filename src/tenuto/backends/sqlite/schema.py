"""What is inside a SQLite store, and how an older one becomes the newest.

`MIGRATIONS` only ever grows at its end. Each is applied together with its own record in one
transaction, after a backup of the file if it held anything. `SCHEMA` is what they amount to, and a
test proves the two equal. `min_reader` and `min_writer` say which formats of the library may still
open the file, so that a deploy can roll over several processes that share it.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from tenuto.errors import InvalidInput, NewerFormat

APPLICATION_ID: Final = 0x74656E75  # "tenu"
COUNTER: Final = b"\xff" * 16
"""The row of `outcomes` that says up to which commit the tables hold everything. Ids grow with time, so this
last id shares its page with the newest requests: keeping count dirties no page of its own."""


class Migration(NamedTuple):
    """One step of the file's format. `min_reader` and `min_writer` hold from then on."""

    number: int
    name: str
    sql: str
    min_reader: int
    min_writer: int


MIGRATIONS: list[Migration] = [
    Migration(
        1,
        "records, entries, requests",
        """
        -- Rowid tables: 1 KB rows in a WITHOUT ROWID table spill over and take 4.4 times the disk.
        CREATE TABLE records (
            id INTEGER PRIMARY KEY,
            key BLOB NOT NULL UNIQUE,
            kind INTEGER NOT NULL,      -- 0 a record, 1 a tombstone kept until `expires`, 2 a stream, 3 a floor
            version INTEGER NOT NULL,   -- of a stream: its id
            written REAL NOT NULL,
            expires REAL,
            digest BLOB NOT NULL,       -- of the value
            sum BLOB NOT NULL,          -- of all of the above
            value BLOB
        );
        CREATE INDEX expiring ON records (expires) WHERE expires IS NOT NULL;
        CREATE TABLE entries (
            id INTEGER PRIMARY KEY,     -- the stream's id, shifted left by 40 bits, plus the number
            written REAL NOT NULL,
            versions BLOB NOT NULL,     -- what the entry's commit gave to its writes
            previous BLOB NOT NULL,     -- the sum of the entry before
            digest BLOB NOT NULL,
            sum BLOB NOT NULL,
            value BLOB
        );
        CREATE TABLE requests (id BLOB PRIMARY KEY, content BLOB NOT NULL, outcome BLOB NOT NULL) WITHOUT ROWID;
        """,
        1,
        1,
    ),
    Migration(
        2,
        "an index of what is there",
        # A scan does not pass by what has ended: a queue leaves a tombstone where each task was.
        "CREATE INDEX live ON records (key) WHERE kind = 0;",
        1,
        1,
    ),
    Migration(
        3,
        "a log of transactions",
        # Each is one row, which is folded into the tables later. A process of an older version that still has the
        # file open would miss what is there, and write past it: the new names end that, with an error.
        """
        CREATE TABLE log (id INTEGER PRIMARY KEY, chain BLOB NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL);
        ALTER TABLE requests RENAME TO outcomes;
        ALTER TABLE records RENAME COLUMN sum TO seal;
        """,
        3,
        3,
    ),
]
FORMAT: Final = 3
"""The newest format that this version reads and writes."""

BOOK = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL);
"""

SCHEMA: Final = {
    "records": (
        "CREATE TABLE records ( id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, kind INTEGER NOT NULL, "
        "version INTEGER NOT NULL, written REAL NOT NULL, expires REAL, digest BLOB NOT NULL, "
        "seal BLOB NOT NULL, value BLOB )"
    ),
    "entries": (
        "CREATE TABLE entries ( id INTEGER PRIMARY KEY, written REAL NOT NULL, versions BLOB NOT NULL, "
        "previous BLOB NOT NULL, digest BLOB NOT NULL, sum BLOB NOT NULL, value BLOB )"
    ),
    "live": "CREATE INDEX live ON records (key) WHERE kind = 0",
    "expiring": "CREATE INDEX expiring ON records (expires) WHERE expires IS NOT NULL",
    "log": "CREATE TABLE log (id INTEGER PRIMARY KEY, chain BLOB NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL)",
    "outcomes": (
        'CREATE TABLE "outcomes" (id BLOB PRIMARY KEY, content BLOB NOT NULL, outcome BLOB NOT NULL) WITHOUT ROWID'
    ),
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "migrations": ("CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"),
}


def prepare(connection: apsw.Connection, path: Path, *, writable: bool) -> None:
    """Bring the file to the newest format; refuse one that is newer or somebody else's."""
    application = connection.pragma("application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if tables and application != APPLICATION_ID:
        raise InvalidInput(f"{path} is a database of another program; give the path of a file of its own.")
    if not tables:
        if not writable:
            raise InvalidInput(f"{path} holds no store yet and cannot be written; check its permissions.")
        # WAL before anything is stored: it is a property of the file and stays with it.
        connection.pragma("journal_mode", "wal")
        with connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; {BOOK}")
            connection.execute("INSERT INTO meta VALUES ('store', ?)", (uuid.uuid4().bytes,))
    done = {row[0] for row in connection.execute("SELECT number FROM migrations")}
    _refuse_newer(connection, path, done, writable=writable)
    missing = [migration for migration in MIGRATIONS if migration.number not in done]
    if missing and not writable:
        raise InvalidInput(
            f"{path} has an older format and cannot be written. Open it once where it can be, to upgrade it."
        )
    if missing and done:
        _back_up(connection, path, max(done))
    for migration in missing:
        with connection:  # one transaction: the change and the record of it
            connection.execute(migration.sql)
            connection.execute(
                "INSERT INTO migrations VALUES (?, ?, ?)", (migration.number, migration.name, time.time())
            )
            connection.execute(
                "INSERT OR REPLACE INTO meta VALUES ('min_reader', ?), ('min_writer', ?)",
                (migration.min_reader, migration.min_writer),
            )


def _refuse_newer(connection: apsw.Connection, path: Path, done: set[int], *, writable: bool) -> None:
    known = max(migration.number for migration in MIGRATIONS)
    stored: list[Any] = connection.execute("SELECT name, value FROM meta").fetchall()
    meta = dict(stored)
    needed = meta.get("min_writer" if writable else "min_reader", 0)
    if max(done, default=0) > known and needed > known:
        raise NewerFormat(
            f"{path} was written by a newer version of tenuto (format {max(done)}, this one knows {known}). "
            "It was left untouched; upgrade tenuto to open it."
        )


def _back_up(connection: apsw.Connection, path: Path, number: int) -> Path:
    """Copy the file as it is before a migration; the copy is whole or it is not there."""
    target = path.with_name(f"{path.name}.format{number}.backup")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    copy = apsw.Connection(str(partial))
    try:
        with copy.backup("main", connection, "main") as backup:
            backup.step(-1)
        # In WAL mode the copy would need a second file; as one it can be carried anywhere.
        copy.pragma("journal_mode", "delete")
    finally:
        copy.close()
    fd = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    partial.replace(target)
    return target


def described(connection: apsw.Connection) -> dict[str, str]:
    """Return what the file really contains, in the form of `SCHEMA`."""
    rows: list[Any] = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", sql)).strip() for name, sql in rows}
