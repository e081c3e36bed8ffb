"""Bells of a Postgres store: LISTEN and NOTIFY, so that those who watch streams need not ask all the time.

On the listener's connection each watched stream is marked by a shared advisory lock, which ends with the
connection, whatever ends that. Where a commit cannot take the stream's lock for itself somebody watches, and it
returns the lock's number. The client that committed then sends NOTIFY from a thread, in a transaction of its own that
is not synced: a notifying transaction keeps all others of its kind waiting until it has committed, and commits must
not be kept.

A commit that found no mark holds the lock until it has ended, so the listener cannot mark the stream before that.
Then it rings once, and the watcher looks: nothing falls in between.

Behind a pooler there is nothing to listen on: there a LISTEN belongs to a connection that is another client's a
moment later, and a mark would outlive its watcher.
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
from tenuto.backends._postgres_pool import Line, Pool, cut
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
    """Return a stream as the commit functions name it where they hash it to the number of its lock."""
    return schema.encode() + tenant + key.hex().encode()


def _channel(schema: str) -> str:
    return f"tenuto_{schema}"


class PostgresEar:
    """A connection that listens; a stream is marked on it by a lock."""

    def __init__(self, line: Line, schema: str) -> None:
        self._line = line
        self._names: dict[str, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._told: list[str] = []
        line.add_notify_handler(lambda note: self._told.append(note.payload))
        listen = "LISTEN {}; SET application_name = 'tenuto listening'"
        line.execute(sql.SQL(listen).format(sql.Identifier(_channel(schema))))

    def fileno(self) -> int:
        """Return the connection's socket."""
        return self._line.fileno()

    def mark(self, name: bytes) -> bool:
        """Take the stream's lock, unless a commit to it is under way."""
        number = _asked(self._line, _NUMBER, name.decode())
        marked = bool(_asked(self._line, _MARK, number))
        if marked:
            self._names[str(number)], self._numbers[name] = name, number
        return marked

    def unmark(self, name: bytes) -> None:
        """Let go of the stream's lock."""
        number = self._numbers.pop(name)
        self._names.pop(str(number), None)
        _asked(self._line, _UNMARK, number)

    def heard(self) -> list[bytes]:
        """Return the streams that were notified of."""
        self._line.pgconn.consume_input()
        while note := self._line.pgconn.notifies():
            self._told.append(note.extra.decode())
        told, self._told[:] = list(self._told), []
        return [self._names[number] for number in told if number in self._names]

    def ask(self) -> None:
        """Ask for something small."""
        _asked(self._line, b"SELECT 1")

    def close(self) -> None:
        """Cut the connection."""
        cut(self._line)


def listen(pool: Pool, schema: str) -> PostgresEar | None:
    """Return a connection that listens, or None if a pooler is in between."""
    if not pool.prepare:  # one was noticed
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


class Ringer:
    """Tells other clients that a stream which they watch has grown, after the commit and not in its time."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._channel = _channel(schema)
        self._guard = threading.Lock()
        self._due: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self._running = False

    def tell(self, numbers: Sequence[int]) -> None:
        """Have these streams' watchers told soon, if all goes well."""
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
            with contextlib.suppress(queue.Empty):  # what has come meanwhile goes along
                while len(numbers) < 1_000:
                    numbers.update(self._due.get_nowait())
            try:
                self._send(sorted(numbers))
            except Closed:
                return
            except (psycopg.Error, TenutoError) as error:
                _log.debug("a notification was not sent, watchers poll: %s", error)

    def _send(self, numbers: list[int]) -> None:
        line = self._pool.take()
        try:
            line.execute(_NOTIFY, (self._channel, numbers), prepare=False)
        finally:
            self._pool.give_back(line)


def _asked(line: Line, statement: bytes, *arguments: object) -> Any:
    line.deadline = time.monotonic() + _ANSWER
    row = line.execute(statement, arguments or None).fetchone()
    return row and row[0]
