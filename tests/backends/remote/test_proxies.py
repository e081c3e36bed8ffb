"""A client in a company's network: forward proxies with a password, TLS with an own authority, both at once."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.forward_proxy import ForwardProxy
from support.http_server import HttpServer
from support.tls import Certificates, TlsProxy

from tenuto import AsyncTenuto, InvalidInput, StorageUnavailable, Tenuto
from tenuto.backends.remote import RemoteBackend

Remote = Callable[..., RemoteBackend]


@pytest.fixture
def base(remote: Remote) -> str:
    """The path of the store on the shared server."""
    return urlsplit(remote.address).path  # type: ignore[attr-defined]


def works(url: str, key: str) -> None:
    with Tenuto("away", url, api_key=key) as agent:
        before = agent.state.get("s", "n", 0)
        assert agent.state.update("s", "n", lambda n: (n or 0) + 1) == before + 1
        watching = agent.state.watch("s", after=0)
        assert next(watching).value is not None

    async def awaited() -> None:
        async with AsyncTenuto("away", url, api_key=key) as agent:
            assert await agent.state.get("s", "n") == before + 1

    asyncio.run(awaited())


def test_http_goes_through_a_proxy_with_a_password(
    remote: Remote, http: HttpServer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = f"http://tenuto.test{base}?insecure=true&timeout=10", remote.token  # type: ignore[attr-defined]
    monkeypatch.setenv("NO_PROXY", "")
    with ForwardProxy(http.port, user="ann:p@ss:word") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://ann:p%40ss%3Aword@127.0.0.1:{proxy.port}")
        works(url, key)
        assert all(f" http://tenuto.test:80{base}/kernel" in line for line in proxy.asked)
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
        with pytest.raises(StorageUnavailable, match="wants a user and a password") as refused:
            Tenuto("away", url, api_key=key).state.set("s", "k", 1)
        assert refused.value.outcome == "not applied"


def test_https_goes_through_a_tunnel_and_verifies_the_server_at_its_end(
    remote: Remote, http: HttpServer, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = Certificates(tmp_path), remote.token  # type: ignore[attr-defined]
    monkeypatch.setenv("NO_PROXY", "")
    with TlsProxy(made, http.port) as tls, ForwardProxy(tls.port, user="ann:secret") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:secret@127.0.0.1:{proxy.port}")
        works(f"https://tenuto.test{base}?ca={made.authority}&timeout=10", key)
        assert set(proxy.asked) == {"CONNECT tenuto.test:443 HTTP/1.1"}
        for authority in ("", f"&ca={made.stranger}"):
            with pytest.raises(StorageUnavailable, match="TLS failed"):
                Tenuto("away", f"https://tenuto.test{base}?timeout=10{authority}", api_key=key).open()
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:wrong@127.0.0.1:{proxy.port}")
        with pytest.raises(StorageUnavailable, match="the proxy answered 407"):
            Tenuto("away", f"https://tenuto.test{base}?ca={made.authority}", api_key=key).open()
    monkeypatch.setenv("NO_PROXY", "tenuto.test")
    assert RemoteBackend("https://tenuto.test", api_key=key).target.proxy is None
    assert RemoteBackend("https://127.0.0.1", api_key=key).target.proxy is None


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://127.0.0.1:3128", "http://", "http://[::1"])
def test_a_proxy_of_another_kind_is_refused_with_its_variable(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(InvalidInput, match=r"\$HTTPS_PROXY must be http://host:port"):
        Tenuto("away", "https://tenuto.test", api_key="tk_x").open()


def test_an_address_that_swallows_everything_ends_at_the_deadline() -> None:
    from support.tls import BlackHole

    for accepting in (True, False):
        with BlackHole(accepting=accepting) as hole:
            began = time.monotonic()
            with pytest.raises(StorageUnavailable, match="timeout") as lost:
                Tenuto("away", f"http://127.0.0.1:{hole.port}?timeout=0.5", api_key="tk_x").state.set("s", "k", 1)
            assert lost.value.outcome == "not applied", "the hello came first"
            assert time.monotonic() - began < 10
