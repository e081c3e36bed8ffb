"""Validation by JSON Schema, the part of it that describes data between agents. Pure functions.

A keyword that is not supported is an error, so that a schema never accepts what its author meant to reject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tenuto.errors import InvalidInput

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_ABOUT: Final = frozenset(
    {
        "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "format",
        "deprecated", "readOnly", "writeOnly",
    }
)  # fmt: skip
_LIMITS: Final[dict[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": ("number", lambda value, limit: value >= limit),
    "maximum": ("number", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", lambda value, limit: value < limit),
    "minLength": ("string", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", lambda value, limit: len(value) <= limit),
    "pattern": ("string", lambda value, limit: re.search(limit, value) is not None),
    "minItems": ("array", lambda value, limit: len(value) >= limit),
    "maxItems": ("array", lambda value, limit: len(value) <= limit),
}


def problem(value: Any, schema: Any, path: str, root: Any = None) -> str | None:  # noqa: C901, PLR0912 - one branch a keyword
    """Return what is wrong with a value, beginning with the path of the field; None if nothing is."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return None if schema else f"{path}: must not be given"
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"A JSON Schema must be a dict, not {type(schema).__name__}.")
    for word, rule in schema.items():
        wrong: str | None = None
        if word in _ABOUT or word in ("additionalProperties", "required", "properties", "items"):
            continue
        if word == "$ref":
            wrong = problem(value, _target(root, rule), path, root)
        elif word == "type":
            kinds = [rule] if isinstance(rule, str) else list(rule)
            if not any(_TYPES[kind](value) for kind in kinds):
                wrong = f"{path}: must be of type {' or '.join(kinds)}, not {_kind(value)}"
        elif word in ("enum", "const"):
            allowed = rule if word == "enum" else [rule]
            if not any(one == value and isinstance(one, bool) == isinstance(value, bool) for one in allowed):
                wrong = f"{path}: must be one of {allowed!r:.200}"
        elif word in _LIMITS:
            kind, holds = _LIMITS[word]
            if _TYPES[kind](value) and not holds(value, rule):
                wrong = f"{path}: does not satisfy {word} {rule!r}"
        elif word in ("anyOf", "oneOf"):
            failed = [problem(value, one, path, root) for one in rule]
            fitting = failed.count(None)
            if not fitting or (word == "oneOf" and fitting > 1):
                wrong = f"{path}: fits {fitting} of the {len(failed)} forms of {word}"
        elif word == "allOf":
            wrong = next((one for one in (problem(value, part, path, root) for part in rule) if one), None)
        elif word == "not":
            wrong = f"{path}: has the form that `not` forbids" if problem(value, rule, path, root) is None else None
        else:
            raise InvalidInput(f"The JSON Schema keyword {word!r} is not supported. Leave it out, or pass a type.")
        if wrong is not None:
            return wrong
    return _below(value, schema, path, root)


def _below(value: Any, schema: Mapping[str, Any], path: str, root: Any) -> str | None:
    """Return what is wrong with the fields or elements of a value."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{path}.{name}: is missing"
        for name, inner in value.items():
            rule = known.get(name, schema.get("additionalProperties", True))
            wrong = problem(inner, rule, f"{path}.{name}", root)
            if wrong is not None:
                return f"{path}.{name}: is unknown" if rule is False else wrong
    if isinstance(value, list | tuple) and "items" in schema:
        found = (problem(inner, schema["items"], f"{path}[{at}]", root) for at, inner in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    return None


def _target(root: Any, ref: str) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise InvalidInput(
            f"The JSON Schema reference {ref!r} is not supported. Refer to a part of the schema: #/$defs/…."
        )
    found = root
    try:
        for step in ref.removeprefix("#").split("/")[1:]:
            found = found[step.replace("~1", "/").replace("~0", "~")]
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"The JSON Schema has no part {ref!r}. Correct the reference.") from error
    return found


def _kind(value: Any) -> str:
    return next((kind for kind, holds in _TYPES.items() if holds(value)), type(value).__name__)
