"""The memory of a server: bodies of strangers, many at once, bodies that grow when they are decoded, replies nobody reads."""

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto import StorageUnavailable
from tenuto.backends.remote import bounded, wire
from tenuto.errors import InvalidInput, TooLarge
from tenuto.servers.http.room import Room
from tenuto.servers.http.routes import ROUTES, from_body


def head(served: Any, path: str, *lines: str, key: str) -> bytes:
    where = urlsplit(served.address)
    given = (f"POST {where.path}{path} HTTP/1.1", f"Host: {where.netloc}", f"Authorization: Bearer {key}", *lines)
    return "\r\n".join([*given, "", ""]).encode()


@pytest.mark.parametrize("form", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", [wire.path_of("commit"), wire.path_of("watch"), "/v1/state/set"])
def test_a_large_body_of_a_stranger_is_refused_unread(served: Any, path: str, form: str) -> None:
    where = urlsplit(served.address)
    with socket.create_connection((where.hostname, where.port), timeout=20) as raw:
        raw.sendall(head(served, path, "Content-Type: application/json", form, key="tk_wrong"))
        reply = raw.recv(10_000)  # nothing of the body was sent
        assert b" 401 " in reply.split(b"\r\n")[0]
        assert b"\r\nconnection: close\r\n" in reply.lower()


async def test_bodies_wait_until_there_is_room() -> None:
    room = Room(100)
    await room.take(60, 1)
    waits = asyncio.ensure_future(room.take(50, 10))
    small = asyncio.ensure_future(room.take(40, 10))
    await small
    assert not waits.done()
    with pytest.raises(StorageUnavailable, match="too many large requests") as refused:
        await room.take(1, 0.01)
    assert refused.value.outcome == "not applied"
    room.free(60)
    await waits
    room.free(90)
    await room.take(100, 1)


@pytest.mark.parametrize("large", [b"X: " + b"a" * 3_000_000, b"X: 1\r\n" * 400_000, b"X" * 3_000_000])
def test_a_head_without_an_end_is_refused(served: Any, large: bytes) -> None:
    """The parser collects any number of headers, and nobody has shown a key yet."""
    where = urlsplit(served.address)
    with socket.create_connection((where.hostname, where.port), timeout=20) as raw:
        with contextlib.suppress(ConnectionError):
            raw.sendall(f"GET {where.path}/health HTTP/1.1\r\nHost: x\r\n".encode())
            for at in range(0, len(large), 200_000):
                raw.sendall(large[at : at + 200_000])
        reply = b""
        with contextlib.suppress(ConnectionError):
            reply = raw.recv(10_000)
        assert b" 431 " in reply.split(b"\r\n")[0]


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Type"])
def test_a_header_that_decides_who_calls_comes_once(served: Any, name: str) -> None:
    given = head(served, "/v1/state/set", "Content-Type: application/json", f"{name}: x", "Content-Length: 0", key="k")
    where = urlsplit(served.address)
    with socket.create_connection((where.hostname, where.port), timeout=20) as raw:
        raw.sendall(given)
        assert b" 400 " in raw.recv(10_000).split(b"\r\n")[0]


@pytest.mark.parametrize("form", ["whole", "in chunks"])
def test_a_client_that_sends_all_of_a_large_body_reads_why_it_was_refused(served: Any, form: str) -> None:
    """Closing at once would reset the connection, and with it the reply."""
    where = urlsplit(served.address)
    body = b"x" * 30_000_000
    client = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
    for path in ("/v1/state/set", wire.path_of("commit"), "/answer/x"):
        given: Any = body if form == "whole" else (body[at : at + 100_000] for at in range(0, len(body), 100_000))
        with contextlib.suppress(ConnectionError):  # it has answered, and reads no more
            client.request("POST", where.path + path, given, headers, encode_chunked=form != "whole")
        reply = client.getresponse()
        assert (reply.status, b"A body takes up to" in reply.read()) == (413, True)
        client.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


def test_what_a_request_held_is_free_when_it_ends(served: Any) -> None:
    """More requests than there is room for, one after the other and at once; each is answered."""
    statuses: list[int] = []
    value = "x" * 1_500_000  # of 2 MB that a body may have; eight of these fit at once

    def send(at: int) -> None:
        for kind in ({"scope": "s", "key": f"k{at}", "value": value}, {"scope": "s"}, b"{"):
            reply = served.post("/v1/state/set", kind, Content_Type="application/json")
            statuses.append(reply.status)

    threads = [threading.Thread(target=send, args=(at,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 12 + [400] * 24


BOMBS = {
    "maps": b"\xdd" + (1_900_000).to_bytes(4, "big") + b"\x80" * 1_900_000,
    "lists": b"\xdd" + (1_900_000).to_bytes(4, "big") + b"\x90" * 1_900_000,
    "pairs": b"\xdf" + (900_000).to_bytes(4, "big") + b"\x01" * 1_800_000,
    "deep": b"\x91" * 1_900_000,
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_body_that_grows_when_it_is_decoded_is_refused(served: Any, kind: str) -> None:
    for verb in ("commit", "read", "load", "watch"):
        reply = served.post(wire.path_of(verb), BOMBS[kind])
        assert reply.status == 413, reply
        assert "values" in wire.unpacked(reply.body)["message"]


@pytest.mark.parametrize("part", [b"[]", b"{}"])
def test_a_json_body_of_a_million_objects_is_refused(part: bytes) -> None:
    text = b'{"scope": "s", "key": "k", "value": [' + b",".join([part] * 1_000_000) + b"]}"
    with pytest.raises(TooLarge, match="objects and lists"):
        from_body(ROUTES["/v1/state/set"], "application/json", text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=300)
    | st.text(max_size=300) | st.builds(ormsgpack.Ext, st.integers(0, 100), st.binary(max_size=300)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_every_body_of_an_encoder_is_counted_to_its_end(value: Any) -> None:
    body = ormsgpack.packb(value)
    small, bounded._SMALL = bounded._SMALL, -1
    try:
        bounded.must_be_bounded(body)
        with pytest.raises(InvalidInput):
            bounded.must_be_bounded(body[:-1])
    finally:
        bounded._SMALL = small


def test_a_client_that_does_not_read_its_reply_is_dropped() -> None:
    from tenuto.servers.http.serve import Protocol, Server, configured

    class Impatient(Protocol):
        read_timeout = 0.2

    async def large(scope: Any, _receive: Any, send: Any) -> None:
        body = b"x" * 30_000_000
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    listener = socket.create_server(("127.0.0.1", 0))
    config = configured(large, lifespan="off")
    config.http = Impatient
    server = Server(config, lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with socket.create_connection(listener.getsockname(), timeout=30) as reads:
            reads.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            found = 0
            while found < 30_000_000:  # slowly, but it reads
                found += len(reads.recv(1 << 20))
        with socket.create_connection(listener.getsockname(), timeout=30) as idle:
            idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            deadline = time.monotonic() + 20
            while len(server.server_state.connections) > 1 or server.server_state.total_requests != 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            while server.server_state.connections:
                assert time.monotonic() < deadline, "the connection is held for ever"
                time.sleep(0.02)
    finally:
        server.should_exit = True
        thread.join()
