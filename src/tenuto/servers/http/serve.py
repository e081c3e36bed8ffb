"""Run the application with uvicorn: in this process, or in several that share one port.

A stop (SIGTERM, Control-C) ends long polls and event streams, lets requests that have begun end, and closes the
store after them. Nothing that was acknowledged depends on it: a commit is durable before its reply.

uvicorn waits for the head of a request without a limit, and for a client that does not read its reply. `Protocol` gives both a
deadline, so that idle or slow clients cannot collect connections and memory. uvicorn also sends the head and the body of a reply with a system call each; `OneWrite` joins them.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from tenuto.backends import connect
from tenuto.errors import MissingDriver
from tenuto.kernel.transact import backoff
from tenuto.servers.http import logs
from tenuto.servers.http.app import App
from tenuto.servers.http.settings import Settings
from tenuto.wrappers.encrypt import encrypted

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise MissingDriver(
        'The server needs uvicorn and httptools. Install it with: pip install "tenuto[server]"'
    ) from error

_KEEP_ALIVE: Final = 75
"""Seconds that an idle connection stays open: longer than what usual proxies keep theirs."""
_HEAD: Final = 20.0
"""Seconds within which the head of a request must arrive, from the connection or from its first byte."""
_LONGEST_HEAD: Final = 65_536
"""Bytes of the request line and the headers; the parser would collect any number."""
_READ: Final = 30.0
"""Seconds within which a client must read something of a reply that fills the buffer of its connection."""
_GRACE: Final = 30
_REFUSAL: Final = (
    b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
)
_LINGER: Final = 2.0
"""Seconds for which a client that is still sending may read the reply that refuses its body."""
_LOOK: Final = 0.2
_RESPAWN: Final = 5.0
"""Seconds between two starts of processes that end again and again."""
_log = logging.getLogger("tenuto.server")


class Server(uvicorn.Server):
    """A uvicorn server that tells its application to stop before it waits for the last requests."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], Any]) -> None:
        super().__init__(config)
        self._stop = stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: called by the signal handler, in the thread of the event loop."""
        self._stop()
        super().handle_exit(sig, frame)


class OneWrite:
    """A transport that sends what is written in one turn of the event loop at once: the head of a reply with its body.

    If the client is still sending a body that was refused, closing would reset the connection, and the client would
    lose the reply. Then the connection stays open for two seconds, and what arrives is dropped.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._parts: list[bytes] = []
        self.lingers = False

    def __getattr__(self, name: str) -> Any:
        """Return what the transport has."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes together with what follows in this turn, in order."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Send what was written."""
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, and close the connection."""
        self.flush()
        if self.lingers or not self._is_sending():
            self._transport.close()
            return
        self.lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER, self._transport.close)


class Protocol(HttpToolsProtocol):
    """Close a connection whose request line and headers do not arrive, or whose reply is not read, in time.

    Each reply is sent with one write.
    """

    head_timeout = _HEAD
    read_timeout = _READ
    _unread: asyncio.TimerHandle | None = None
    _deadline: asyncio.TimerHandle | None = None
    _in_head = True
    _begins = False
    """Whether a head begins in the data that is being read: what is before it belongs to a body."""
    _head_size = 0
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._joined = OneWrite(transport, self.loop, self._is_sending)
        self.transport = self._joined  # type: ignore[assignment]
        self._limit()

    def data_received(self, data: bytes) -> None:
        """Read what arrived; limit the time for the rest of a head."""
        if self._joined.lingers:
            return
        self._begins = False
        super().data_received(data)
        if self._in_head and not self._begins:
            self._head_size += len(data)
            if self._head_size > _LONGEST_HEAD:
                self._end(
                    b"431 Request Header Fields Too Large",
                    f"The head of a request has up to {_LONGEST_HEAD:,} bytes. Nothing was done; send less.",
                )
                return
        if self._in_head and self._deadline is None and not self.transport.is_closing():
            self._limit()

    def on_message_begin(self) -> None:
        """Begin to read a head."""
        self._in_head = self._begins = True
        self._head_size = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the clock: the time for the body is limited by the application."""
        self._in_head = False
        self._unlimit()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Send the reply, then look for the next request of the connection."""
        self._joined.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks."""
        self._unlimit()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read: called when the buffer of the connection is full."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """Stop the clock: called when the client has read enough of it."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def _look_again(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.read_timeout, self._drop_if_unread, size)

    def _drop_if_unread(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._look_again()

    def _is_sending(self) -> bool:
        if self._is_refused:
            return True
        return self.cycle is not None and self.cycle.more_body and not self.cycle.disconnected

    def _limit(self) -> None:
        self._deadline = self.loop.call_later(self.head_timeout, self._give_up)

    def _unlimit(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        text = (
            f"The head of the request did not arrive within {self.head_timeout:g} s. Nothing was done; send it faster."
        )
        self._end(b"408 Request Timeout", text)

    def _end(self, status: bytes, text: str) -> None:
        """Refuse a request without a head, and close the connection."""
        self._is_refused = True
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL % (status, len(text), text.encode()))
            self.transport.close()


def configured(app: Any, **options: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application."""
    return uvicorn.Config(
        app,
        http=Protocol,
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        ws="none",
        **options,
    )


def run(url: str | None, settings: Settings, listener: socket.socket, *, workers: int = 1, **options: Any) -> None:
    """Serve a store on a listening socket until the process gets SIGTERM or Control-C."""
    if workers == 1:
        _serve(url, settings, options, listener)
        return
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    fresh = multiprocessing.get_context("spawn")
    running: list[multiprocessing.process.BaseProcess] = []
    pauses = backoff(first=_LOOK, most=_RESPAWN)
    until, began = 0.0, 0
    while not stopped.wait(_LOOK):
        running = [one for one in running if one.is_alive()]
        if len(running) == workers or time.monotonic() < until:
            continue
        if began >= workers:  # some have died: begin others, at most one each few seconds if that repeats
            until = time.monotonic() + next(pauses)
            _log.warning("%d of %d server processes have ended; starting others", workers - len(running), workers)
        for _ in range(workers - len(running)):
            process = fresh.Process(target=_work, args=(url, settings, options, listener))
            process.start()
            running.append(process)
            began += 1
    for one in running:
        one.terminate()
    for one in running:
        one.join(_GRACE + 5)


def _work(url: str | None, settings: Settings, options: dict[str, Any], listener: socket.socket) -> None:
    """Serve as one of several processes; end with the process that started it, also if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _serve(url, settings, options, listener)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(url: str | None, settings: Settings, options: dict[str, Any], listener: socket.socket) -> None:
    logs.configure(access=settings.access_log)
    app = App(encrypted(connect(url)), settings)
    Server(configured(app, **options), app.stop).run(sockets=[listener])
