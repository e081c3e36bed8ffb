"""One thread and one connection for all bells of a client, there while somebody watches and a few seconds longer.

What is heard on differs from store to store: an `Ear` is a connection that can mark a stream as watched and is then
told of what is added to it. Whatever fails here only makes bells silent: their watchers poll, and the listener
tries again after a while.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tenuto.kernel.bell import Bell
from tenuto.kernel.transact import backoff

LINGER: Final = 5.0
_ALIVE: Final = 10.0
"""How often a listener that hears nothing asks whether its server is still there."""
_AGAIN: Final = 0.02
_MOST: Final = 500
"""How many streams a client marks at the most: what a mark takes on the server is everybody's."""
_log = logging.getLogger("tenuto.backends")


class Ear(Protocol):
    """A connection on which a store tells of what was added to streams."""

    def fileno(self) -> int:
        """Return what becomes readable when there is something to hear."""
        ...

    def mark(self, name: bytes) -> bool:
        """Have this stream told of; False if that cannot be right now."""
        ...

    def unmark(self, name: bytes) -> None:
        """Have it told of no more."""
        ...

    def heard(self) -> Iterable[bytes]:
        """Return the streams that were told of, without waiting."""
        ...

    def ask(self) -> None:
        """Raise if the server is no longer there."""
        ...

    def close(self) -> None:
        """End the connection at once."""
        ...


class Listener:
    """Rings this client's bells. `connect` returns an ear, or None where a store cannot tell, now and for ever."""

    def __init__(self, connect: Callable[[], Ear | None], failures: tuple[type[Exception], ...]) -> None:
        self._connect = connect
        self._failures: tuple[type[Exception], ...] = (*failures, OSError)
        self._guard = threading.Lock()
        self._bells: dict[bytes, list[Bell]] = {}
        self._thread: threading.Thread | None = None
        self._wires: tuple[socket.socket, socket.socket] | None = None  # what is sent into one wakes the thread
        self._closed = False

    def bell(self, name: bytes) -> Bell:
        """Return a bell for a stream; it is live once the stream is marked."""
        if self._closed:
            return Bell()
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
            thread.join(LINGER)

    def forget(self) -> None:
        """Let every bell be silent: in a forked child nobody rings it, and a lock may be held by nobody."""
        self._closed = True
        self._guard = threading.Lock()
        self._silence()

    def _let_go(self, name: bytes, bell: Bell) -> None:
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

    def _silence(self) -> None:
        with self._guard:
            for bells in self._bells.values():
                for bell in bells:
                    bell.live = False

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = backoff(None, first=0.5, most=30.0)
        while (wire := self._wanted()) is not None:
            ear: Ear | None = None
            try:
                ear = self._connect()
                if ear is None:
                    self._closed = True
                    continue
                self._attend(ear, wire)
                pauses = backoff(None, first=0.5, most=30.0)
            except self._failures as error:
                _log.debug("a listener failed, watchers poll meanwhile: %s", error)
                self._silence()
                self._rest(next(pauses), wire)
            finally:
                self._silence()
                if ear is not None:
                    ear.close()

    def _wanted(self) -> socket.socket | None:
        """Return the wire to hear on, or None when nobody watches: then the thread ends."""
        with self._guard:
            if self._bells and not self._closed and self._wires is not None:
                return self._wires[0]
            for wire in self._wires or ():
                wire.close()
            self._thread = self._wires = None
            return None

    def _rest(self, seconds: float, wire: socket.socket) -> None:
        ears = select.poll()
        ears.register(wire, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not self._closed and (left := deadline - time.monotonic()) > 0:
            ears.poll(1000 * left)
            _drain(wire)

    def _attend(self, ear: Ear, wire: socket.socket) -> None:
        """Listen until nobody has watched for a while."""
        marked: set[bytes] = set()
        ears = select.poll()
        ears.register(ear.fileno(), select.POLLIN)
        ears.register(wire, select.POLLIN)
        watched = time.monotonic()
        while not self._closed:
            wait = _ALIVE if self._mark(ear, marked) else _AGAIN
            if marked:
                watched = time.monotonic()
            elif time.monotonic() - watched > LINGER:
                return
            if not ears.poll(1000 * (wait if marked else min(wait, LINGER))):
                ear.ask()
            _drain(wire)
            for name in ear.heard():
                for bell in list(self._bells.get(name, ())):
                    bell.ring()

    def _mark(self, ear: Ear, marked: set[bytes]) -> bool:
        """Mark what is watched and no longer mark what is not; tell whether nothing is left to do."""
        with self._guard:
            wanted = {name: list(bells) for name, bells in list(self._bells.items())[:_MOST]}
        for name in marked - wanted.keys():
            ear.unmark(name)
            marked.discard(name)
        done = True
        for name, bells in wanted.items():
            if name not in marked:
                if not ear.mark(name):
                    done = False
                    continue
                marked.add(name)
            for bell in bells:
                if not bell.live:
                    bell.live = True
                    bell.ring()  # what was added before is looked for now
        return done


def _drain(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.recv(4096, socket.MSG_DONTWAIT)
