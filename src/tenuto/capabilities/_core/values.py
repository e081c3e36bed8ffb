"""Conversion of objects to plain data that can be stored. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from tenuto.errors import NotStorable
from tenuto.kernel import codec


class _Missing:
    """What an argument is that was not given. Signatures in `help()` show it as three dots."""

    def __repr__(self) -> str:
        """Return what a signature shows."""
        return "..."


MISSING: Final[Any] = _Missing()


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return a value with each object that has no stored form replaced by a dict (see `to_dict`)."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth > codec.MAX_DEPTH:
        raise NotStorable(f"{path:.80}… is nested deeper than {codec.MAX_DEPTH} levels. Flatten it.", path)
    if kind is list or kind is tuple:
        return kind(plain(inner, f"{path}[{at}]", depth + 1) for at, inner in enumerate(value))
    if kind is dict:
        return {key: plain(inner, _below(path, key), depth + 1) for key, inner in value.items()}
    try:
        codec.encode(value)
    except NotStorable:
        return plain(to_dict(value, path), path, depth + 1)
    return value


_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
NO_OBJECTS: Final = _LEAVES | {dict, list, tuple}


def to_dict(value: Any, path: str) -> Any:
    """Return an object as a dict: by `to_dict()`, `model_dump()`, or its fields; an enum as its value.

    Raise `NotStorable` for any other type.
    """
    kind = type(value)
    try:
        if isinstance(value, Enum):
            return value.value
        for method in ("to_dict", "model_dump"):
            if callable(getattr(kind, method, None)):
                return getattr(value, method)()
        if dataclasses.is_dataclass(kind):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
        if hasattr(kind, "__struct_fields__"):
            return _struct(value)
        if isinstance(value, Mapping):
            return dict(value)
    except Exception as error:
        raise NotStorable(f"{path} of type {_named(kind)} cannot be converted to a dict: {error}.", path) from error
    raise NotStorable(
        f"{path} is of type {_named(kind)}, which cannot be stored. "
        "Pass plain data, or register the type with tenuto.register.",
        path,
    )


def _struct(value: Any) -> dict[str, Any]:
    names = getattr(value, "__struct_encode_fields__", value.__struct_fields__)  # the names of its wire form
    given = {name: getattr(value, own) for name, own in zip(names, value.__struct_fields__, strict=True)}
    config = getattr(value, "__struct_config__", None)
    return given if config is None or config.tag is None else {config.tag_field: config.tag, **given}


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r:.80}]"
