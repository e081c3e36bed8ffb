"""Bells of a Postgres store: LISTEN and NOTIFY, so that those who watch streams need not ask all the time.

One connection of its own serves all bells of a client, while there is one and a few seconds longer. On it each
watched stream is marked by a shared advisory lock, which ends with the connection, whatever ends that. Where
`commit_v1` cannot take the stream's lock for itself somebody watches, and it returns the lock's number. The
client that committed then sends NOTIFY from a thread, in a transaction of its own that is not synced: a
notifying transaction keeps all others of its kind waiting until it has committed, and commits must not.

A commit that found no mark holds the lock until it has ended, so the listener cannot mark the stream before that.
Then it rings once, and the watcher looks: nothing falls in between.

All of this may fail. The bells are not `live` then, and their watchers poll. Behind a pooler they stay so: there a
LISTEN belongs to a connection that is another client's a moment later.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from tenuto.backends._postgres_pool import Line, Pool, cut
from tenuto.errors import Closed, TenutoError
from tenuto.kernel.bell import Bell
from tenuto.kernel.transact import backoff

_LINGER: Final = 5.0
_ALIVE: Final = 10.0
"""How often a listener that hears nothing asks whether its server is still there."""
_ANSWER: Final = 5.0
_AGAIN: Final = 0.02
_MOST: Final = 500
"""How many streams a client marks at the most: the server's table of locks is everybody's."""
_MARK: Final = b"SELECT n, pg_try_advisory_lock_shared(n) FROM hashtextextended(%s, 4) AS n"
_UNMARK: Final = b"SELECT pg_advisory_unlock_shared(%s::int8)"
_NOTIFY: Final = (
    b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, n::text) FROM unnest(%s::int8[]) AS n"
)
_log = logging.getLogger("tenuto.postgres")


def channel(schema: str) -> str:
    """Return the name under which a store's notifications go."""
    return f"tenuto_{schema}"


class Listener:
    """Rings this client's bells. Its thread and its connection are there while somebody watches."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._guard = threading.Lock()
        self._bells: dict[str, list[Bell]] = {}  # by what is hashed to the number of a stream's lock
        self._thread: threading.Thread | None = None
        self._wires: tuple[socket.socket, socket.socket] | None = None  # what is sent into one wakes the thread
        self._closed = False

    def bell(self, tenant: str, key: bytes) -> Bell:
        """Return a bell for a stream; it is live once the stream is marked."""
        if self._closed or not self._pool.prepare:  # a pooler was noticed
            return Bell()
        name = f"{self._schema}{tenant}{key.hex()}"
        bell = Bell(lambda one: self._let_go(name, one))
        with self._guard:
            self._bells.setdefault(name, []).append(bell)
            if self._thread is None:
                self._wires = socket.socketpair()
                self._thread = threading.Thread(target=self._run, name="tenuto-listen", daemon=True)
                self._thread.start()
        self._wake()
        return bell

    def close(self) -> None:
        """End the listening, and wait for that."""
        self._closed = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ANSWER)

    def forget(self) -> None:
        """Let every bell be silent: in a forked child nobody rings it, and a lock may be held by nobody."""
        self._closed = True
        self._guard = threading.Lock()
        self._silence()

    def _let_go(self, name: str, bell: Bell) -> None:
        with self._guard:
            bells = self._bells.get(name, [])
            if bell in bells:
                bells.remove(bell)
            if not bells:
                self._bells.pop(name, None)
        self._wake()

    def _wake(self) -> None:
        wires = self._wires
        if wires is not None:
            with contextlib.suppress(OSError):
                wires[1].send(b"!", socket.MSG_DONTWAIT)

    def _run(self) -> None:
        pauses = backoff(None, first=0.5, most=30.0)
        while (wire := self._wanted()) is not None:
            line: Line | None = None
            try:
                line = self._pool.connect(time.monotonic() + _ANSWER)
                self._attend(line, wire)
                pauses = backoff(None, first=0.5, most=30.0)
            except (psycopg.Error, TenutoError, OSError) as error:
                _log.debug("listening to %s failed, watchers poll meanwhile: %s", self._schema, error)
                self._silence()
                self._rest(next(pauses), wire)
            finally:
                self._silence()
                if line is not None:
                    cut(line)

    def _wanted(self) -> socket.socket | None:
        """Return the wire to hear on, or None when nobody watches: then the thread ends."""
        with self._guard:
            if self._bells and not self._closed and self._wires is not None:
                return self._wires[0]
            for wire in self._wires or ():
                wire.close()
            self._thread = self._wires = None
            return None

    def _silence(self) -> None:
        with self._guard:
            for bells in self._bells.values():
                for bell in bells:
                    bell.live = False

    def _rest(self, seconds: float, wire: socket.socket) -> None:
        ears = select.poll()
        ears.register(wire, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not self._closed and (left := deadline - time.monotonic()) > 0:
            ears.poll(1000 * left)
            _drain(wire)

    def _attend(self, line: Line, wire: socket.socket) -> None:
        """Listen until nobody has watched for a while, or for ever no more if a pooler is in between."""
        line.prepare_threshold = None
        if _asked(line, b"SELECT pg_backend_pid()")[0] != line.info.backend_pid:
            self._closed = True
            return
        held: dict[str, int] = {}
        line.add_notify_handler(lambda note: self._ring(note.payload, held))
        line.deadline = time.monotonic() + _ANSWER
        listen = "LISTEN {}; SET application_name = 'tenuto listening'"
        line.execute(sql.SQL(listen).format(sql.Identifier(channel(self._schema))))
        ears = select.poll()
        ears.register(line.fileno(), select.POLLIN)
        ears.register(wire, select.POLLIN)
        watched = time.monotonic()
        while not self._closed:
            wait = _ALIVE if self._mark(line, held) else _AGAIN
            if held:
                watched = time.monotonic()
            elif time.monotonic() - watched > _LINGER:
                return
            if not ears.poll(1000 * (wait if held else min(wait, _LINGER))):
                _asked(line, b"SELECT 1")  # is the server still there?
            _drain(wire)
            line.pgconn.consume_input()
            while note := line.pgconn.notifies():
                self._ring(note.extra.decode(), held)

    def _mark(self, line: Line, held: dict[str, int]) -> bool:
        """Mark what is watched and no longer mark what is not; tell whether nothing is left to do."""
        with self._guard:
            wanted = {name: list(bells) for name, bells in list(self._bells.items())[:_MOST]}
        for name in [name for name in held if name not in wanted]:
            _asked(line, _UNMARK, held.pop(name))
        done = True
        for name, bells in wanted.items():
            if name not in held:
                number, marked = _asked(line, _MARK, name)
                if not marked:  # a commit to it is under way
                    done = False
                    continue
                held[name] = number
            for bell in bells:
                if not bell.live:
                    bell.live = True
                    bell.ring()
        return done

    def _ring(self, number: str, held: dict[str, int]) -> None:
        for name, own in held.items():
            if str(own) == number:
                for bell in list(self._bells.get(name, ())):
                    bell.ring()


class Ringer:
    """Tells other clients that a stream which they watch has grown, after the commit and not in its time."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._channel = channel(schema)
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
                numbers = set(self._due.get(timeout=_LINGER))
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


def _asked(line: Line, statement: bytes, *arguments: object) -> tuple[Any, ...]:
    line.deadline = time.monotonic() + _ANSWER
    row = line.execute(statement, arguments or None).fetchone()
    assert row is not None
    return row


def _drain(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.recv(4096, socket.MSG_DONTWAIT)
