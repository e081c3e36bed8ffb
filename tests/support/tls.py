"""TLS in front of servers whose wheels were built without it: certificates of a test's own, and a proxy that ends TLS.

What is tested is the client's side: that it asks for TLS, verifies the certificate and the name, and refuses others.
"""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Self

import pytest

_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


class Certificates:
    """An authority, a certificate by it for 127.0.0.1, and another authority that signed nothing."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl here to make certificates with")
        self.authority, self.key, self.certificate = (folder / name for name in ("ca.pem", "key.pem", "cert.pem"))
        self.stranger = folder / "stranger.pem"
        for name in ("ca", "stranger"):
            self._run(
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN=tenuto test {name}",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                "-keyout", folder / f"{name}-key.pem", "-out", folder / f"{name}.pem",
            )  # fmt: skip
        self._run(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
            "-keyout", self.key, "-out", folder / "request.pem",
        )  # fmt: skip
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:tenuto.test\nauthorityKeyIdentifier=keyid\n")
        self._run(
            "x509", "-req", "-in", folder / "request.pem", "-CA", self.authority, "-CAkey", folder / "ca-key.pem",
            "-CAcreateserial", "-days", "2", "-extfile", folder / "names", "-out", self.certificate,
        )  # fmt: skip

    def _run(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class TlsProxy:
    """Ends TLS and passes the bytes on; `asked_first` for Postgres, whose client asks for TLS before it begins."""

    def __init__(self, certificates: Certificates, target: int | str, *, asked_first: bool = False) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._target = target
        self._asked_first = asked_first
        self.secured = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if self._asked_first:
                if client.recv(8) != _SSL_REQUEST:
                    return  # a client that does not ask for TLS gets no further
                client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as secured, self._connect() as server:
                self.secured += 1
                threading.Thread(target=self._pump, args=(server, secured), daemon=True).start()
                self._pump(secured, server)

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._target)
        return server

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


class BlackHole:
    """A port that nothing comes back from: `accepting` takes the connection and stays silent, else not even that."""

    def __init__(self, *, accepting: bool) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(100 if accepting else 0)
        self.port = self._listener.getsockname()[1]
        self._fillers: list[socket.socket] = []
        if not accepting:  # with its queue full, the kernel answers no further attempt
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", self.port))
                self._fillers.append(filler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._fillers, self._listener):
            one.close()
