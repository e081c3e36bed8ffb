"""A forward proxy as companies have them: absolute addresses for HTTP, CONNECT for HTTPS, with or without a password.

It knows one name, `tenuto.test`, and takes every request for it to a port of this machine.
"""

import base64
import contextlib
import socket
import threading
from typing import Self


class ForwardProxy:
    """`asked` has the first line of each request that it let through; `refused` counts the others."""

    def __init__(self, target: int, *, user: str | None = None) -> None:
        self._target = target
        self._user = None if user is None else base64.b64encode(user.encode()).decode()
        self.asked: list[str] = []
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            opened.enter_context(client)
            pending = b""
            server: socket.socket | None = None
            while True:
                while b"\r\n\r\n" not in pending:
                    more = client.recv(65_536)
                    if not more:
                        return
                    pending += more
                head, _, pending = pending.partition(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines[1:])}
                if self._user is not None and headers.get("proxy-authorization") != f"Basic {self._user}":
                    self.refused += 1
                    client.sendall(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return
                self.asked.append(lines[0])
                method, address, _ = lines[0].split(" ")
                if server is None:
                    server = opened.enter_context(socket.create_connection(("127.0.0.1", self._target)))
                if method == "CONNECT":
                    assert address == "tenuto.test:443"
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    server.sendall(pending)
                else:
                    assert address.startswith("http://tenuto.test:80/")
                    kept = [line for line in lines[1:] if not line.lower().startswith("proxy-")]
                    size = int(headers.get("content-length", 0))
                    while len(pending) < size:
                        pending += client.recv(65_536)
                    path = address.removeprefix("http://tenuto.test:80")
                    server.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "", ""]).encode() + pending[:size])
                    pending = pending[size:]
                threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
                if method == "CONNECT":
                    self._pump(client, server)
                    return

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
