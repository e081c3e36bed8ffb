"""One thread and one connection that receive the notifications for all bells of a client.

The thread ends a few seconds after the last watcher left. An `Ear` is the store's side: a connection that can mark a
stream as watched and then receives a notification for each append. A failure here only stops the notifications:
watchers poll, and the listener retries after a delay.
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
"""Seconds without a notification after which the listener checks that its server still answers."""
_AGAIN: Final = 0.02
MOST: Final = 500
"""Maximum number of streams that a client marks: each mark uses resources of the shared server."""
_log = logging.getLogger("tenuto.backends")


class Ear(Protocol):
    """A connection that receives a store's notifications about streams."""

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when a notification arrives."""
        ...

    def mark(self, name: bytes) -> bool:
        """Subscribe to a stream; return False if that is not possible right now."""
        ...

    def unmark(self, name: bytes) -> None:
        """Unsubscribe from a stream."""
        ...

    def heard(self) -> Iterable[bytes]:
        """Return the streams that were notified since the last call, without waiting."""
        ...

    def ask(self) -> None:
        """Raise if the server no longer answers."""
        ...

    def close(self) -> None:
        """Close the connection at once."""
        ...


class Listener:
    """Deliver notifications to this client's bells. `connect` returns an ear, or None if the store cannot notify."""

    def __init__(self, connect: Callable[[], Ear | None], failures: tuple[type[Exception], ...]) -> None:
        self._connect = connect
        self._failures: tuple[type[Exception], ...] = (*failures, OSError)
        self._guard = threading.Lock()
        self._bells: dict[bytes, list[Bell]] = {}
        self._thread: threading.Thread | None = None
        self._wires: tuple[socket.socket, socket.socket] | None = None  # a byte sent into one wakes the thread
        self._closed = False

    def bell(self, name: bytes) -> Bell:
        """Return a bell for a stream; it becomes live when the stream is marked."""
        if self._closed:
            return Bell()
        bell = Bell(lambda one: self._release(name, one))
        with self._guard:
            self._bells.setdefault(name, []).append(bell)
            if self._thread is None:
                self._wires = socket.socketpair()
                self._thread = threading.Thread(target=self._run, name="tenuto-listen", daemon=True)
                self._thread.start()
        self._wake()
        return bell

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._closed = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LINGER)

    def forget(self) -> None:
        """Make every bell silent, for a forked child: its listener thread is gone, and its lock may be held for ever."""
        self._closed = True
        self._guard = threading.Lock()
        self._silence()

    def _release(self, name: bytes, bell: Bell) -> None:
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
        pauses = backoff(first=0.5, most=30.0)
        while (wire := self._wanted()) is not None:
            ear: Ear | None = None
            try:
                ear = self._connect()
                if ear is None:
                    self._closed = True
                    continue
                self._attend(ear, wire)
                pauses = backoff(first=0.5, most=30.0)
            except self._failures as error:
                _log.debug("the listener failed, watchers poll until it reconnects: %s", error)
                self._silence()
                self._rest(next(pauses), wire)
            finally:
                self._silence()
                if ear is not None:
                    ear.close()

    def _wanted(self) -> socket.socket | None:
        """Return the socket to wait on, or None if there are no watchers: then the thread ends."""
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
            drain(wire)

    def _attend(self, ear: Ear, wire: socket.socket) -> None:
        """Listen until there have been no watchers for a while."""
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
            drain(wire)
            for name in ear.heard():
                for bell in list(self._bells.get(name, ())):
                    bell.ring()

    def _mark(self, ear: Ear, marked: set[bytes]) -> bool:
        """Mark watched streams and unmark others; return whether all are marked."""
        with self._guard:
            wanted = {name: list(bells) for name, bells in list(self._bells.items())[:MOST]}
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
                    bell.ring()  # look for what was added before the mark
        return done


def drain(wire: socket.socket) -> None:
    """Take the bytes that woke the thread."""
    with contextlib.suppress(OSError):
        wire.recv(4096, socket.MSG_DONTWAIT)
