"""Real receivers of notifications: an HTTP server and an SMTP server on this machine."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What an HTTP server has received."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.tried = 0
        """How many requests came, those that were refused included."""
        self.status = 204
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Run an HTTP server that keeps what it is sent."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.tried += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            if receiver.status < 300:
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.status)
            if 300 <= receiver.status < 400:
                self.send_header("location", receiver.url)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def smtp_receiver() -> Iterator[tuple[int, list[Any]]]:
    """Run an SMTP server; yield its port and the messages that it received."""
    from aiosmtpd.controller import Controller

    letters: list[Any] = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            letters.append(envelope)
            return "250 OK"

    with socket.socket() as free:  # the controller wants a number
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = Controller(Handler(), hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port, letters
    finally:
        controller.stop()
