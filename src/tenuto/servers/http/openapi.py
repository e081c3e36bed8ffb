"""The OpenAPI 3.1 document of the JSON API, rendered from the table of operations."""

from __future__ import annotations

from typing import Any, Final

from tenuto.operations import Operation, Parameter
from tenuto.operations.jsonable import schema
from tenuto.servers.http.events import MEDIA as EVENTS
from tenuto.servers.http.problems import PROBLEM
from tenuto.servers.http.routes import ROUTES, method_of, scopes_of

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "outcome": {"enum": ["not applied", "unknown"]},
        "request_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "request_id"],
}
_FAILURES: Final[dict[str, str]] = {
    "400": "The request is not valid; nothing was done",
    "401": "The API key is missing or not valid",
    "403": "The API key does not allow this call",
    "404": "There is no such object",
    "409": "Another write came first; nothing was written",
    "413": "Too large; nothing was written",
    "429": "The rate limit of the key is exceeded",
    "503": "The store is unavailable; see outcome",
}


def document(version: str, public_url: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tenuto",
            "version": version,
            "description": "Durable state for AI agents. The operations and parameters are those of the `tenuto` command.",
        },
        "servers": [{"url": public_url or "/"}],
        "security": [{"key": []}],
        "paths": {path: {method_of(one).lower(): _operation(one)} for path, one in sorted(ROUTES.items())},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM},
        },
    }


def _operation(one: Operation) -> dict[str, Any]:
    first, _, rest = one.help.partition("\n")
    needed = ", ".join((*scopes_of(one), "admin"))
    found: dict[str, Any] = {
        "operationId": one.name.replace(" ", "_"),
        "summary": first,
        "description": f"{rest.strip()}\n\nScopes: {needed}.".strip(),
        "tags": [one.name.partition(" ")[0]],
        "responses": {"200": _success(one), **_failures(one)},
    }
    if one.writes:
        found["parameters"] = [
            _header("Idempotency-Key", "Sent again with the same key, the request has no second effect")
        ]
        if any(parameter.name == "expect" for parameter in one.parameters):
            found["parameters"].append(_header("If-Match", 'Write only if the version is this ETag, e.g. "3"'))
            found["responses"]["412"] = _failure("The version is not the expected one; nothing was written")
        found["responses"]["415"] = _failure("The body must be application/json")
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body(one)}}}
    else:
        found["parameters"] = [_query(parameter) for parameter in one.parameters]
        if one.streams:
            found["parameters"].append(_header("Last-Event-ID", "Resume after the event with this id"))
        else:
            found["responses"]["304"] = {"description": "The version is the one of If-None-Match"}
    return found


def _success(one: Operation) -> dict[str, Any]:
    if one.streams:
        return {
            "description": "Server-sent events; data is one item",
            "content": {EVENTS: {"schema": {"type": "string"}}},
        }
    headers = {"ETag": {"description": "The version, of a result that has one", "schema": {"type": "string"}}}
    content = {"application/json": {"schema": schema(one.returns)}}
    return {"description": "Done", "headers": headers, "content": content}


def _failures(one: Operation) -> dict[str, Any]:
    return {status: _failure(text) for status, text in _FAILURES.items() if status != "409" or one.parameters}


def _failure(text: str) -> dict[str, Any]:
    return {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _body(one: Operation) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {parameter.name: _shown(parameter) for parameter in one.parameters},
        "required": [parameter.name for parameter in one.parameters if parameter.required],
        "additionalProperties": False,
    }


def _shown(parameter: Parameter) -> dict[str, Any]:
    found = schema(parameter.kind)
    if parameter.help:
        found["description"] = parameter.help
    if parameter.default is not None:
        found["default"] = parameter.default
    return found


def _query(parameter: Parameter) -> dict[str, Any]:
    found = schema(parameter.kind)
    choices = [one for one in found.get("anyOf", ()) if one.get("type") != "null"]
    shape = choices[0] if len(choices) == 1 else found  # a query has no null: the parameter is left out
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.help,
        "schema": shape,
    }


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
