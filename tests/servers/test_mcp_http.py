"""MCP over HTTP: a real server process, API keys, both protocol eras, several tenants, what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError

from tenuto import Tenuto
from tenuto.backends import connect
from tenuto.servers.auth import Keys
from tenuto.servers.http.settings import Settings
from tenuto.servers.mcp.http import McpApp
from tenuto.servers.mcp.tools import chosen

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp") / "store.db"


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "mcp", "--http", "--port", "0", "--url", str(store)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TENUTO_TOKEN": "tk_of_the_test"},
    )
    assert process.stderr is not None
    said = ""
    while "serving" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    assert f"store {store}, 12 tools" in said
    found = re.search(r"http://\S+/mcp", said)
    assert found
    yield found[0]
    process.send_signal(signal.SIGTERM)
    process.stderr.read()
    process.stderr.close()
    assert process.wait(20) in (0, -signal.SIGTERM)


@asynccontextmanager
async def client(url: str, key: str | None, mode: str) -> AsyncIterator[Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as found,
    ):
        yield found


async def text(client: Client, tool: str, **given: object) -> str:
    found = await client.call_tool(tool, dict(given))
    return str(found.content[0].text)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_every_era_is_served_with_a_key(served: str, store: Path, mode: str) -> None:
    async with client(served, "tk_of_the_test", mode) as host:
        assert len((await host.list_tools()).tools) == 12
        await text(host, "state_set", key=mode, value={"era": mode})
        assert json.loads(await text(host, "state_get", key=mode))["value"] == {"era": mode}
        assert "Call this first" in (await host.list_tools()).tools[0].description
    with Tenuto("x", store) as agent:
        assert agent.state.get("project", mode) == {"era": mode}


async def test_a_key_opens_its_own_tenant_with_its_own_rights_until_it_is_revoked(served: str, store: Path) -> None:
    keys = Keys(connect(str(store)))
    writer = keys.create("ci", tenant="acme", scopes=["write"])
    reader = keys.create("viewer", tenant="acme", scopes=["read"])
    async with client(served, writer.api_key, "2026-07-28") as host:
        await text(host, "remember", text="Deploys happen on Monday")
    async with client(served, reader.api_key, "legacy") as host:
        assert "Monday" in await text(host, "recall", query="when do deploys happen")
        assert "scope write" in await text(host, "remember", text="no")
        assert "remember" not in [one.name for one in (await host.list_tools()).tools]
    async with client(served, "tk_of_the_test", "2026-07-28") as host:
        assert await text(host, "recall", query="when do deploys happen") == "none", "another tenant"
    with Tenuto("x", store, tenant="acme") as agent:
        assert agent.memory.list()[0].writer == "ci"
    async with client(served, writer.api_key, "2026-07-28") as host:
        keys.revoke("ci")
        with pytest.raises(MCPError, match="error response"):
            await host.call_tool("remember", {"text": "too late"})
    with Tenuto("x", store, tenant="acme") as agent:
        assert len(agent.memory.list()) == 1


def test_without_a_key_from_another_page_or_host_nothing_is_done(served: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepts = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer tk_of_the_test"}
    with httpx2.Client() as http:
        refused = http.post(served, json=call)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="tenuto"'
        assert "no valid API key" in refused.json()["detail"]
        assert http.post(served, json=call, headers={**accepts, "Origin": "https://evil.example"}).status_code == 403
        assert http.post(served, json=call, headers={**accepts, "Host": "evil.example"}).status_code == 421
        assert http.get(served.replace("/mcp", "/v1/stats"), headers=accepts).status_code == 404
        assert http.get(served.replace("/mcp", "/health")).json() == {"status": "ok"}
        large = http.post(served, content=b"x" * (21 * 1024 * 1024), headers=accepts)
        assert large.status_code == 413


class _Issuer:
    async def verify_token(self, token: str) -> AccessToken | None:
        if not token.startswith("good"):
            return None
        expires = 1 if token.endswith("old") else None
        return AccessToken(token=token, client_id="app", subject="ann", scopes=["read", "openid"], expires_at=expires)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdks_token_verifier_may_decide_instead(store: Path, mode: str) -> None:
    app = McpApp(connect("volatile:"), chosen(None, "x"), Settings(token_tenant="acme"), _Issuer())  # type: ignore[arg-type]
    async with app._sessions.run():
        transport = httpx2.ASGITransport(app=app)
        for token, works in (("good", True), ("bad", False), ("good-old", False)):
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
                found = streamable_http_client("http://localhost/mcp", http_client=http)
                if not works:
                    answer = await http.post("http://localhost/mcp", json={})
                    assert answer.status_code == 401
                    continue
                async with Client(found, mode=mode) as host:
                    assert "resume" in [one.name for one in (await host.list_tools()).tools]
                    assert "scope write" in await text(host, "state_set", key="a", value=1)
    app._pool.shutdown()
