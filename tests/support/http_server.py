"""Real `uvicorn` processes that serve stores over HTTP, each store below a path of its own.

Run as a program it serves: `/s/NAME/...` is the store NAME, opened when it is first asked for. The file `NAME.json` says where it is kept.
With a clock in that file, the store takes its time from there: `SharedClock` writes it.
"""

import contextlib
import itertools
import json
import mmap
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tenuto.testing import HeldClock

_counter = itertools.count()


class SharedClock(HeldClock):
    """A held clock whose time another process can read, from the file of `share`."""

    _file = None

    def share(self, path):
        Path(path).write_bytes(struct.pack("d", self.time()))
        with Path(path).open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), 8)

    def advance(self, seconds):
        super().advance(seconds)
        if self._file is not None:
            self._file[:8] = struct.pack("d", self.time())


class FileClock:
    """The time that a `SharedClock` has written."""

    def __init__(self, path):
        with Path(path).open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), 8)

    def time(self):
        return struct.unpack("d", self._file[:8])[0]

    def sleep(self, seconds):
        time.sleep(seconds)


class HttpServer:
    """A server process; `url(...)` makes another store on it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tenuto-http-"))
        self.process = None
        self.port = 0
        self.start()

    def start(self):
        self.log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder), str(self.port)], stdout=subprocess.PIPE, stderr=self.log
        )
        self.port = int(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.process.stdout.close()
        self.log.close()

    def store(self, path, *, clock=None, **settings):
        """Say how a new store is kept; return its name and the token that opens it."""
        name, token = f"s{os.getpid()}-{next(_counter)}", f"token-{secrets.token_hex(8)}"
        said = {"url": str(path), "token": token, "clock": None if clock is None else str(clock), "settings": settings}
        (self.folder / f"{name}.json").write_text(json.dumps(said))
        return name, token

    def address(self, name, port=None):
        return f"http://127.0.0.1:{port or self.port}/s/{name}"

    def lines(self):
        return (self.folder / "log").read_text().splitlines()


def get(url, key=None):
    """Return the status and the body of a GET."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Stores:
    """The application of the server process: one `App` for each store."""

    def __init__(self, folder):
        self.folder, self.apps = Path(folder), {}

    def app(self, name):
        from tenuto.backends import connect
        from tenuto.servers.http import App, Settings

        if name not in self.apps:
            said = json.loads((self.folder / f"{name.partition('~')[0]}.json").read_text())
            said["url"] += name.partition("~")[2]  # NAME~1, NAME~2, …: further stores, opened by the same token
            clock = FileClock(said["clock"]) if said["clock"] else None
            self.apps[name] = App(connect(said["url"], clock=clock), Settings(token=said["token"], **said["settings"]))
        return self.apps[name]

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        _, _, name, rest = scope["path"].split("/", 3)
        await self.app(name)(
            {**scope, "path": "/" + rest, "raw_path": b"/" + scope["raw_path"].split(b"/", 3)[3]}, receive, send
        )


def main(folder, port):
    import socket

    from tenuto.servers.http import logs
    from tenuto.servers.http.serve import Server, configured

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(200)
    print(listener.getsockname()[1], flush=True)
    logs.configure(access=False)
    stores = Stores(folder)
    server = Server(configured(stores), lambda: [app.stop() for app in stores.apps.values()])
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
