"""What a capability promises, it promises on every backend: here `backend` is each of them, on real servers."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from support.http_server import SharedClock
from support.sealed import encryption_of
from support.stores import kinds, new_url, usual

from tenuto import AccessDenied, Tenuto
from tenuto.backends import connect
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend
from tenuto.wrappers.encrypt import encrypted

EVERY = ("volatile", "sqlite", "postgres", "valkey", "cluster", "http")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of races on every backend, any other on the usual ones, unless it names its own."""
    named = any(mark.args[0] == "backend" for mark in metafunc.definition.iter_markers("parametrize"))
    if "backend" in metafunc.fixturenames and not named:
        races = metafunc.definition.get_closest_marker("races") is not None
        metafunc.parametrize("backend", kinds(*EVERY) if races else usual(*EVERY), indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test at the line where it turns to another tenant, through a server."""
    try:
        return (yield)
    except AccessDenied as error:
        if "[http" in item.nodeid and "belongs to the tenant" in str(error):
            pytest.skip("an API key has one tenant, by definition")
        raise


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: SharedClock) -> Iterator[Backend]:
    """A store of each kind, empty, whose time is the test's."""
    if request.param == "http":
        server = request.getfixturevalue("http")
        clock.share(tmp_path / "clock")
        name, token = server.store(tmp_path / "store.db", clock=tmp_path / "clock")
        store = connect(server.address(name), api_key=token, clock=clock)
    else:
        store = connect(new_url(request.param, request, tmp_path / "store.db"), clock=clock)
    if sealed := os.environ.get("TENUTO_TEST_ENCRYPTED"):
        store = encrypted(store, encryption_of(sealed))
    yield store
    store.close()


@pytest.fixture
def check_references() -> Callable[[Tenuto], None]:
    """Prove that the heads of blobs count exactly what refers to them."""
    return _check_references


def _check_references(agent: Tenuto) -> None:
    """Each blob's head counts exactly the checkpoints whose payload refers to it, and each that is referred to is there."""
    counted: dict[bytes, int] = {}
    for line in agent.checkpoint._lines(None, None):
        for placed in line.all():
            for digest in placed.item.references:
                counted[digest] = counted.get(digest, 0) + 1
    found = {}
    for record in agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000):
        _, _, references, whole = codec.decode(record.value)
        if references:
            assert whole
            found[keys.unpack(record.key)[-1]] = references
    assert found == counted


@pytest.fixture
def check_nothing_left() -> Callable[[Tenuto], None]:
    """Prove that nothing refers to a blob any more."""
    return _check_nothing_left


def _check_nothing_left(agent: Tenuto) -> None:
    for record in agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000):
        assert codec.decode(record.value)[2] == 0
