"""JSON Schema: a closed subset of 2020-12 for answers of people and for data between agents. Pure functions.

A question stores its schema, so that every process can check an answer without the asker's code. Types (msgspec,
dataclasses, pydantic) are converted to JSON Schema. A keyword that is not supported is an error in `schema_of`, so that
a schema never accepts what its author meant to reject. Each problem begins with the path of the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tenuto.errors import InvalidInput

_ANNOTATIONS: Final = frozenset(
    ["title", "description", "default", "examples", "format", "$schema", "$id", "$comment", "deprecated", "readOnly",
     "writeOnly", "discriminator", "contentEncoding", "contentMediaType"]
)  # fmt: skip


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _number(value) and float(value).is_integer(),
    "number": _number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}
_MOST: Final = 64
"""The deepest nesting of a schema, and of references while checking."""


def schema_of(given: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, or a JSON Schema itself; `InvalidInput` if it is none."""
    if isinstance(given, Mapping):
        found: Any = dict(given)
    elif hasattr(given, "model_json_schema"):
        found = given.model_json_schema()
    else:
        import msgspec  # noqa: PLC0415 - most programs never need it

        try:
            found = msgspec.json.schema(given)
        except (TypeError, RuntimeError) as error:
            raise InvalidInput(
                f"schema must be a JSON Schema (a dict) or a type, not {given!r:.80}; nothing was written. {error}"
            ) from error
    _validate(found, found, "schema", 0)
    return found  # type: ignore[no-any-return]


def problems(schema: dict[str, Any], value: Any, path: str = "answer") -> list[str]:
    """Return what in a value does not fit a schema, at most ten; nothing if it fits. `path` names the value."""
    return list(_Checking(schema).of(schema, value, path, 0))[:10]


# -- validating a schema ---------------------------------------------------------------------------------------------


def _validate(root: dict[str, Any], schema: Any, path: str, depth: int) -> None:  # noqa: C901 - one branch a form
    if schema is True or schema is False:
        return
    if not isinstance(schema, dict) or depth > _MOST:
        raise InvalidInput(f"{path} is no JSON Schema: {schema!r:.80}. Nothing was written.")
    for name, inner in schema.items():
        where, known = f"{path}.{name}", _KEYWORDS.get(name)
        if name in _ANNOTATIONS:
            continue
        if known is None:
            raise InvalidInput(f"{where} is not supported; nothing was written. Use {', '.join(sorted(_KEYWORDS))}.")
        if not known(inner):
            raise InvalidInput(f"{where} is invalid: {inner!r:.80}. Nothing was written.")
        if name in ("items", "additionalProperties", "propertyNames", "not"):
            _validate(root, inner, where, depth + 1)
        elif name in ("properties", "patternProperties", "$defs", "definitions"):
            for key, below in inner.items():
                _validate(root, below, f"{where}.{key}", depth + 1)
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for at, below in enumerate(inner):
                _validate(root, below, f"{where}[{at}]", depth + 1)
        elif name == "$ref":
            _referred(root, inner)


def _referred(root: dict[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise InvalidInput(f"schema has no {reference!r}. Nothing was written.")
        found = found[name]
    return found


def _pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _some(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _below(value: Any) -> bool:
    return isinstance(value, dict | bool)


_KEYWORDS: Final[dict[str, Callable[[Any], bool]]] = {
    "type": lambda value: (
        all(isinstance(one, str) and one in _TYPES for one in ([value] if isinstance(value, str) else value))
        if isinstance(value, str | list) and value
        else False
    ),
    "enum": _some,
    "const": lambda _: True,
    "properties": _schemas,
    "patternProperties": lambda value: _schemas(value) and all(map(_pattern, value)),
    "additionalProperties": _below,
    "propertyNames": _below,
    "required": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "minProperties": _count,
    "maxProperties": _count,
    "items": _below,
    "prefixItems": _some,
    "minItems": _count,
    "maxItems": _count,
    "uniqueItems": lambda value: isinstance(value, bool),
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": lambda value: _number(value) and value > 0,
    "anyOf": _some,
    "oneOf": _some,
    "allOf": _some,
    "not": _below,
    "$ref": lambda value: isinstance(value, str) and value.startswith("#"),
    "$defs": _schemas,
    "definitions": _schemas,
}


# -- checking a value ------------------------------------------------------------------------------------------------


class _Checking:
    """Checks values by one schema, whose references it resolves."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._found: dict[tuple[int, int, str], list[str]] = {}
        """By schema and value: references that branch would check the same pair again and again."""

    def of(self, schema: Any, value: Any, path: str, depth: int) -> list[str]:
        """Return what in a value does not fit."""
        if depth > _MOST:
            return [f"{path}: is nested too deep"]
        pair = (id(schema), id(value), path)
        if pair not in self._found:
            self._found[pair] = self._checked(schema, value, path, depth)
        return self._found[pair]

    def _checked(self, schema: Any, value: Any, path: str, depth: int) -> list[str]:  # noqa: C901, PLR0912 - the keywords
        if schema is True:
            return []
        if schema is False:
            return [f"{path}: is unknown"]
        wrong: list[str] = []
        if "$ref" in schema:
            wrong += self.of(_referred(self._root, schema["$ref"]), value, path, depth + 1)
        kinds = schema.get("type")
        if kinds is not None and not any(_TYPES[one](value) for one in ([kinds] if isinstance(kinds, str) else kinds)):
            wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
            return [*wrong, f"{path}: must be of type {wanted}, not {_kind(value)}"]
        if "enum" in schema and not any(same(value, one) for one in schema["enum"]):
            wrong.append(f"{path}: must be one of {schema['enum']!r}")
        if "const" in schema and not same(value, schema["const"]):
            wrong.append(f"{path}: must be {schema['const']!r}")
        if isinstance(value, str):
            wrong += _text(schema, value, path)
        elif _number(value):
            wrong += _size(schema, value, path)
        elif isinstance(value, list | tuple):
            wrong += self._list(schema, value, path, depth)
        elif isinstance(value, Mapping):
            wrong += self._object(schema, value, path, depth)
        fits = [not self.of(one, value, path, depth + 1) for one in schema.get("anyOf", ())]
        if fits and not any(fits):
            wrong.append(f"{path}: fits none of the allowed forms")
        fits = [not self.of(one, value, path, depth + 1) for one in schema.get("oneOf", ())]
        if fits and sum(fits) != 1:
            wrong.append(f"{path}: must fit exactly one of the allowed forms")
        for one in schema.get("allOf", ()):
            wrong += self.of(one, value, path, depth + 1)
        if "not" in schema and not self.of(schema["not"], value, path, depth + 1):
            wrong.append(f"{path}: has a form that is not allowed")
        return wrong

    def _list(self, schema: dict[str, Any], value: Any, path: str, depth: int) -> list[str]:
        wrong = _bounds(schema, len(value), "Items", f"{path}: must have")
        first = schema.get("prefixItems", [])
        for at, one in enumerate(value):
            inner = first[at] if at < len(first) else schema.get("items", True)
            wrong += self.of(inner, one, f"{path}[{at}]", depth + 1)
        if schema.get("uniqueItems") and any(same(a, b) for at, a in enumerate(value) for b in value[:at]):
            wrong.append(f"{path}: must not have the same item twice")
        return wrong

    def _object(self, schema: dict[str, Any], value: Mapping[str, Any], path: str, depth: int) -> list[str]:
        wrong = _bounds(schema, len(value), "Properties", f"{path}: must have")
        wrong += [f"{path}.{name}: is missing" for name in schema.get("required", ()) if name not in value]
        own, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, one in value.items():
            if "propertyNames" in schema:
                wrong += self.of(schema["propertyNames"], name, f"the name {name!r} in {path}", depth + 1)
            matched = [inner for pattern, inner in patterns.items() if re.search(pattern, str(name))]
            if name in own:
                matched.append(own[name])
            for inner in matched or [schema.get("additionalProperties", True)]:
                wrong += self.of(inner, one, f"{path}.{name}", depth + 1)
        return wrong


def _kind(value: Any) -> str:
    return next((kind for kind, fits in _TYPES.items() if fits(value)), type(value).__name__)


def _bounds(schema: dict[str, Any], size: int, what: str, begin: str) -> list[str]:
    least, most, unit = schema.get(f"min{what}", 0), schema.get(f"max{what}"), what.lower()
    wrong = [f"{begin} at least {least} {unit}"] if size < least else []
    return [*wrong, f"{begin} at most {most} {unit}"] if most is not None and size > most else wrong


def _text(schema: dict[str, Any], value: str, path: str) -> list[str]:
    wrong = [
        text.replace("length", "characters") for text in _bounds(schema, len(value), "Length", f"{path}: must have")
    ]
    if "pattern" in schema and not re.search(schema["pattern"], value):
        wrong.append(f"{path}: must match {schema['pattern']!r}")
    return wrong


def _size(schema: dict[str, Any], value: float, path: str) -> list[str]:
    wrong: list[str] = []
    for name, fits, words in (
        ("minimum", lambda limit: value >= limit, "at least"),
        ("maximum", lambda limit: value <= limit, "at most"),
        ("exclusiveMinimum", lambda limit: value > limit, "greater than"),
        ("exclusiveMaximum", lambda limit: value < limit, "less than"),
        ("multipleOf", lambda limit: math.isclose(value / limit, round(value / limit), abs_tol=1e-9), "a multiple of"),
    ):
        if name in schema and not fits(schema[name]):
            wrong.append(f"{path}: must be {words} {schema[name]}")
    return wrong


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, and True does not equal 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)
