"""MCP over streamable HTTP, with the API keys, limits and checks of the HTTP server.

    /mcp                MCP, for both protocol eras; every request names its API key
    /health /ready      without a key

The requests are independent of one another: there is no session in the server's memory, so that any number of processes serves
one store. Each request reads its key's record, so a revoked key is refused at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from mcp.server.auth.provider import TokenVerifier

from tenuto.errors import AccessDenied
from tenuto.kernel.contract import Backend
from tenuto.servers.auth import SCOPES, Access
from tenuto.servers.http.app import App
from tenuto.servers.http.exchange import Exchange, Message, Receive, Send
from tenuto.servers.http.problems import Refused, Stopping
from tenuto.servers.http.routes import OF_ALL_TENANTS
from tenuto.servers.http.settings import Settings
from tenuto.servers.mcp.server import Caller, build
from tenuto.servers.mcp.tools import Tool

PATH: Final = "/mcp"
_ACCESS: Final = "tenuto.access"


class _Held(Exchange):
    """A request whose scope and channels the SDK takes over."""

    def __init__(self, scope: Message, receive: Receive, send: Send, below: str) -> None:
        super().__init__(scope, receive, send, below)
        self.scope = {**scope, "path": self.path, "raw_path": self.raw_path.encode("latin-1")}

    async def sending(self, message: Message) -> None:
        """Send a part of the SDK's reply, and take note of it for the log."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)

    def replaying(self, body: bytes) -> Receive:
        """Return a channel that delivers a body that was read already."""
        parts = [body]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            return await self._receive()

        return receive


class McpApp(App):
    """Serve a store to MCP clients over HTTP.

    Callers name an API key of the store. With a `verifier` of the SDK they send a token of its issuer instead: what it
    allows are its scopes among read, write, answer and admin, in the tenant of the settings.
    """

    def __init__(
        self,
        backend: Backend,
        tools: Sequence[Tool],
        settings: Settings | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        super().__init__(backend, settings)
        self._verifier = verifier
        of_a_tenant = [one for one in tools if not set(one.operations) & set(OF_ALL_TENANTS)]
        server = build(of_a_tenant, self._who, self._pool)
        # Host and Origin are checked by App, by the names of the settings; the SDK would know localhost alone.
        self._sdk = server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            host="",
            max_request_body_size=self.settings.max_body,
        )
        self._sessions = server.session_manager

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection's event, as ASGI asks."""
        if scope["type"] == "http":
            await self._served(_Held(scope, receive, send, self._below))
        else:
            await super().__call__(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        async with self._sessions.run():
            await super()._live(receive, send)

    async def _answered(self, exchange: Exchange, *, is_kernel: bool) -> None:
        if exchange.path != PATH or not isinstance(exchange, _Held):
            if exchange.path in ("/health", "/ready"):
                await super()._answered(exchange, is_kernel=is_kernel)
                return
            raise Refused(404, f"There is nothing at this path. MCP is at {PATH}.")
        self._check_names(exchange)
        if self.stopping.is_set():
            raise Stopping("The server is stopping. Nothing was done; try again.")
        if exchange.method != "POST":  # a GET would open a stream on which nothing is ever sent: there are no sessions
            raise Refused(405, "MCP is spoken by POST here. Nothing was done.", Allow="POST")
        access = await self._admitted(exchange)
        body = await exchange.body(self.settings.max_body, self.settings.timeout, self._room)
        scope = {**exchange.scope, _ACCESS: access}
        await self._sdk(scope, exchange.replaying(body), exchange.sending)

    async def _admitted(self, exchange: Exchange) -> Access:
        if self._verifier is None:
            return await self.run(exchange, lambda: self.admit(exchange))
        text = exchange.bearer()
        token = None if text is None else await self._verifier.verify_token(text)
        if token is None or (token.expires_at is not None and token.expires_at <= time.time()):
            raise AccessDenied(
                "There is no valid token in this request. Nothing was done; send Authorization: Bearer …"
            )
        name = token.subject or token.client_id
        scopes = tuple(one for one in SCOPES if one in token.scopes)
        exchange.access = Access(token.client_id, name, self.settings.token_tenant, scopes, "")
        self._rates.take(token.client_id)
        return exchange.access

    def _who(self, ctx: Any) -> Caller:
        access: Access = ctx.request.scope[_ACCESS]
        return Caller(self.agent(access), access)
