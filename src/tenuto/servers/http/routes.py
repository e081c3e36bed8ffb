"""The operations as routes: `tenuto state get SCOPE KEY` is `GET /v1/state/get?scope=…&key=…`.

An operation that reads is a GET with a query, one that writes is a POST with a JSON object. Both take the parameters
of the command, by the same names. Operations on files of the machine are left out.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Union
from urllib.parse import parse_qsl

import msgspec

from tenuto.errors import InvalidInput, TooLarge
from tenuto.operations import OPERATIONS, Operation, Parameter
from tenuto.servers.http.access import KEYS
from tenuto.servers.http.problems import Refused

PREFIX: Final = "/v1/"
OF_ALL_TENANTS: Final = ("check", "stats", "growth", "alerts growth", "alerts figures")
"""Operations on the whole store."""
_ANSWERING: Final = ("inbox list", "inbox show", "inbox history", "inbox acknowledge", "inbox answer", "inbox cancel")
"""Operations for which the scope answer is enough; asking takes write."""
_MAX_FIELDS: Final = 100
_MAX_PARTS: Final = 1_000_000
"""Objects and lists in a body: decoded, an empty one takes 30 times the memory of its text."""


def path_of(operation: Operation) -> str:
    """Return the path of an operation."""
    return PREFIX + operation.name.replace(" ", "/")


ROUTES: Final[dict[str, Operation]] = {path_of(one): one for one in (*OPERATIONS.values(), *KEYS) if not one.local}


def scopes_of(operation: Operation) -> tuple[str, ...]:
    """Return the scopes with which a key may call an operation; admin may call each."""
    # Channels name secrets, and make workers send requests; keys are the access itself.
    if operation.name in OF_ALL_TENANTS or operation.name.startswith(("notify ", "keys ")):
        return ()
    needed = ("write",) if operation.writes else ("read", "write")
    return (*needed, "answer") if operation.name in _ANSWERING else needed


def method_of(operation: Operation) -> str:
    """Return the HTTP method of an operation."""
    return "POST" if operation.writes else "GET"


def from_query(operation: Operation, query: bytes) -> dict[str, Any]:
    """Return the arguments of a GET."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:  # also not ASCII, not UTF-8, too many
        raise InvalidInput("The query is malformed. Nothing was done; percent-encode UTF-8 names.") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidInput("A parameter is given twice in the query. Nothing was done.")
    kinds = {one.name: one.kind for one in operation.parameters}
    return _complete(operation, {name: _read(text, kinds.get(name), name) for name, text in given.items()})


def from_body(operation: Operation, media: str | None, body: bytes) -> dict[str, Any]:
    """Return the arguments of a POST."""
    if (media or "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "A POST takes a JSON object with Content-Type: application/json. Nothing was done.")
    if body.count(b"{") + body.count(b"[") > _MAX_PARTS:
        raise TooLarge(f"A body takes up to {_MAX_PARTS:,} objects and lists. Nothing was done; send less.")
    try:
        given = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise InvalidInput("The body is not JSON in UTF-8. Nothing was done.") from None
    if not isinstance(given, dict):
        raise InvalidInput("The body must be a JSON object with the parameters by name. Nothing was done.")
    return _complete(operation, given)


def _complete(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the defaults of those that were left out."""
    known = {one.name: one for one in operation.parameters}
    strange = sorted(set(given) - set(known))
    if strange:
        raise InvalidInput(
            f"{operation.name!r} has no parameter {strange[0][:80]!r}; it has {', '.join(known) or 'none'}. Nothing was done."
        )
    found = {}
    for name, one in known.items():
        if name in given:
            found[name] = _valid(one, given[name])
        elif one.required:
            raise InvalidInput(f"{operation.name!r} needs the parameter {name!r}. Nothing was done.")
        else:
            found[name] = one.default
    return found


def _valid(parameter: Parameter, value: Any) -> Any:
    try:
        return msgspec.convert(value, parameter.kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidInput(f"The parameter {parameter.name!r} is not valid: {error}. Nothing was done.") from None


def plain(kind: Any) -> Any:
    """Return a type without None."""
    if typing.get_origin(kind) in (Union, UnionType):
        return next(one for one in typing.get_args(kind) if one is not NoneType)
    return kind


def _read(text: str, kind: Any, name: str) -> Any:
    """Return the value of a text in a query."""
    wanted = plain(kind)
    if wanted is bool and text in ("true", "false"):
        return text == "true"
    try:
        if wanted is int:
            return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else text
        if wanted is float:
            return float(text)
        return msgspec.json.decode(text) if wanted is Any and kind is not None else text
    except ValueError:
        raise InvalidInput(f"The parameter {name!r} is not valid: {text[:80]!r}. Nothing was done.") from None
