"""The raw driver: what apsw does with nothing in between. It is what every ratio here is against.

WAL with `synchronous` FULL or NORMAL, everything else as SQLite has it: the connection that commits checkpoints
every 1,000 pages.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from tenuto.backends._group import GroupCommit, Job

LEVELS = {"full": "FULL", "process": "NORMAL"}
"""tenuto's durability, and SQLite's `synchronous` that gives the same."""


def connect(path: Path, durability: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)
    # Each pragma by itself: one that returns a row would end a chain of them there.
    if connection.pragma("journal_mode") != "wal":
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(f"PRAGMA synchronous = {LEVELS[durability]}").fetchall()
    return connection


class Inserts:
    """Adds 1 KB to a table by rowid, in a transaction of its own: the least that a durable write can be."""

    def __init__(self, path: Path, durability: str) -> None:
        self.connection = connect(path, durability)
        self.connection.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, value BLOB)")

    def write(self, value: bytes) -> None:
        self.connection.execute("INSERT INTO log (value) VALUES (?)", (value,))

    def write_immediate(self, value: bytes) -> None:
        """The same for several writers: with BEGIN IMMEDIATE, so that waiting is for the lock and never in vain."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("INSERT INTO log (value) VALUES (?)", (value,))
        self.connection.execute("COMMIT")


class GroupedInserts:
    """Adds 1 KB for each of many threads, whoever leads for all who wait: group commit, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._inserts = Inserts(path, "full")
        self._group: GroupCommit[_Insert] = GroupCommit(self._run)

    def write(self, value: bytes) -> None:
        self._group.submit(_Insert(value))

    def _run(self, batch: list[_Insert]) -> None:
        run = self._inserts.connection.execute
        run("BEGIN IMMEDIATE")
        for job in batch:
            run("INSERT INTO log (value) VALUES (?)", (job.value,))
        run("COMMIT")
        for job in batch:
            job.done = True


class _Insert(Job):
    def __init__(self, value: bytes) -> None:
        self.value = value


class Syncs:
    """Writes 8 KB over what a file already has, and syncs: what the disk does by itself."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self._file, bytes(8 << 20), 0)
        os.fsync(self._file)

    def write(self, number: int) -> None:
        os.pwrite(self._file, b"x" * 8192, number % 1000 * 8192)
        os.fdatasync(self._file)


class Upserts:
    """Sets 1 KB by scope and key, in a transaction of its own: what a hand-written state table does."""

    def __init__(self, path: Path, durability: str) -> None:
        self.connection = connect(path, durability)
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS kv (id INTEGER PRIMARY KEY, scope TEXT, key TEXT, value BLOB, UNIQUE (scope, key))"
        )

    def write(self, scope: str, key: str, value: bytes) -> None:
        self.connection.execute(
            "INSERT INTO kv (scope, key, value) VALUES (?, ?, ?) "
            "ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value",
            (scope, key, value),
        )

    def read(self, scope: str, key: str) -> bytes:
        return self.connection.execute("SELECT value FROM kv WHERE scope = ? AND key = ?", (scope, key)).fetchall()[0][
            0
        ]

    def read_by_id(self, number: int) -> bytes:
        return self.connection.execute("SELECT value FROM kv WHERE id = ?", (number,)).fetchall()[0][0]


class SameRows:
    """Writes the rows that a `state.set` comes to, and nothing else: no sums, no versions, no encoding, no lock file.

    A value updated in place, a journal entry with the value, a request id, and a counter beside it.
    """

    def __init__(self, path: Path, durability: str, keys: int) -> None:
        self.connection = connect(path, durability)
        self.connection.execute(
            "CREATE TABLE records (id INTEGER PRIMARY KEY, key BLOB UNIQUE, sums BLOB, value BLOB);"
            "CREATE TABLE entries (id INTEGER PRIMARY KEY, sums BLOB, value BLOB);"
            "CREATE TABLE requests (id BLOB PRIMARY KEY, content BLOB, outcome BLOB) WITHOUT ROWID"
        )
        for number in range(keys):
            self.connection.execute("INSERT INTO records (key, value) VALUES (?, '')", (b"key%d" % number,))
        self._keys, self._request = keys, 0

    def write(self, number: int, value: bytes) -> None:
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        run("UPDATE records SET sums = ?, value = ? WHERE id = ?", (_SUMS, value, number % self._keys + 1))
        run("INSERT INTO entries (sums, value) VALUES (?, ?)", (_SUMS, value))
        self._request += 1
        run("INSERT INTO requests VALUES (?, ?, ?)", (self._request.to_bytes(16, "big"), _SUM, _SUM))
        run("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (_LAST, _SUM, _SUM))
        run("COMMIT")


_SUM, _SUMS, _LAST = bytes(16), bytes(64), b"\xff" * 16
