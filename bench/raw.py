"""The raw driver: what apsw does with nothing in between. It is what every ratio here is against.

WAL with `synchronous` FULL or NORMAL, everything else as SQLite has it: the connection that commits checkpoints
every 1,000 pages.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import apsw

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
    """Adds 1 KB for each of many threads: who has the lock commits for all who wait. Group commit, and nothing else."""

    def __init__(self, path: Path, durability: str) -> None:
        self._inserts = Inserts(path, durability)
        self._lock = threading.Lock()
        self._waiting: deque[list[bytes]] = deque()

    def write(self, value: bytes) -> None:
        own = [value]
        self._waiting.append(own)
        with self._lock:
            if not own:
                return  # another thread has committed it
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if len(batch) == 1:
                self._inserts.write(value)
                return
            run = self._inserts.connection.execute
            run("BEGIN IMMEDIATE")
            for one in batch:
                run("INSERT INTO log (value) VALUES (?)", one)
            run("COMMIT")
            for one in batch:
                one.clear()


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
