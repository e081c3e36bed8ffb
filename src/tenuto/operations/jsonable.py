"""Convert the results of operations to JSON, and types to the matching JSON Schema."""

from __future__ import annotations

import base64
import dataclasses
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_type_hints
from uuid import UUID

from tenuto.kernel.unregistered import Unregistered

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
}


def jsonable(value: Any) -> Any:  # noqa: C901, PLR0911 - one branch a type
    """Return a JSON-compatible value: times as ISO 8601, bytes as base64, records as objects.

    A value of an application type is its fields, whether the type is registered here or not.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: jsonable(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Unregistered):
        return jsonable(value.data)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: jsonable(inner) for name, inner in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(inner) for inner in value), key=repr)
    return repr(value)


def schema(kind: Any) -> dict[str, Any]:  # noqa: PLR0911 - one branch a type
    """Return the JSON Schema of a type as `jsonable` renders it."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return schema(inner[0])
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one) for one in inner]}
    if origin is list or (origin is tuple and inner[1:] == (...,)):
        return {"type": "array", "items": schema(inner[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [schema(one) for one in inner], "minItems": len(inner)}
    if origin is dict or kind is dict:
        return {"type": "object", "additionalProperties": schema(inner[1]) if inner else {}}
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        names = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
        return {
            "title": kind.__name__,
            "type": "object",
            "properties": {name: schema(hints[name]) for name in names},
            "required": list(names),
            "additionalProperties": False,
        }
    return {}
