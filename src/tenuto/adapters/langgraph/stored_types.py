"""The types of LangChain and LangGraph in tenuto's closed format.

The state of a graph consists of plain data and registered types. This module registers the types of LangChain and
LangGraph; a program adds its own with `allow`. Reading imports and calls only registered types; any other type is
`UnknownType`.

A message is stored as its fields, without those at their default. Reading skips pydantic's validation (20 us a
message) if validation would change no field.
"""

from __future__ import annotations

import pathlib
import re
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timezone
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Final
from zoneinfo import ZoneInfo

from langchain_core import messages as lc
from langchain_core.documents import Document
from langchain_core.messages.base import TextAccessor
from langchain_core.messages.modifier import RemoveMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from tenuto.errors import InvalidInput
from tenuto.kernel import codec

_MESSAGES: Final[tuple[type[Any], ...]] = (
    lc.HumanMessage,
    lc.AIMessage,
    lc.SystemMessage,
    lc.ToolMessage,
    lc.FunctionMessage,
    lc.ChatMessage,
    RemoveMessage,
)
_CHUNKS: Final[tuple[type[Any], ...]] = (
    lc.HumanMessageChunk,
    lc.AIMessageChunk,
    lc.SystemMessageChunk,
    lc.ToolMessageChunk,
    lc.FunctionMessageChunk,
    lc.ChatMessageChunk,
)
_KNOWN: Final = frozenset(_MESSAGES)


# -- messages --------------------------------------------------------------------------------------


def _is_content(value: Any) -> bool:
    return type(value) is str or (type(value) is list and all(type(part) in (str, dict) for part in value))


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def _is_dicts(value: Any) -> bool:
    return type(value) is list and all(type(part) is dict for part in value)


def _is_name(value: Any) -> bool:
    return value is None or type(value) is str


def _is_text(value: Any) -> bool:
    return type(value) is str


_SOUND: Final[dict[str, Callable[[Any], bool]]] = {
    "content": _is_content,
    "additional_kwargs": _is_dict,
    "response_metadata": _is_dict,
    "name": _is_name,
    "id": _is_name,
    "tool_calls": _is_dicts,
    "invalid_tool_calls": _is_dicts,
    "usage_metadata": lambda value: value is None or type(value) is dict,
    "tool_call_id": _is_text,
    "artifact": lambda _: True,
    "status": lambda value: value in ("success", "error"),
    "role": _is_text,
}
"""For each field, whether validation would leave a value unchanged; any other value is validated."""


class _Kind:
    """The stored form of one class of messages."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        fields = cls.model_fields
        self.required = frozenset(name for name, field in fields.items() if field.is_required())
        self.made: list[tuple[str, Callable[[], Any]]] = [
            (name, field.default_factory) for name, field in fields.items() if field.default_factory
        ]
        self.fixed = {
            name: field.default
            for name, field in fields.items()
            if name not in self.required and not field.default_factory
        }

    def lower(self, message: Any) -> list[Any]:
        """Return the fields that are not at their default, and the extra fields."""
        own = dict(message.__dict__)
        for name, default in self.fixed.items():
            if own.get(name, self) is default or (type(own.get(name)) is str and own.get(name) == default):
                del own[name]
        for name, make in self.made:
            value = own.get(name, self)
            if type(value) is make and not value:
                del own[name]
        return [own, message.__pydantic_extra__ or None]

    def lift(self, stored: Any) -> Any:
        """Return the message of stored fields, validated only if needed."""
        given, extra = stored
        sound = _SOUND
        if not (self.required <= given.keys() and (extra is None or type(extra) is dict)):
            return self.cls.model_validate({**given, **(extra or {})})
        for name, value in given.items():
            if name not in sound or not sound[name](value):
                return self.cls.model_validate({**given, **(extra or {})})
        own = {**self.fixed, **given}
        for name, make in self.made:
            if name not in given:
                own[name] = make()
        message: Any = object.__new__(self.cls)
        put = object.__setattr__
        put(message, "__dict__", own)
        put(message, "__pydantic_fields_set__", set(given))
        put(message, "__pydantic_extra__", extra or {})
        put(message, "__pydantic_private__", None)
        return message


def are_messages(values: list[Any]) -> bool:
    """Return whether a list holds only messages of the classes that `Fingerprints` supports."""
    return _KNOWN.issuperset(map(type, values))


# -- everything else ---------------------------------------------------------------------------------


def _slots(cls: type[Any], *names: str) -> None:
    codec.register(
        cls,
        name=f"langgraph.{cls.__name__}",
        encode=lambda value: [getattr(value, name) for name in names],
        decode=lambda stored: cls(**dict(zip(names, stored, strict=True))),
    )


def _text(cls: type[Any], name: str | None = None) -> None:
    codec.register(cls, name=f"python.{name or cls.__name__}", encode=str, decode=cls)


def _register() -> None:
    for cls in _MESSAGES:
        kind = _Kind(cls)
        codec.register(cls, name=f"langchain.{cls.__name__}", encode=kind.lower, decode=kind.lift)
    others: tuple[type[Any], ...] = (*_CHUNKS, Document)
    for other in others:
        codec.register(other, name=f"langchain.{other.__name__}")
    codec.register(
        Send,
        name="langgraph.Send",
        encode=lambda send: [send.node, send.arg, send.timeout],
        decode=lambda stored: Send(stored[0], stored[1], timeout=stored[2]),
    )
    codec.register(
        Interrupt,
        name="langgraph.Interrupt",
        # A schema that is a class is not data; the graph supplies it again.
        encode=lambda one: [one.value, one.id, one.response_schema if type(one.response_schema) is dict else None],
        decode=lambda stored: Interrupt(stored[0], id=stored[1], response_schema=stored[2]),
    )
    codec.register(
        _DeltaSnapshot,
        name="langgraph.DeltaSnapshot",
        encode=lambda one: [one.value],
        decode=lambda s: _DeltaSnapshot(*s),
    )
    _slots(Command, "graph", "update", "resume", "goto")
    _slots(Overwrite, "value", "type")
    _slots(TimeoutPolicy, "run_timeout", "idle_timeout", "refresh_on")
    _slots(Item, "value", "key", "namespace", "created_at", "updated_at")
    codec.register(deque, name="python.deque", encode=lambda d: [list(d), d.maxlen], decode=lambda s: deque(*s))
    codec.register(
        re.Pattern, name="python.Pattern", encode=lambda p: [p.pattern, p.flags], decode=lambda s: re.compile(*s)
    )
    codec.register(
        timezone, name="python.timezone", encode=lambda z: [z.utcoffset(None)], decode=lambda stored: timezone(*stored)
    )
    _text(ZoneInfo)
    _text(TextAccessor)
    _text(type(pathlib.Path()), "Path")
    for address in (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network):
        _text(address)


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a compiled pattern."""
    return re.compile(pattern, flags)


def allow(types: Iterable[type[Any]]) -> None:
    """Register a program's own types: pydantic models, dataclasses, enums, structs, named tuples."""
    for cls in types:
        if not isinstance(cls, type):
            raise InvalidInput(f"`allow` takes classes, not {cls!r}. Pass the class itself.")
        if codec.is_registered(cls):
            continue
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            codec.register(cls, encode=list, decode=lambda stored, cls=cls: cls(*stored))  # type: ignore[misc]
        else:
            codec.register(cls)


_register()
