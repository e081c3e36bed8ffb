"""Run the application with uvicorn: in this process, or in several that share one port.

A stop (SIGTERM, Control-C) ends long polls and event streams, lets requests that have begun end, and closes the
store after them. Nothing that was acknowledged depends on it: a commit is durable before its reply.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from tenuto.backends import connect
from tenuto.errors import MissingDriver
from tenuto.servers.http import logs
from tenuto.servers.http.app import App
from tenuto.servers.http.settings import Settings

try:
    import uvicorn
except ImportError as error:
    raise MissingDriver('The server needs uvicorn. Install it with: pip install "tenuto[server]"') from error

_KEEP_ALIVE: Final = 75
"""Seconds that an idle connection stays open: longer than what usual proxies keep theirs."""
_GRACE: Final = 30
_LOOK: Final = 0.2


class Server(uvicorn.Server):
    """A uvicorn server that tells its application to stop before it waits for the last requests."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], Any]) -> None:
        super().__init__(config)
        self._stop = stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: called by the signal handler, in the thread of the event loop."""
        self._stop()
        super().handle_exit(sig, frame)


def configured(app: Any, **options: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        lifespan="auto",
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
    while not stopped.wait(_LOOK):
        running = [one for one in running if one.is_alive()]
        while len(running) < workers:  # at the start, and again for each process that died
            process = fresh.Process(target=_serve, args=(url, settings, options, listener))
            process.start()
            running.append(process)
    for one in running:
        one.terminate()
    for one in running:
        one.join(_GRACE + 5)


def _serve(url: str | None, settings: Settings, options: dict[str, Any], listener: socket.socket) -> None:
    logs.configure(access=settings.access_log)
    app = App(connect(url), settings)
    Server(configured(app, **options), app.stop).run(sockets=[listener])
