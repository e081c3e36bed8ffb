"""`TenutoByteStore` under LangChain's own suites, sync and async, and what they do not ask."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.stores import BaseStore
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from tenuto import AsyncTenuto, InvalidInput, Tenuto
from tenuto.adapters.langchain import TenutoByteStore
from tenuto.testing import HeldClock


class TestBytes(BaseStoreSyncTests[bytes]):
    """LangChain's suite, as it is."""

    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:
        return b"foo", b"\x00bar", b""

    @pytest.fixture
    def kv_store(self, tmp_path: Path) -> Iterator[BaseStore[str, bytes]]:
        with Tenuto("tester", tmp_path / "store.db") as agent:
            yield TenutoByteStore(agent)


@pytest.mark.anyio
class TestAsyncBytes(BaseStoreAsyncTests[bytes]):
    """LangChain's async suite, as it is."""

    @pytest.fixture(params=["asyncio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:  # type: ignore[override]
        return b"foo", b"\x00bar", b""

    @pytest.fixture
    async def kv_store(self, tmp_path: Path) -> AsyncIterator[BaseStore[str, bytes]]:
        async with AsyncTenuto("tester", tmp_path / "store.db") as agent:
            yield TenutoByteStore(agent)


def test_nothing_of_the_suites_is_left_out() -> None:
    count = lambda cls: sum(
        name.startswith("test_") and name != "test_no_overrides_DO_NOT_OVERRIDE" for name in dir(cls)
    )
    assert (count(TestBytes), count(TestAsyncBytes)) == (11, 11)


def test_namespaces_and_tenants_are_apart(agent: Tenuto) -> None:
    stores = [TenutoByteStore(agent, "a"), TenutoByteStore(agent, "b"), TenutoByteStore(agent.for_tenant("other"), "a")]
    for at, store in enumerate(stores):
        store.mset([("key", bytes([at]))])
    assert [store.mget(["key"]) for store in stores] == [[b"\x00"], [b"\x01"], [b"\x02"]]
    assert agent.state.keys("a") == [], "the state of a scope of that name is something else"


def test_keys_are_found_by_their_beginning_page_by_page(agent: Tenuto) -> None:
    store = TenutoByteStore(agent)
    store.mset([(f"doc/{n:04d}", b"x") for n in range(2_300)] + [("dog", b"x"), ("é", b"x"), ("döc", b"x")])
    assert list(store.yield_keys(prefix="doc/")) == [f"doc/{n:04d}" for n in range(2_300)]
    assert list(store.yield_keys(prefix="dö")) == ["döc"]
    assert len(list(store.yield_keys())) == 2_303
    store.mdelete([f"doc/{n:04d}" for n in range(2_300)] + ["none"])
    assert list(store.yield_keys()) == sorted(["dog", "döc", "é"])


def test_a_value_expires(agent: Tenuto, clock: HeldClock) -> None:
    store = TenutoByteStore(agent, ttl="1h")
    store.mset([("key", b"1")])
    clock.advance(3_601)
    assert store.mget(["key"]) == [None]
    assert list(store.yield_keys()) == []


def test_what_is_no_byte_string_is_refused(agent: Tenuto) -> None:
    store = TenutoByteStore(agent)
    not_bytes: Any = "text"
    with pytest.raises(TypeError, match="holds bytes"):
        store.mset([("fine", b"1"), ("key", not_bytes)])
    assert store.mget(["fine"]) == [None]
    with pytest.raises(InvalidInput):
        store.mset([("", b"1")])
    assert store.mget([]) == []
