"""The JSON API: calls an operation of the table and renders its result.

A version is an ETag: `If-None-Match` on a read gives 304, `If-Match: "3"` and `If-None-Match: *` on a write are the
operation's `expect`, and a write that comes too late gives 412. `Idempotency-Key` makes a POST safe to send again.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, StateConflict
from tenuto.kernel.contract import Backend
from tenuto.operations import Operation, called
from tenuto.operations.jsonable import jsonable
from tenuto.servers.auth import Access
from tenuto.servers.http.access import REPEATABLE
from tenuto.servers.http.exchange import Exchange
from tenuto.servers.http.idempotency import Once
from tenuto.servers.http.problems import Refused
from tenuto.servers.http.rights import view
from tenuto.servers.http.routes import from_body, from_query

_TAG: Final = re.compile(r'"(\d{1,18})"')


class Answer(NamedTuple):
    """A reply that is not sent yet."""

    status: int
    body: bytes
    headers: dict[str, str]


def encoded(value: Any) -> bytes:
    """Encode a result as JSON; a number that JSON lacks becomes null."""
    return msgspec.json.encode(jsonable(value))


def arguments(operation: Operation, exchange: Exchange, body: bytes) -> dict[str, Any]:
    """Return the arguments of a request: its query or its body, and its conditions."""
    if not operation.writes:
        return from_query(operation, exchange.query)
    if exchange.query:
        raise InvalidInput("A POST takes its parameters in the body, not in the query. Nothing was done.")
    given = from_body(operation, exchange.header("content-type"), body)
    expected = _expected(exchange)
    if expected is not None:
        if "expect" not in given:
            raise InvalidInput(f"{operation.name!r} takes no If-Match or If-None-Match. Nothing was done.")
        if given["expect"] not in (None, expected):
            raise InvalidInput("The conditions of the headers and of expect differ. Nothing was done.")
        given["expect"] = expected
    return given


def _expected(exchange: Exchange) -> int | None:
    match, none_match = exchange.header("if-match"), exchange.header("if-none-match")
    if match is None and none_match is None:
        return None
    if match is None and none_match == "*":
        return 0
    tag = _TAG.fullmatch(match or "")
    if tag is None or none_match is not None:
        raise InvalidInput('If-Match takes one ETag such as "3", and If-None-Match takes *. Nothing was done.')
    return int(tag[1])


def answered(
    operation: Operation, access: Access, backend: Backend, agent: Tenuto, exchange: Exchange, body: bytes
) -> Answer:
    """Carry out an operation and return the reply. It blocks; call it on a thread.

    `agent` has the limits of the API key; `backend` has none: the mark of a request is not in the key's scopes.
    """
    given = arguments(operation, exchange, body)
    key = exchange.header("idempotency-key")
    if key is None or not operation.writes or operation.name in REPEATABLE:
        return _called(operation, agent, given, exchange)
    content = hashlib.blake2b(operation.name.encode() + b"\x00" + body, digest_size=16).digest()
    once = Once(backend, access, key, content)
    recorded = once.recorded()
    if recorded is not None:
        return Answer(200, recorded.body, {**recorded.headers, "Idempotency-Replayed": "true"})
    once_only = Tenuto(access.name, view(once, access), tenant=access.tenant, archive=agent._place)
    answer = _called(operation, once_only, given, exchange)
    once.record(answer.body, answer.headers)
    return answer


def _called(operation: Operation, agent: Tenuto, given: dict[str, Any], exchange: Exchange) -> Answer:
    try:
        found = called(operation, agent, given)
    except StateConflict as error:
        if exchange.header("if-match") or exchange.header("if-none-match"):
            raise Refused(412, str(error)) from error
        raise
    headers: dict[str, str] = {}
    version = getattr(found, "version", None)
    if type(version) is int:
        headers["ETag"] = f'"{version}"'
        if not operation.writes and exchange.header("if-none-match") == headers["ETag"]:
            return Answer(304, b"", headers)
    if getattr(found, "more", 0) and "after" in given:
        last = getattr(found[-1], "id", None) or getattr(found[-1], "name", None)
        query = {**_query(given), "after": last}
        headers["Link"] = f'<{quote(exchange.path)}?{urlencode(query)}>; rel="next"'
    return Answer(200, encoded(found), headers)


def _query(given: dict[str, Any]) -> dict[str, Any]:
    texts = {True: "true", False: "false"}
    return {
        name: texts.get(value, value) if value is True or value is False else value
        for name, value in given.items()
        if value is not None
    }
