"""The tables of a SQLite store and its migrations.

`MIGRATIONS` is append-only. Each migration is applied together with its own record in one transaction, after a
backup of the file if it holds anything. A new store is created by all of them, so there is no second definition.

`min_reader` and `min_writer` are the oldest formats that may still use the file, so that processes that share it
can be upgraded one by one. Every write transaction reads `min_writer`. Reads do not, so a migration that raises
`min_reader` must rename a table: older readers then fail, with `NewerFormat`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from tenuto.backends.sqlite import backup, rows
from tenuto.backends.sqlite.connections import Handle
from tenuto.errors import Damaged, InvalidInput, NewerFormat

APPLICATION_ID: Final = 0x746E7574  # "tnut"


class Migration(NamedTuple):
    """One change of the file's format. `min_reader` and `min_writer` apply from then on."""

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
        -- Rowid tables: rows of 1 KB in a WITHOUT ROWID table overflow and take 4.4 times the disk.
        CREATE TABLE records (
            id INTEGER PRIMARY KEY,
            key BLOB NOT NULL UNIQUE,
            kind INTEGER NOT NULL,      -- 0 a record, 1 a tombstone retained until `expires`, 2 a stream, 3 a floor
            version INTEGER NOT NULL,   -- of a stream: its id
            written REAL NOT NULL,
            expires REAL,
            entry INTEGER,              -- the entry that holds the value, if one does
            digest BLOB NOT NULL,       -- of the value
            sum BLOB NOT NULL,          -- of all of the above, but for the two ids
            value BLOB
        );
        -- Scans skip tombstones: a queue leaves one for each task.
        CREATE INDEX live ON records (key) WHERE kind = 0;
        CREATE INDEX expiring ON records (expires) WHERE expires IS NOT NULL;
        CREATE TABLE entries (
            id INTEGER PRIMARY KEY,     -- the stream's id, shifted left by 40 bits, plus the number
            written REAL NOT NULL,
            versions BLOB NOT NULL,     -- the versions that the entry's commit assigned
            previous BLOB NOT NULL,     -- the sum of the previous entry
            digest BLOB NOT NULL,
            sum BLOB NOT NULL,
            value BLOB
        );
        -- The outcome of each request id. The ids grow with time, so the row of the last commit, whose id is the
        -- highest, shares a page with the newest requests: it costs a commit no extra page.
        CREATE TABLE requests (
            id BLOB PRIMARY KEY,
            at REAL NOT NULL,
            content BLOB NOT NULL,      -- a digest of the commit; of the last commit: the chain
            versions BLOB NOT NULL,     -- assigned to its writes; of the last commit: its number
            sum BLOB NOT NULL
        ) WITHOUT ROWID;
        """,
        1,
        1,
    ),
]
FORMAT: Final = 1
"""The newest format that this version can read and write."""

ADD_REQUEST: Final = "INSERT INTO requests VALUES (?, ?, ?, ?, ?)"
SET_IN_USE: Final = "UPDATE meta SET value = ? WHERE name = 'in_use'"
"""A store in use is incomplete without its write-ahead log, and is marked so. The last client to close it clears the mark."""
_SETUP = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL);
"""


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Commit the block, or roll it back and raise the block's own error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After a full disk or an I/O error SQLite has already rolled back.
        with contextlib.suppress(apsw.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def is_empty(connection: apsw.Connection) -> bool:
    """Return whether the file has no tables yet."""
    return not connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]


def prepare(handle: Handle, path: Path, *, writable: bool) -> None:
    """Upgrade the file to the newest format; reject a newer one or another program's."""
    connection = handle.connection
    if is_empty(connection):
        if not writable:
            raise InvalidInput(f"{path} holds no store yet and cannot be written. Check its permissions.")
        _create(connection)
        return
    if connection.pragma("application_id") != APPLICATION_ID:
        raise InvalidInput(f"{path} is a database of another program. Nothing was changed; use another path.")
    refuse_newer(connection, path, writable=writable)
    stored: list[Any] = connection.execute("SELECT number FROM migrations").fetchall()
    done = {number for (number,) in stored}
    missing = [migration for migration in MIGRATIONS if migration.number not in done]
    if not missing:
        return
    if not writable:
        raise InvalidInput(f"{path} has an older format and cannot be written. Open it once with write permission.")
    backup.copy(handle, path.with_name(f"{path.name}.format{max(done)}.backup"), replace=True)
    for migration in missing:
        with transaction(connection):
            _apply(connection, migration)


def _create(connection: apsw.Connection) -> None:
    # WAL before anything is stored: it is a property of the file.
    connection.pragma("journal_mode", "wal")
    with transaction(connection):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; {_SETUP}")
        for migration in MIGRATIONS:
            _apply(connection, migration)
        connection.execute("INSERT INTO meta VALUES ('store', ?), ('in_use', 0)", (uuid.uuid4().bytes,))
        connection.execute(ADD_REQUEST, rows.last_row(rows.FIRST))
    # Write it into the file itself, so that a copy of the file alone is a store.
    connection.pragma("wal_checkpoint", "truncate")


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    connection.execute(migration.sql)
    connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", (migration.number, migration.name, time.time()))
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES ('min_reader', ?), ('min_writer', ?)",
        (migration.min_reader, migration.min_writer),
    )


def refuse_newer(connection: apsw.Connection, path: Path, *, writable: bool) -> None:
    """Raise `NewerFormat` if this version may not read or write the file."""
    stored: list[Any] = connection.execute("SELECT name, value FROM meta WHERE name LIKE 'min%'").fetchall()
    needed = dict(stored).get("min_writer" if writable else "min_reader", 0)
    known = max(migration.number for migration in MIGRATIONS)
    if isinstance(needed, int) and needed > known:
        raise NewerFormat(
            f"{path} was written by a newer version of tenuto (format {needed}; this version reads up to {known}). "
            "Nothing was changed. Upgrade tenuto to use it."
        )


def explained(error: Exception, connection: apsw.Connection, path: Path, *, writable: bool) -> Exception:
    """Return `NewerFormat` instead of a statement's error if a newer version has changed the tables."""
    if isinstance(error, apsw.SQLError):
        try:
            refuse_newer(connection, path, writable=writable)
        except NewerFormat as newer:
            return newer
        except apsw.Error:
            pass
    return error


def store_id(connection: apsw.Connection) -> bytes:
    """Return the 16 random bytes that identify this store."""
    found: list[Any] = connection.execute("SELECT value FROM meta WHERE name = 'store'").fetchall()
    if not found or not isinstance(found[0][0], bytes) or len(found[0][0]) != 16:
        raise Damaged("The store has lost its own id. Stop writing to it and restore a backup.")
    return found[0][0]


def is_in_use(connection: apsw.Connection) -> bool:
    """Return whether the store is marked as in use."""
    return connection.execute("SELECT value FROM meta WHERE name = 'in_use'").fetchall() == [(1,)]
