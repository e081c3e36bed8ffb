"""A TCP proxy between a client and its server that loses replies, delays requests past their retry, and resets.

A test gives `fate`: what becomes of a request, decided when its bytes arrive. A client here sends one request and waits
for the reply, so what arrives at once is one request.
"""

import collections
import contextlib
import enum
import socket
import struct
import threading
import time


class Fate(enum.Enum):
    PASS = "passed on"
    CUT_REPLY = "executed, and the connection cut instead of the reply"
    HALF_REPLY = "executed, and the connection cut in the middle of the reply"
    LATE = "the connection cut, and the request delivered later"
    STALL = "held back until the client has given up, then delivered"
    RESET = "the connection reset, and the request never delivered"


def always(fate, *, when=b""):
    """Return a `fate` that falls on each request which contains `when`."""
    return lambda request: fate if when in request else Fate.PASS


class Proxy:
    """Listens at `port`; `target` is where the server listens, an address or the path of a Unix socket."""

    def __init__(self, target, *, delay=0.05):
        self._target = target
        self.delay = delay
        """How many seconds late a request is delivered: a number, or what returns one."""
        self.fate = lambda request: Fate.PASS
        self.refusing = False
        """While it is set, new connections are reset."""
        self.happened = collections.Counter()
        self._pending = 0
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def settled(self):
        """Tell whether nothing is on its way any more."""
        return self._pending == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing:
                    _reset(client)
                else:
                    threading.Thread(target=_Connection(self, client).run, daemon=True).start()

    def _connect(self):
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._target)
        return server

    def _count(self, fate, pending=0):
        with self._guard:
            self.happened[fate] += pending >= 0
            self._pending += pending


class _Connection:
    """One client's connection: a thread for the requests, and one for the replies."""

    def __init__(self, proxy, client):
        self._proxy, self._client = proxy, client
        self._fate = Fate.PASS
        self._replied = threading.Event()

    def run(self):
        try:
            self._server = self._proxy._connect()
        except OSError:
            _reset(self._client)
            return
        threading.Thread(target=self._replies, daemon=True).start()
        with contextlib.suppress(OSError):
            while request := self._client.recv(1 << 20):
                self._fate = self._proxy.fate(request)
                if self._fate in (Fate.LATE, Fate.STALL):
                    self._deliver_late(request)
                    break
                self._proxy._count(self._fate)
                if self._fate is Fate.RESET:
                    _reset(self._client)
                    break
                self._server.sendall(request)
        _close(self._server)

    def _deliver_late(self, request):
        self._proxy._count(self._fate, 1)
        try:
            if self._fate is Fate.LATE:
                _close(self._client)
            else:
                while self._client.recv(1 << 20):  # until the client has given up
                    pass
            delay = self._proxy.delay
            time.sleep(delay() if callable(delay) else delay)
            self._server.sendall(request)
            self._replied.wait(5)
        finally:
            self._proxy._count(self._fate, -1)

    def _replies(self):
        with contextlib.suppress(OSError):
            while reply := self._server.recv(1 << 20):
                if self._fate is Fate.PASS:
                    self._client.sendall(reply)
                    continue
                self._replied.set()
                if self._fate is Fate.HALF_REPLY:
                    self._client.sendall(reply[: len(reply) // 2])
                if self._fate in (Fate.CUT_REPLY, Fate.HALF_REPLY):
                    break
        self._replied.set()
        _close(self._client)


def _reset(connection):
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def _close(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
