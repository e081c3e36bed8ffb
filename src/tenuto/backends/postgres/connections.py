"""A pool of connections to one Postgres. Every call on a connection has a deadline; Control-C cannot leak one.

The caller that needs a connection opens it, so that a refused port or a wrong password is raised to that caller
at once and in full (a pool with its own threads only reports a timeout). An idle connection that the server
closed is detected before it is lent. A connection that failed, or whose reply did not arrive in time, is closed
and never lent again.

There is no session state: any call may use any connection, also through a pooler in transaction mode.
A forked child drops the connections without closing them: they belong to the parent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen, PQGenConn
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.generators import execute

from tenuto.backends.postgres.errors import STARTING, DeadlineExceeded
from tenuto.backends.postgres.wire import BINARY, Parameter, Statement
from tenuto.errors import Closed, StorageUnavailable
from tenuto.kernel.transact import backoff

T = TypeVar("T")
_PREPARE_AFTER: Final = 2
_IDLE: Final = pq.TransactionStatus.IDLE
_ANSWERS: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_ALONE: Final = 10.0
_OF_SEVERAL: Final = 5.0
"""Seconds to wait for a single host, and for one of several: a machine that is gone does not even refuse."""
_LOOK_AGAIN: Final = 0.05
"""Seconds after which a waiter looks again by itself: a dropped connection sends no notification."""
_HANDED_OVER: Final = 2.0
"""Seconds that a waiter gives the thread that is about to hand it a connection."""
_inherited: list[Any] = []
_attempt = threading.local()


class Line(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which every wait ends at `deadline`, in monotonic time."""

    deadline: float | None = None
    prepares: bool = True
    goodbye: select.poll | None = None
    seat: Seat | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._uses: dict[bytes, int] = {}
        self._transformer = Transformer()  # not bound to this connection: a reference cycle would delay its closing

    def __del__(self, *_: object) -> None:
        """Suppress the driver's warning about a connection that an interrupted call dropped."""

    def ask(self, statement: Statement, parameters: Sequence[Parameter]) -> list[tuple[Any, ...]]:
        """Run a statement, prepared from its second use on, in one round trip; return its rows."""
        server = self.pgconn
        if self.prepares and self._known(statement):
            server.send_query_prepared(statement.name, parameters, statement.formats, BINARY)
        else:
            server.send_query_params(statement.sql, parameters, statement.types, statement.formats, BINARY)
        result = self._answer()
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)  # release the bytes of the reply now
        return rows

    def _known(self, statement: Statement) -> bool:
        uses = self._uses.get(statement.name, 0) + 1
        if uses <= _PREPARE_AFTER:
            if uses == _PREPARE_AFTER:
                self.pgconn.send_prepare(statement.name, statement.sql, statement.types)
                self._answer()
            self._uses[statement.name] = uses
        return uses >= _PREPARE_AFTER

    def _answer(self) -> pq.abc.PGresult:
        result: pq.abc.PGresult = self.wait(execute(self.pgconn))[-1]
        if result.status not in _ANSWERS:
            raise error_from_result(result, "utf-8")
        return result

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        """Connect to one host within its share of the time: the driver allows whole seconds only, at least two."""
        now, _attempt.hosts = time.monotonic(), _attempt.hosts - 1
        until = now + min((_attempt.deadline - now) / max(1, _attempt.hosts + 1), _attempt.most)
        steps = super()._connect_gen(conninfo)
        with contextlib.closing(steps):
            try:
                wanted = next(steps)
                while True:
                    ready = yield wanted
                    if time.monotonic() >= until:
                        raise psycopg.errors.ConnectionTimeout("the server did not answer in time")
                    wanted = steps.send(ready)
            except StopIteration as done:
                line: Self = done.value
                return line

    def silent(self) -> bool:
        """Return whether the server sent nothing while the connection was idle: it would announce its end."""
        if self.goodbye is None:
            self.goodbye = select.poll()
            self.goodbye.register(self.fileno(), select.POLLIN)
        return not self.goodbye.poll(0)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Run one exchange with the server; close the connection if the deadline passes."""
        if timeout is None and self.deadline is not None:
            timeout = max(0.0, self.deadline - time.monotonic())
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.errors._WaitTimeout:
            cut(self)
            raise DeadlineExceeded("the server did not answer within the timeout") from None


class Seat:
    """The right to one open connection. It is free again when its last reference is gone."""

    __slots__ = ("__weakref__",)


class Loan:
    """A borrowed connection for a `with` block."""

    __slots__ = ("_line", "_pool", "_timeout")

    def __init__(self, pool: Pool, timeout: float) -> None:
        self._pool, self._timeout = pool, timeout

    def __enter__(self) -> Line:
        self._line = line = self._pool._take(self._timeout)
        return line

    def __exit__(self, *_: object) -> None:
        self._pool._return(self._line)


class Pool:
    """Lend up to `size` connections. `prepare` is turned off permanently once a pooler is found.

    Control-C may come between any two instructions, so nothing is counted by hand. A connection holds a seat, and the
    pool refers to seats weakly: a connection that an interrupted call dropped is closed when it is collected, and its
    seat is free. A waiter is handed a connection, or looks again after a moment.
    """

    def __init__(self, conninfo: str, place: str, size: int, timeout: float) -> None:
        self._conninfo = conninfo
        self._place = place
        self.size = size
        self._timeout = timeout
        self._hosts = 1 + str(conninfo_to_dict(conninfo).get("host") or "").count(",")
        self._idle: deque[Line] = deque()
        self._seats: list[weakref.ref[Seat]] = []
        self._waiting: deque[queue.SimpleQueue[Line | None]] = deque()
        self._closed = False
        self.prepare = True
        self.opened = 0

    def lend(self, timeout: float | None = None) -> Loan:
        """Lend a connection for a `with` block; its calls end within the timeout, counted from now."""
        return Loan(self, self._timeout if timeout is None else timeout)

    def _take(self, timeout: float) -> Line:
        deadline = time.monotonic() + timeout
        line: Line | None = None
        while line is None:
            line = self._unused() or self._opened(deadline) or self._handed_over(deadline, timeout)
        line.deadline = deadline
        return line

    def _unused(self) -> Line | None:
        """Return an idle connection, or None."""
        while not self._closed:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if not line.closed and line.silent():
                line.prepares = self.prepare
                return line
            cut(line)  # the server has ended it
        raise Closed("This store was closed. Open a new client.")

    def _opened(self, deadline: float) -> Line | None:
        """Return a new connection, or None if the pool is full."""
        seat = self._seat()
        if seat is None:
            return None
        try:
            line = self.connect(deadline)
        except BaseException:
            seat = None  # the error refers to this frame, and the driver's frames to the error
            raise
        line.seat = seat
        return line

    def _seat(self) -> Seat | None:
        """Return a seat, or None if `size` others were acquired earlier.

        Two concurrent threads are in the list in some order, and the later one counts the earlier. So there are never
        more than `size` seats, without a lock.
        """
        seat = Seat()
        mine = weakref.ref(seat)
        self._seats.append(mine)
        before = 0
        for one in tuple(self._seats):
            if one is mine:
                break
            if one() is not None:
                before += 1
            else:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self._seats.remove(one)
        return seat if before < self.size else None

    def _handed_over(self, deadline: float, timeout: float) -> Line | None:
        """Wait for a returned connection; return None to look again."""
        left = deadline - time.monotonic()
        if left <= 0:
            gc.collect()  # a connection dropped by an interrupted call may be part of a reference cycle
            if self.lent < self.size:
                return None
            raise StorageUnavailable(
                f"All {self.size} connections to {self._place} were in use for {timeout:g} s. Nothing was written. "
                "Raise ?pool= in the URL, or make fewer concurrent calls."
            )
        mine: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._waiting.append(mine)
        if self._idle:  # returned just before, unless another thread is being handed it
            with contextlib.suppress(ValueError):
                self._waiting.remove(mine)
                return None
        try:
            return mine.get(timeout=min(left, _LOOK_AGAIN))
        except queue.Empty:
            try:
                self._waiting.remove(mine)
            except ValueError:  # another thread is handing one over right now, unless Control-C met it
                with contextlib.suppress(queue.Empty):
                    return mine.get(timeout=_HANDED_OVER)
            return None

    def _return(self, line: Line) -> None:
        """Return a connection to the pool if its last call completed, else close it."""
        line.deadline = None
        whole = not line.closed and line.pgconn.transaction_status == _IDLE and not self._closed
        if not whole:
            cut(line)
        if self._waiting:
            with contextlib.suppress(IndexError):
                self._waiting.popleft().put(line if whole else None)
                return
        if whole:
            self._idle.append(line)

    def connect(self, deadline: float) -> Line:
        """Open a connection; wait for a server that is starting up."""
        pauses = backoff(first=0.02, most=0.25)
        while True:
            _attempt.deadline, _attempt.hosts = deadline, self._hosts
            _attempt.most = _ALONE if self._hosts == 1 else _OF_SEVERAL
            try:
                line = Line.connect(
                    self._conninfo,
                    autocommit=True,
                    prepare_threshold=None,  # only `ask` prepares statements
                )
            except psycopg.OperationalError as error:
                # Wait for a server that is starting up; one that refuses the connection is not running.
                pause = next(pauses)
                starting = error.sqlstate == STARTING or "starting up" in str(error)
                if not starting or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
            else:
                self.opened += 1
                line.prepares = self.prepare
                return line

    def drop_idle(self) -> None:
        """Close every idle connection."""
        while self._idle:
            with contextlib.suppress(IndexError):
                cut(self._idle.pop())

    def close(self) -> None:
        """Close every connection; a lent one when it is returned."""
        self._closed = True
        self.drop_idle()
        with contextlib.suppress(IndexError):
            while self._waiting:
                self._waiting.popleft().put(None)

    def forget(self) -> None:
        """Drop everything without closing it, for a forked child: it belongs to the parent."""
        _inherited.append(list(self._idle))
        self._idle.clear()
        self._closed = True

    @property
    def lent(self) -> int:
        """Return the number of connections in use or being opened."""
        return sum(seat() is not None for seat in tuple(self._seats)) - self.idle

    @property
    def idle(self) -> int:
        """Return the number of idle connections."""
        return len(self._idle)


def cut(line: Line) -> None:
    """Close a connection at once, in any state, without waiting for the server; its seat is free."""
    if not line.closed:
        if line.pgconn.transaction_status != _IDLE:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as shut:
                shut.shutdown(socket.SHUT_RDWR)
        line.close()
    line.seat = None  # a stored error may keep the connection alive
