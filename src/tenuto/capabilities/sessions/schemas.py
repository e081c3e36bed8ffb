"""Validation of the data between agents: by a msgspec struct, dataclass, pydantic model or JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tenuto.capabilities._core.schemas import problems, schema_of
from tenuto.capabilities.runs import to_stored
from tenuto.errors import InvalidInput


class Invalid(Exception):
    """Data does not fit its schema; the text begins with the path of the field."""


def stored(data: Any, schema: Any) -> Any:
    """Return the plain form of valid data; raise `InvalidInput`, with the field named, for any other."""
    plain = to_stored(data)[0]
    try:
        typed(plain, schema)
    except Invalid as error:
        raise InvalidInput(
            f"{error}, by the schema {name_of(schema)}; nothing was sent. Correct that field and send it again."
        ) from error
    return plain


def typed(plain: Any, schema: Any) -> Any:
    """Return plain data as an object of the schema; raise `Invalid` if it does not fit."""
    if schema is None:
        return plain
    if isinstance(schema, Mapping):
        wrong = problems(schema_of(schema), plain, "data")
        if wrong:
            raise Invalid("; ".join(wrong))
        return plain
    try:
        if hasattr(schema, "model_validate"):
            return schema.model_validate(plain)
        import msgspec  # noqa: PLC0415 - most programs never need it

        return msgspec.convert(plain, schema)
    except (ValueError, TypeError) as error:
        raise Invalid(_said(error)) from error


def name_of(schema: Any) -> str:
    """Return the name of a schema."""
    if isinstance(schema, Mapping):
        return str(schema.get("title", "given"))
    return str(getattr(schema, "__name__", schema))


def _said(error: Exception) -> str:
    """Return an error of msgspec or pydantic, beginning with the path of the field."""
    details = getattr(error, "errors", None)
    if callable(details):
        first = details()[0]
        path = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
        return f"data{path}: {first['msg']}"
    found = re.fullmatch(r"(.*?)(?: - at `\$?(.*)`)?", str(error), re.DOTALL)
    what, path = (found[1], found[2] or "") if found else (str(error), "")
    missing = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what)
    if missing:
        return f"data{path}.{missing[2]}: {'is missing' if 'missing' in missing[1] else 'is unknown'}"
    return f"data{path}: {what}"
