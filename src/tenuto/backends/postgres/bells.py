"""Notifications of a Postgres store: LISTEN and NOTIFY, so that watchers of streams need to poll only rarely.

The listener's connection marks each watched stream by a shared advisory lock, which ends with the connection.
If a commit cannot acquire the stream's lock exclusively, there is a watcher, and the commit returns the lock's
number. The committing client then sends NOTIFY from a thread, in a separate, unsynced transaction: notifying
transactions commit one at a time, and commits must not wait for that.

A commit that found no mark holds the lock until it ends, so the listener cannot mark the stream before that.
After marking, the listener notifies once and the watcher reads, so no entry is missed.

Through a pooler there are no notifications: a server connection passes to another client at any time, so a
LISTEN would be lost and a mark would outlive its watcher.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from tenuto.backends._listener import LINGER
from tenuto.backends.postgres.connections import Line, Pool, cut
from tenuto.errors import Closed, TenutoError

_ANSWER: Final = 5.0
_NUMBER: Final = b"SELECT hashtextextended(%s, 4)"
_MARK: Final = b"SELECT pg_try_advisory_lock_shared(%s::int8)"
_UNMARK: Final = b"SELECT pg_advisory_unlock_shared(%s::int8)"
_NOTIFY: Final = (
    b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, n::text) FROM unnest(%s::int8[]) AS n"
)
_log = logging.getLogger("tenuto.postgres")


def name_of(schema: str, tenant: bytes, key: bytes) -> bytes:
    """Return the name of a stream that the commit functions hash to its lock number."""
    return schema.encode() + tenant + key.hex().encode()


def _channel(schema: str) -> str:
    return f"tenuto_{schema}"


class PostgresEar:
    """A connection that listens; a lock on it marks a watched stream."""

    def __init__(self, line: Line, schema: str) -> None:
        self._line = line
        self._names: dict[str, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._received: list[str] = []
        line.add_notify_handler(lambda note: self._received.append(note.payload))
        listen = "LISTEN {}; SET application_name = 'tenuto listening'"
        line.execute(sql.SQL(listen).format(sql.Identifier(_channel(schema))))

    def fileno(self) -> int:
        """Return the connection's socket."""
        return self._line.fileno()

    def mark(self, name: bytes) -> bool:
        """Acquire the stream's lock; return False if a commit to the stream is in progress."""
        number = _asked(self._line, _NUMBER, name.decode())
        marked = bool(_asked(self._line, _MARK, number))
        if marked:
            self._names[str(number)], self._numbers[name] = name, number
        return marked

    def unmark(self, name: bytes) -> None:
        """Release the stream's lock."""
        number = self._numbers.pop(name)
        self._names.pop(str(number), None)
        _asked(self._line, _UNMARK, number)

    def heard(self) -> list[bytes]:
        """Return the streams that were notified."""
        self._line.pgconn.consume_input()
        while note := self._line.pgconn.notifies():
            self._received.append(note.extra.decode())
        received, self._received[:] = list(self._received), []
        return [self._names[number] for number in received if number in self._names]

    def ask(self) -> None:
        """Run a trivial query."""
        _asked(self._line, b"SELECT 1")

    def close(self) -> None:
        """Close the connection at once."""
        cut(self._line)


def listen(pool: Pool, schema: str) -> PostgresEar | None:
    """Return a connection that listens, or None if a pooler is in between."""
    if not pool.prepare:  # a pooler was detected
        return None
    line = pool.connect(time.monotonic() + _ANSWER)
    try:
        line.prepare_threshold = None
        if _asked(line, b"SELECT pg_backend_pid()") == line.info.backend_pid:
            return PostgresEar(line, schema)
    except BaseException:
        cut(line)
        raise
    cut(line)
    return None


class Notifier:
    """Notify other clients that a watched stream has grown, after the commit and off its path."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._channel = _channel(schema)
        self._guard = threading.Lock()
        self._due: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self._running = False

    def tell(self, numbers: Sequence[int]) -> None:
        """Schedule a notification for these streams, without guarantee."""
        self._due.put(numbers)
        with self._guard:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="tenuto-notify", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                numbers = set(self._due.get(timeout=LINGER))
            except queue.Empty:
                with self._guard:
                    if self._due.empty():
                        self._running = False
                        return
                continue
            with contextlib.suppress(queue.Empty):  # include what has arrived in the meantime
                while len(numbers) < 1_000:
                    numbers.update(self._due.get_nowait())
            try:
                self._send(sorted(numbers))
            except Closed:
                return
            except (psycopg.Error, TenutoError) as error:
                _log.debug("a notification was not sent, watchers poll: %s", error)

    def _send(self, numbers: list[int]) -> None:
        with self._pool.lend() as line:
            line.execute(_NOTIFY, (self._channel, numbers), prepare=False)


def _asked(line: Line, statement: bytes, *arguments: object) -> Any:
    line.deadline = time.monotonic() + _ANSWER
    row = line.execute(statement, arguments or None).fetchone()
    return row and row[0]
