"""One table of what can be done to a store from outside; the command line renders it, and servers will.

An operation is a function of a client: what it takes by position is what it is about, what it takes by name are
options, its docstring says what it does, its annotation what it returns. So its help, its arguments, its JSON and
the schema of that JSON are one thing, written once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

from tenuto.client import Tenuto

Value = Annotated[Any, "JSON, or plain text"]


class Parameter(NamedTuple):
    """One thing that an operation takes."""

    name: str
    kind: Any
    help: str
    required: bool
    default: Any
    positional: bool


class Done(NamedTuple):
    """What an operation that changes something says: whether there was something to change."""

    changed: bool


class Stored(NamedTuple):
    """What a write says: the version it made."""

    version: int


class Number(NamedTuple):
    """How many."""

    number: int


@dataclass(frozen=True)
class Operation:
    """One thing that can be done."""

    name: str
    """Its words: "runs list"."""
    call: Callable[..., Any]
    help: str
    parameters: tuple[Parameter, ...]
    returns: Any
    columns: tuple[str, ...]
    """What a table of its rows shows; all else is in the JSON."""
    writes: bool
    asks: str | None
    """What is asked before it is done, if it cannot be undone."""

    @property
    def streams(self) -> bool:
        """Tell whether what it returns comes bit by bit."""
        return typing.get_origin(self.returns) in (Iterator, typing.get_origin(Iterator[Any]))

    @property
    def item(self) -> Any:
        """Return the type of one of the things that it returns."""
        return typing.get_args(self.returns)[0] if self.streams or self.rows else self.returns

    @property
    def rows(self) -> bool:
        """Tell whether it returns a list of things."""
        return typing.get_origin(self.returns) is list


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, *columns: str, writes: bool = False, asks: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table."""

    def put(call: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(call, include_extras=True)
        found = []
        for one in list(inspect.signature(call).parameters.values())[1:]:
            kind, text = hints[one.name], ""
            if typing.get_origin(kind) is Annotated:
                kind, text = typing.get_args(kind)
            required = one.default is inspect.Parameter.empty
            default = None if required else one.default
            positional = one.kind is not inspect.Parameter.KEYWORD_ONLY
            found.append(Parameter(one.name, kind, text, required, default, positional))
        OPERATIONS[name] = Operation(
            name, call, inspect.getdoc(call) or "", tuple(found), hints["return"], columns, writes or bool(asks), asks
        )
        return call

    return put


def groups() -> Mapping[str, list[Operation]]:
    """Return the operations by their first word; those of one word stand below ""."""
    found: dict[str, list[Operation]] = {}
    for one in OPERATIONS.values():
        first, _, rest = one.name.partition(" ")
        found.setdefault(first if rest else "", []).append(one)
    return found


def called(operation: Operation, agent: Tenuto, given: Mapping[str, Any]) -> Any:
    """Do it."""
    by_position = [given[one.name] for one in operation.parameters if one.positional]
    by_name = {one.name: given[one.name] for one in operation.parameters if not one.positional}
    found = operation.call(agent, *by_position, **by_name)
    return found if operation.streams or not isinstance(found, Iterable) or not operation.rows else list(found)
