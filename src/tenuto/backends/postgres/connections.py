"""Connections to one Postgres, kept and lent out; every call on one ends by a deadline.

Connections are opened when they are needed, by the caller who needs one, so that a refused port or a
wrong password is that caller's error at once and in full (a pool with threads of its own only says that
it timed out). One that the server has closed while it lay idle is noticed before it is lent. One that
failed, or whose answer did not come in time, is cut and never lent again.

There is no session state: any call may use any connection, also through a pooler in transaction mode.
A forked child forgets the connections without closing them: they are the parent's.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
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

from tenuto.backends._postgres_errors import STARTING, DeadlineExceeded
from tenuto.backends._postgres_wire import BINARY, Parameter, Statement
from tenuto.errors import Closed, StorageUnavailable
from tenuto.kernel.transact import backoff

T = TypeVar("T")
_PREPARE_AFTER: Final = 2
_IDLE: Final = pq.TransactionStatus.IDLE
_ANSWERS: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_ALONE: Final = 10.0
_OF_SEVERAL: Final = 5.0
"""For how many seconds one host, and one of several, is waited for: a machine that is gone does not even refuse."""
_inherited: list[Any] = []
_attempt = threading.local()


class Line(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait ends by `deadline`, in monotonic time."""

    deadline: float | None = None
    prepares: bool = True
    goodbye: select.poll | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._uses: dict[bytes, int] = {}
        self._transformer = Transformer(self)

    def ask(self, statement: Statement, parameters: Sequence[Parameter]) -> list[tuple[Any, ...]]:
        """Run a statement, prepared from its second use on, and return its rows: one round trip."""
        server = self.pgconn
        if self.prepares and self._known(statement):
            server.send_query_prepared(statement.name, parameters, statement.formats, BINARY)
        else:
            server.send_query_params(statement.sql, parameters, statement.types, statement.formats, BINARY)
        result = self._answer()
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)  # it would hold on to the bytes until the next call
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
        """Connect to one host in its share of the time: the driver would take whole seconds, two at the least."""
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
        """Tell whether the server has said nothing while the connection lay idle: it would be a goodbye."""
        if self.goodbye is None:
            self.goodbye = select.poll()
            self.goodbye.register(self.fileno(), select.POLLIN)
        return not self.goodbye.poll(0)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Run one exchange with the server, or cut the connection when the deadline has passed."""
        if timeout is None and self.deadline is not None:
            timeout = max(0.0, self.deadline - time.monotonic())
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.errors._WaitTimeout:
            cut(self)
            raise DeadlineExceeded("the server did not answer within the timeout") from None


class Pool:
    """Up to `size` connections. `prepare` turns off, once and for all, behind a pooler."""

    def __init__(self, conninfo: str, place: str, size: int, timeout: float) -> None:
        self._conninfo = conninfo
        self._place = place
        self.size = size
        self._timeout = timeout
        self._hosts = 1 + str(conninfo_to_dict(conninfo).get("host") or "").count(",")
        self._idle: deque[Line] = deque()
        # One token for each connection that may be in use; a queue in C, as it is on every call's path.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._free.put(None)
        self._closed = False
        self.prepare = True
        self.opened = 0

    def take(self, timeout: float | None = None) -> Line:
        """Lend a connection until `give_back`, which the caller owes whatever happens."""
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        try:
            self._free.get(timeout=timeout)
        except queue.Empty:
            raise StorageUnavailable(
                f"All {self.size} connections to {self._place} were in use for {timeout:g} s. Nothing was written. "
                "Raise ?pool= in the URL, or make fewer calls at once."
            ) from None
        try:
            line = self._take(deadline)
        except BaseException:
            self._free.put(None)
            raise
        line.deadline = deadline
        return line

    def give_back(self, line: Line) -> None:
        """Take a connection back if its last call came to its end, else cut it."""
        line.deadline = None
        if line.closed or line.pgconn.transaction_status != _IDLE or self._closed:
            cut(line)
        else:
            self._idle.append(line)
        self._free.put(None)

    def _take(self, deadline: float) -> Line:
        while not self._closed:
            try:
                line = self._idle.pop()
            except IndexError:
                return self.connect(deadline)
            if not line.closed and line.silent():
                line.prepares = self.prepare
                return line
            cut(line)  # the server has said goodbye meanwhile
        raise Closed("This store was closed; open a new client.")

    def connect(self, deadline: float) -> Line:
        """Open a connection; a server that is starting up is waited for."""
        pauses = backoff(None, first=0.02, most=0.25)
        while True:
            _attempt.deadline, _attempt.hosts = deadline, self._hosts
            _attempt.most = _ALONE if self._hosts == 1 else _OF_SEVERAL
            try:
                line = Line.connect(
                    self._conninfo,
                    autocommit=True,
                    prepare_threshold=None,  # what is prepared is prepared by `ask`
                )
            except psycopg.OperationalError as error:
                # A server that is starting up is waited for; one that refuses is not there.
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
        """Close every connection that is not lent."""
        while self._idle:
            with contextlib.suppress(IndexError):
                cut(self._idle.pop())

    def close(self) -> None:
        """Close every connection; lent ones when they come back."""
        self._closed = True
        self.drop_idle()

    def forget(self) -> None:
        """Let go of everything without closing it: in a forked child it is the parent's."""
        _inherited.append(list(self._idle))
        self._idle.clear()
        self._closed = True

    @property
    def lent(self) -> int:
        """How many connections are in use."""
        return self.size - self._free.qsize()

    @property
    def idle(self) -> int:
        """How many connections are open and unused."""
        return len(self._idle)


def cut(line: Line) -> None:
    """End a connection at once, whatever state it is in, without waiting for the server."""
    if line.closed:
        return
    if line.pgconn.transaction_status != _IDLE:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as shut:
            shut.shutdown(socket.SHUT_RDWR)
    line.close()
