"""The ASGI application: who calls, may they, and which part answers.

    /health /ready              without a key
    /kernel /kernel/1/VERB      the storage verbs, MessagePack
    /v1/NOUN/VERB               the operations, JSON; /openapi.json describes them
    /inspector/                 the inspector: a page that uses the JSON API; / leads to it
    /metrics                    for Prometheus, if it is enabled
    /answer/TOKEN               a question to a person, as a page; /tenants/NAME/answer/TOKEN of another tenant

A request is checked in this order: Host and Origin, API key, rate, size of the body, scope of the key. Of a body beyond 64 KB nothing
is read before the key is known, and all bodies together take a limited amount of memory. Each request runs on one thread of a pool, and a commit that has begun is never abandoned.

This is plain ASGI, without Starlette. Its router tries one pattern after the other: after the routes of the operations a call of a
storage verb takes 46 us in it, and 8 us here with one look into a dict. What remains of it, requests and responses, is `exchange.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from tenuto import errors
from tenuto.aio.bridge import Pool, in_thread
from tenuto.backends.remote import wire
from tenuto.client import Tenuto
from tenuto.errors import AccessDenied, StorageUnavailable, TenutoError
from tenuto.kernel import correlation, keys
from tenuto.kernel.contract import Backend
from tenuto.operations import Operation, called
from tenuto.servers import inspector
from tenuto.servers.auth import Access, Keys
from tenuto.servers.http import events, kernel, pages
from tenuto.servers.http.exchange import Exchange, Message, Receive, Send, segments
from tenuto.servers.http.json_api import answered, arguments
from tenuto.servers.http.logs import logged
from tenuto.servers.http.metrics import MEDIA, ServedMetrics
from tenuto.servers.http.openapi import document
from tenuto.servers.http.problems import PROBLEM, Refused, Stopping, problem_of, status_of
from tenuto.servers.http.rates import Rates
from tenuto.servers.http.rights import must_operate, view
from tenuto.servers.http.room import SMALL, Room
from tenuto.servers.http.routes import OF_ALL_TENANTS, ROUTES, method_of, scopes_of
from tenuto.servers.http.routes import PREFIX as ROOT
from tenuto.servers.http.settings import Settings
from tenuto.wrappers.tenant import Tenant

R = TypeVar("R")
JSON: Final = "application/json"
_MAX_WAITING: Final = 2_000
_MAX_AGENTS: Final = 1_000
_MAX_FORM: Final = SMALL
_BODIES: Final = 8
"""Bodies of the largest size that are in memory at once."""
_log = logging.getLogger("tenuto.server")


class App:
    """Serve a store over HTTP. `tenuto serve` runs it; any other ASGI server can too."""

    def __init__(self, backend: Backend, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.metrics = ServedMetrics() if self.settings.metrics else None
        self.backend = backend if self.metrics is None else self.metrics.observed(backend)
        given = self.settings
        self.keys = Keys(backend, given.token, given.token_tenant, given.token_scopes)
        self._below = urlsplit(given.public_url).path.rstrip("/")
        self.stopping = asyncio.Event()
        self._pool = Pool(self.settings.threads, "tenuto-http")
        self._rates = Rates(self.settings.rate)
        self._room = Room(_BODIES * self.settings.max_body)
        self._waiting = 0
        self._agents: dict[Access, Tenuto] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection's event, as ASGI asks."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._served(Exchange(scope, receive, send, self._below))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self.stop()
                self._pool.shutdown(wait=True)  # a commit that has begun ends before the store closes
                self.backend.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def stop(self) -> None:
        """End long polls and event streams, so that the server can stop."""
        self.stopping.set()

    async def _served(self, exchange: Exchange) -> None:
        is_kernel = exchange.path.startswith(wire.HELLO)
        try:
            await self._answered(exchange, is_kernel=is_kernel)
        except asyncio.CancelledError:
            raise
        except (Exception, errors.Paused) as error:  # noqa: BLE001 - a client never sees a traceback
            if not isinstance(error, TenutoError | errors.Paused):
                _log.exception("request %s failed", exchange.request_id)
                error = errors.TenutoError("The server failed. Its log has the details, under the request id.")
            if not exchange.status:
                await self._refuse(exchange, error, is_kernel=is_kernel)
        finally:
            self._release(exchange)
            if exchange.path not in ("/health", "/ready"):
                logged(
                    exchange,
                    wrote=exchange.path.endswith(("/commit", "/load", "/trim"))
                    if is_kernel
                    else exchange.method == "POST",
                )

    async def _refuse(self, exchange: Exchange, error: TenutoError | errors.Paused, *, is_kernel: bool) -> None:
        status = status_of(error)
        headers = dict(error.headers) if isinstance(error, Refused) else {}
        if isinstance(error, AccessDenied) and exchange.access is None:
            status, headers["WWW-Authenticate"] = 401, 'Bearer realm="tenuto"'
        if status == 503:
            headers["Retry-After"] = "0" if isinstance(error, Stopping) else "1"
        if is_kernel and isinstance(error, TenutoError):
            await exchange.reply(status, wire.error_body(error), wire.MEDIA, headers)
        else:
            body = msgspec.json.encode({**problem_of(error), "status": status, "request_id": exchange.request_id})
            await exchange.reply(status, body, PROBLEM, headers)

    async def _answered(self, exchange: Exchange, *, is_kernel: bool) -> None:
        path = exchange.path
        if path in ("/health", "/ready"):
            await self._healthy(exchange, asks_store=path == "/ready")
            return
        self._check_names(exchange)
        if self.stopping.is_set():
            raise Stopping("The server is stopping. Nothing was done; try again.")
        if is_kernel:
            await self._kernel(exchange)
        elif path.startswith(ROOT):
            await self._operation(exchange)
        elif path in ("/", inspector.PATH) or path.startswith(f"{inspector.PATH}/"):
            await self._page(exchange)
        elif path.startswith(("/answer/", "/tenants/")):
            await self._question(exchange)
        elif path == "/metrics" and exchange.method == "GET" and self.metrics is not None:
            text = await self.run(exchange, lambda: self._measured(exchange))
            await exchange.reply(200, text, MEDIA)
        elif path == "/openapi.json" and exchange.method == "GET":
            await self.run(exchange, lambda: self.admit(exchange))
            await exchange.reply(200, msgspec.json.encode(document(kernel.VERSION, self.settings.public_url)), JSON)
        else:
            raise Refused(404, "There is nothing at this path. GET /openapi.json lists what there is.")

    def _measured(self, exchange: Exchange) -> bytes:
        """Return the metrics of this process, and of the store for the tenant of the API key."""
        access = self.admit(exchange)
        access.must("admin", "read")
        assert self.metrics is not None
        whole = access.tenant == self.settings.token_tenant
        return self.metrics.text(self.agent(access), access.tenant, whole=whole)

    async def _healthy(self, exchange: Exchange, *, asks_store: bool) -> None:
        status = "ok"
        if self.stopping.is_set():
            status = "stopping"
        elif asks_store:
            try:
                async with asyncio.timeout(5):
                    await self.run(exchange, lambda: self.backend.read([keys.pack("tenuto", "ready")]))
            except (TenutoError, TimeoutError):
                status = "store unavailable"
        body = msgspec.json.encode({"status": status})
        await exchange.reply(200 if status == "ok" or not asks_store else 503, body, JSON)

    def _check_names(self, exchange: Exchange) -> None:
        """Refuse a request for another host (DNS rebinding), and one from a page of another origin."""
        if exchange.is_ambiguous:
            raise Refused(400, "A header that is needed once is there twice. Nothing was done.")
        host = exchange.header("host") or ""
        allowed = self.settings.hosts
        if allowed is not None and _hostname(f"//{host}") not in allowed:
            raise Refused(421, "This server does not answer for that host name. Nothing was done; use its address.")
        origin = exchange.header("origin")
        own = {host, _place(self.settings.public_url)} - {""}
        if origin is not None and _place(origin) not in own:
            raise Refused(403, "Requests from pages of another origin are refused. Nothing was done.")

    # -- the caller --------------------------------------------------------------------------

    async def run(self, exchange: Exchange, call: Callable[[], R]) -> R:
        """Run a blocking call on a thread, with the request's correlation id, unless its deadline has passed."""
        deadline = exchange.deadline(self.settings.timeout)
        if self._waiting >= _MAX_WAITING:
            raise StorageUnavailable("The server has too many requests waiting. Nothing was done; try again.")

        def begun() -> R:
            if time.monotonic() > deadline:
                raise StorageUnavailable("The request waited until its deadline. Nothing was done; try again.")
            if exchange.correlation:
                correlation.variable.set(exchange.correlation)  # in a copy of the context, for this call alone
            return call()

        self._waiting += 1
        try:
            return await in_thread(self._pool, begun)
        finally:
            self._waiting -= 1

    def admit(self, exchange: Exchange) -> Access:
        """Return the caller of a request; `AccessDenied` without a valid key. It blocks; call it on a thread."""
        access = self.keys.verify(exchange.bearer())
        self._rates.take(access.id)
        exchange.access = access
        return access

    def agent(self, access: Access) -> Tenuto:
        """Return the client of an API key, which writes in the key's name. Clients are kept, with their caches."""
        agent = self._agents.get(access)
        if agent is None:
            if len(self._agents) >= _MAX_AGENTS:
                self._agents.clear()
            agent = self._agents[access] = self._client(access, view(self.backend, access))
        return agent

    def _client(self, access: Access, store: Backend) -> Tenuto:
        return Tenuto(access.name, store, tenant=access.tenant, archive=self.settings.archive)

    # -- the storage verbs -------------------------------------------------------------------

    async def _kernel(self, exchange: Exchange) -> None:
        verb = exchange.path.removeprefix(wire.path_of(""))
        if exchange.path == wire.HELLO and exchange.method == "GET":
            now = self.backend.now
            found = await self.run(exchange, lambda: kernel.hello(self.admit(exchange), now()))
            await exchange.reply(200, found, wire.MEDIA)
            return
        if exchange.method != "POST" or verb not in wire.VERBS:
            await self.run(exchange, lambda: self.admit(exchange))
            raise Refused(404, "There is no such call. The server may be older than the client.")
        if exchange.bearer() is None:
            raise AccessDenied("There is no API key in this request. Nothing was done; send Authorization: Bearer tk_…")
        known: Access | None = None
        size = exchange.announced(self.settings.max_body)
        if size is None or size > SMALL:
            known = await self.run(exchange, lambda: self.admit(exchange))
        body = await self._body(exchange)
        if verb == "watch":
            await self._watched(exchange, known, body)
            return

        def answer() -> bytes:
            access = known or self.admit(exchange)
            store = Tenant(view(self.backend, access), access.tenant)
            return kernel.answer(verb, access, store, body, operator=self.settings.token_tenant)

        await exchange.reply(200, await self.run(exchange, answer), wire.MEDIA)

    async def _body(self, exchange: Exchange) -> bytes:
        return await exchange.body(self.settings.max_body, self.settings.timeout, self._room)

    def _release(self, exchange: Exchange) -> None:
        """Give back the room of a body that is no longer needed."""
        self._room.free(exchange.held)
        exchange.held = 0

    async def _watched(self, exchange: Exchange, known: Access | None, body: bytes) -> None:
        def watch() -> kernel.Watch:
            access = known or self.admit(exchange)
            return kernel.Watch(access, Tenant(view(self.backend, access), access.tenant), body)

        def look() -> bytes | None:
            self.keys.verify(exchange.bearer())  # it may have been revoked since
            return watched.look()

        watched = await self.run(exchange, watch)
        self._release(exchange)
        gone = asyncio.ensure_future(exchange.disconnected())
        try:
            ends = time.monotonic() + watched.seconds
            found = await in_thread(self._pool, watched.look)
            while found is None and not gone.done() and not self.stopping.is_set():
                left = ends - time.monotonic()
                if left <= 0:
                    found = watched.reply([])
                    break
                await watched.sleep(left)
                found = await in_thread(self._pool, look)
            await exchange.reply(200, found or watched.reply([]), wire.MEDIA)
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
            watched.close()

    # -- the operations ----------------------------------------------------------------------

    async def _operation(self, exchange: Exchange) -> None:
        operation = ROUTES.get(exchange.path)
        allowed = "" if operation is None else method_of(operation)
        if operation is None or exchange.method not in (allowed, "HEAD" if allowed == "GET" else allowed):
            await self.run(exchange, lambda: self.admit(exchange))
            if operation is None:
                raise Refused(404, "There is no such operation. GET /openapi.json lists them.")
            raise Refused(405, f"{operation.name!r} is a {allowed}. Nothing was done.", Allow=allowed)
        access = await self.run(exchange, lambda: self.admit(exchange))
        access.must(*scopes_of(operation))
        if operation.name in OF_ALL_TENANTS:
            must_operate(access, self.settings.token_tenant)
        body = await self._body(exchange)
        if operation.streams:
            self._release(exchange)
            await self._stream(exchange, operation, access)
            return
        agent = self.agent(access)
        answer = await self.run(exchange, lambda: answered(operation, access, self.backend, agent, exchange, body))
        await exchange.reply(answer.status, answer.body, JSON, answer.headers)

    async def _stream(self, exchange: Exchange, operation: Operation, access: Access) -> None:
        given = arguments(operation, exchange, b"")
        last = exchange.header("last-event-id")
        if last is not None:
            if not last.isdecimal() or len(last) > 18:
                raise Refused(400, "Last-Event-ID must be the id of an event. Nothing was done.")
            given["after"] = int(last)
        agent = self.agent(access)
        items = await self.run(exchange, lambda: events.begun(called(operation, agent, given)))
        await events.streamed(exchange, items, self._pool, self.stopping, lambda: self.keys.verify(exchange.bearer()))

    async def _page(self, exchange: Exchange) -> None:
        """Reply with a file of the inspector. It is the same for everyone: what it shows comes from the JSON API, with a key."""
        if exchange.method not in ("GET", "HEAD"):
            raise Refused(405, "The inspector is read by GET. Nothing was done.", Allow="GET")
        if not exchange.path.startswith(f"{inspector.PATH}/"):
            await exchange.reply(
                307, b"", "text/plain", {"Location": "inspector/"}
            )  # relative: a proxy may add a prefix
            return
        found = inspector.file_at(exchange.path)
        if found is None:
            raise Refused(404, "The inspector has no such file.")
        tag = f'"{found.digest}"'
        known = exchange.header("if-none-match") == tag
        headers = {**inspector.HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
        await exchange.reply(304 if known else 200, b"" if known else found.content, found.media, headers)

    # -- the page of a question --------------------------------------------------------------

    async def _question(self, exchange: Exchange) -> None:
        try:
            if exchange.method not in ("GET", "HEAD", "POST"):
                raise Refused(405, "A question is shown by GET and answered by POST.", Allow="GET, POST")
            body = await exchange.body(_MAX_FORM, self.settings.timeout, self._room)
            tenant, token = self._linked(exchange)
            found = await self.run(exchange, lambda: self._asked(exchange, tenant, token, body))
        except TenutoError as error:
            status = status_of(error)
            content = pages.page("Not possible", f"<p>{escape(str(error))}</p>")
            await exchange.reply(status, content, pages.MEDIA, pages.HEADERS)
        else:
            await exchange.reply(200, found, pages.MEDIA, pages.HEADERS)

    def _linked(self, exchange: Exchange) -> tuple[str, str]:
        """Return the tenant and the token of an answer link; the token is valid in its own tenant alone."""
        parts = segments(exchange.raw_path)
        if parts[0] == "answer" and len(parts) == 2:
            return self.settings.token_tenant, parts[1]
        if parts[0] == "tenants" and len(parts) == 4 and parts[2] == "answer":
            return parts[1], parts[3]
        raise Refused(404, "There is nothing at this path. Check the link.")

    def _asked(self, exchange: Exchange, tenant: str, token: str, body: bytes) -> bytes:
        self._rates.take("link")
        inbox = Tenuto("answer link", self.backend, tenant=tenant).inbox
        approval = inbox.approval(token)
        exchange.access = Access("link", approval.by, tenant, ("answer",), "")
        question = inbox.get(approval.question)
        if exchange.method == "POST":
            question = inbox.redeem(token, pages.decided(question, body))
        return pages.shown(question, approval.by, exchange.query)


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # malformed, so it is no name of this server
        return ""


def _place(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""
