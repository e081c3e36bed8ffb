"""Calls to one Postgres: reads, which are retried, and commits, which are not.

A read whose connection broke is repeated on another one. A commit is repeated only if the server reports that it
rolled back because of another transaction; after any other failure of a sent commit its outcome is "unknown".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from tenuto.backends.postgres.connections import Line, Pool
from tenuto.backends.postgres.errors import AGAIN, READ_ONLY, lost, translated, unprepared
from tenuto.backends.postgres.schema import CONFLICT
from tenuto.backends.postgres.wire import Parameter, Statement
from tenuto.kernel.transact import backoff

T = TypeVar("T")
_TRIES: Final = 12


class Refused(Exception):
    """The server reports which checks failed: their positions, as text."""


class Calls:
    """Make calls through the connections of one pool."""

    def __init__(self, pool: Pool, place: str, timeout: float) -> None:
        self._pool = pool
        self._place = place
        self._timeout = timeout

    def ask(self, sql: Statement, arguments: Sequence[Parameter]) -> list[Any]:
        """Run one read-only statement."""
        return self.run(lambda line: line.ask(sql, arguments))

    def fetch(self, sql: str, arguments: Sequence[Any]) -> list[Any]:
        """Run a rarely used read-only statement."""
        return self.run(lambda line: fetch(line, sql, arguments))

    def run(self, work: Callable[[Line], T]) -> T:
        """Run repeatable work on a connection; replace a broken connection once."""
        try:
            return self._once(work)
        except psycopg.Error as error:
            timed_out = isinstance(error, psycopg.errors.ConnectionTimeout)
            # Errors that the driver itself raises (a deadline, a misuse) have no SQLSTATE and a class of their own.
            broken = lost(error) and (type(error) is psycopg.OperationalError or error.sqlstate is not None)
            if timed_out or not broken:
                raise translated(error, self._place) from error
        try:
            return self._once(work)
        except psycopg.Error as error:
            raise translated(error, self._place) from error

    def commit(self, sql: Statement, arguments: Sequence[Parameter], request: bytes | None) -> bytes:
        """Run a commit function until the server decides; return its reply, or raise `Refused`."""
        deadline = time.monotonic() + self._timeout
        pauses = backoff(_TRIES, first=0.002)
        while True:
            sent = False
            try:
                with self._pool.lend(max(0.001, deadline - time.monotonic())) as line:
                    sent = True
                    reply: bytes = self._on(line, lambda line: line.ask(sql, arguments))[0][0]
                    return reply
            except psycopg.Error as error:
                if error.sqlstate == CONFLICT:
                    raise Refused(error.diag.message_detail or "") from None
                if error.sqlstate == READ_ONLY:
                    self._pool.drop_idle()  # another host of the URL may be the primary now
                pause = next(pauses, None) if error.sqlstate in AGAIN else None
                if pause is None or time.monotonic() + pause > deadline:
                    raise translated(error, self._place, sent=sent, request=request) from error
            time.sleep(pause)

    def _once(self, work: Callable[[Line], T]) -> T:
        with self._pool.lend() as line:
            return self._on(line, work)

    def _on(self, line: Line, work: Callable[[Line], T]) -> T:
        """Run work; repeat it without prepared statements if a pooler is detected."""
        try:
            return work(line)
        except psycopg.Error as error:
            if not unprepared(error) or not line.prepares:
                raise
            # Nothing was executed: a pooler passed this call to another server connection than the prepared one.
            self.without_prepared(line)
            return work(line)

    def without_prepared(self, line: Line) -> None:
        """Stop using prepared statements, on all connections."""
        self._pool.prepare = line.prepares = False


def fetch(line: Line, sql: str, arguments: Sequence[Any]) -> list[Any]:
    """Run a rarely used statement through the driver's cursor."""
    return line.cursor(binary=True).execute(sql.encode(), arguments, prepare=False).fetchall()
