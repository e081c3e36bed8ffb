"""What a client of a server gets when something is wrong: key, address, version, network, process."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from support.http_server import HttpServer
from support.long import size
from support.proxy import Fate, Proxy, always

from tenuto import AccessDenied, InvalidInput, NewerFormat, StorageUnavailable, Tenuto
from tenuto.backends.remote import RemoteBackend, wire
from tenuto.kernel import keys
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import Append, Put
from tenuto.kernel.transact import commit_once, new_request
from tenuto.kernel.work import perform

A, LOG = keys.pack("default", "s", "a"), keys.pack("default", "s", "log")
Remote = Callable[..., RemoteBackend]


@pytest.fixture
def proxy(http: HttpServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", http.port)) as found:
        yield found


class Answers:
    """A server that gives one fixed answer to every request."""

    def __init__(self, body: bytes, status: str = "200 OK", media: str = wire.MEDIA) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._reply = head.encode() + body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.recv(1 << 16)
                client.sendall(self._reply)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def hello(*protocols: int) -> bytes:
    return wire.packed(
        {
            "protocols": list(protocols),
            "version": "9.9",
            "tenant": "t",
            "key": "k",
            "scopes": ["read"],
            "now": time.time(),
        }
    )


def test_each_trouble_at_the_door_is_an_error_of_its_own(remote: Remote) -> None:
    with pytest.raises(AccessDenied, match="no valid API key"):
        remote(api_key="tk_wrong").read([A])
    with pytest.raises(StorageUnavailable, match="connection refused") as error:
        RemoteBackend("http://127.0.0.1:1", api_key="x").commit([], [Put(A, b"v")])
    assert error.value.outcome == "not applied"
    with pytest.raises(StorageUnavailable, match="unknown host"):
        RemoteBackend("https://nowhere.invalid", api_key="x").read([A])
    with Answers(hello(2, 3)) as newer, pytest.raises(NewerFormat, match="upgrade tenuto here"):
        RemoteBackend(newer.url, api_key="x").read([A])
    with Answers(hello()) as older, pytest.raises(StorageUnavailable, match="upgrade the server"):
        RemoteBackend(older.url, api_key="x").read([A])
    with (
        Answers(b"<html>", "404 Not Found", "text/html") as other,
        pytest.raises(StorageUnavailable, match="not a tenuto server"),
    ):
        RemoteBackend(other.url, api_key="x").read([A])
    with Answers(b"hello", media="text/plain") as odd, pytest.raises(StorageUnavailable):
        RemoteBackend(odd.url, api_key="x").read([A])


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "https://", "https://user:pw@host", "https://host?nonsense=1", "https://host:99999", "https://host?timeout=0",
     "https://ho st", "https://host?ca=/nowhere.pem", "http://[::1"],
)  # fmt: skip
def test_a_url_that_is_not_valid_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as error:
        RemoteBackend(url)
    assert "pw" not in str(error.value)


def test_a_key_belongs_to_a_server() -> None:
    for store in ("volatile:", "agent.db"):
        with pytest.raises(InvalidInput, match="api_key belongs to a server"):
            Tenuto("x", store, api_key="tk_x")
    with pytest.raises(InvalidInput, match="one word"):
        Tenuto("x", "https://host", api_key="tk_x\r\nX: y")


def test_the_environment_names_server_and_key(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_URL", remote.__dict__["address"])
    monkeypatch.setenv("TENUTO_API_KEY", remote.__dict__["token"])
    with Tenuto("x") as agent:
        agent.state.set("s", "k", 1)
        assert agent.state.get("s", "k") == 1


def test_connections_are_reused_and_a_dead_one_is_replaced(remote: Remote, proxy: Proxy) -> None:
    store = remote(port=proxy.port)
    for n in range(20):
        store.commit([], [Put(A, b"%d" % n)], request=new_request(store.now()))
    assert store.stats()["connections"] == 1
    for idle in store._calls.connections._idle:
        idle._socket.shutdown(socket.SHUT_RDWR)
    assert store.read([A])[0].value == b"19"


@pytest.mark.parametrize("fate", [Fate.CUT_REPLY, Fate.HALF_REPLY, Fate.RESET, Fate.LATE])
def test_a_lost_reply_is_resolved_by_the_request_id(remote: Remote, proxy: Proxy, fate: Fate) -> None:
    store = remote(port=proxy.port)
    store.open()
    once = iter([fate])
    proxy.fate = lambda request: next(once, Fate.PASS) if b"/commit" in request else Fate.PASS
    perform(commit_once(store, [], [Append(LOG, b"e")]), SystemClock())
    deadline = time.monotonic() + 10
    while not proxy.settled():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert proxy.happened[fate] == 1
    assert [entry.value for entry in store.entries(LOG)] == [b"e"]


def test_without_a_request_id_a_lost_reply_is_reported_and_not_repeated(remote: Remote, proxy: Proxy) -> None:
    store = remote(port=proxy.port)
    store.open()
    proxy.fate = always(Fate.CUT_REPLY, when=b"/commit")
    with pytest.raises(StorageUnavailable) as error:
        store.commit([], [Append(LOG, b"e")])
    assert error.value.outcome == "unknown"
    proxy.fate = always(Fate.PASS)
    assert len(store.entries(LOG)) == 1


def test_a_server_that_dies_with_the_reply_leaves_the_outcome_unknown(remote: Remote, proxy: Proxy) -> None:
    """Found by review: the second attempt was refused a connection, and the commit was reported as not applied."""
    store = remote(port=proxy.port)
    store.open()  # so the commit goes over a connection that was used before

    def die(request: bytes) -> Fate:
        if b"/commit" not in request:
            return Fate.PASS
        proxy._listener.shutdown(socket.SHUT_RDWR)
        return Fate.CUT_REPLY

    proxy.fate = die
    request = new_request(store.now())
    with pytest.raises(StorageUnavailable, match="connection refused") as error:
        store.commit([], [Append(LOG, b"e")], request=request)
    assert (error.value.outcome, error.value.request) == ("unknown", request)
    assert [entry.value for entry in remote().entries(LOG)] == [b"e"], "it was applied"
    assert remote().commit([], [Append(LOG, b"e")], request=request).repeated


class Stopping(Answers):
    """A server process that stops: it answers its first requests with 503, then passes on to another."""

    def __init__(self, times: int, instead: bytes) -> None:
        stopping = wire.error_body(StorageUnavailable("The server is stopping. Nothing was done; try again."))
        self._left, self._instead, self.asked = times, instead, 0
        super().__init__(stopping, "503 Service Unavailable\r\nRetry-After: 0")

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            with client:
                client.recv(1 << 16)
                client.sendall(self._reply if self.asked <= self._left else Answers(self._instead)._reply)


def test_a_client_asks_again_when_a_server_process_stops() -> None:
    with Stopping(3, hello(wire.PROTOCOL)) as server:
        RemoteBackend(server.url, api_key="x").open()
        assert server.asked == 4
    with Stopping(100, b"") as server:
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="is stopping") as error:
            RemoteBackend(server.url, api_key="x").open()
        assert error.value.outcome == "not applied"
        assert server.asked < 20
        assert time.monotonic() - began < 20


def test_a_call_ends_at_its_deadline(remote: Remote, proxy: Proxy) -> None:
    store = remote(port=proxy.port, timeout=0.5)
    store.open()
    proxy.fate = always(Fate.STALL, when=b"/commit")
    began = time.monotonic()
    with pytest.raises(StorageUnavailable, match="timeout") as error:
        store.commit([], [Append(LOG, b"e")], request=new_request(store.now()))
    assert error.value.outcome == "unknown"
    assert time.monotonic() - began < 5


def test_a_forked_child_has_connections_of_its_own(remote: Remote) -> None:
    store = remote()
    store.commit([], [Put(A, b"parent")])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.commit([], [Put(A, b"child")])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read([A])[0].value == b"child"
    store.commit([], [Put(A, b"after")])
    assert store._calls.connections.made == 1


@pytest.mark.slow
def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Any) -> None:
    """Kill -9 under load, restart, go on: each acknowledged entry is there, none is there twice."""
    server = HttpServer()
    try:
        name, token = server.store(tmp_path / "store.db")
        acknowledged: list[list[bytes]] = [[] for _ in range(4)]
        done = threading.Event()

        def write(at: int) -> None:
            store = RemoteBackend(server.address(name), api_key=token, timeout=5)
            n = 0
            while not done.is_set():
                value, request = b"%d-%d" % (at, n), None
                while not done.is_set():
                    try:
                        request = request or new_request(store.now())
                        store.commit([], [Append(LOG, value)], request=request)
                    except StorageUnavailable:
                        time.sleep(0.02)
                    else:
                        acknowledged[at].append(value)
                        break
                n += 1
            store.close()

        threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(size(3, 20)):
            before = sum(map(len, acknowledged))
            deadline = time.monotonic() + 30
            while sum(map(len, acknowledged)) < before + 50:
                assert time.monotonic() < deadline, "no progress"
                time.sleep(0.01)
            server.kill()
            server.process.stdout.close()
            server.log.close()
            server.start()
        done.set()
        for thread in threads:
            thread.join()
        store = RemoteBackend(server.address(name), api_key=token)
        found: list[bytes] = []
        while page := store.entries(LOG, after=len(found), limit=1_000):
            found += [entry.value for entry in page]
        store.close()
        assert len(found) == len(set(found)), "applied twice"
        assert set().union(*acknowledged) <= set(found), "acknowledged and lost"
    finally:
        server.stop()
