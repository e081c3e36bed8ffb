"""The table of operations on a store. The command line and the HTTP server render it.

An operation is a function of a client. Positional parameters become arguments, keyword parameters become options,
the docstring becomes the help text, and the return annotation becomes the JSON Schema. Each is written once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, NotFound

T = TypeVar("T")
Value = Annotated[Any, "JSON, or plain text"]


class Parameter(NamedTuple):
    """A parameter of an operation."""

    name: str
    kind: Any
    help: str
    required: bool
    default: Any
    positional: bool


class Done(NamedTuple):
    """The result of a change: whether anything was changed."""

    changed: bool


class Stored(NamedTuple):
    """The result of a write: the new version."""

    version: int


class Number(NamedTuple):
    """The result of a count."""

    number: int


@dataclass(frozen=True)
class Operation:
    """An operation on a store."""

    name: str
    """The command words: "runs list"."""
    call: Callable[..., Any]
    help: str
    parameters: tuple[Parameter, ...]
    returns: Any
    columns: tuple[str, ...]
    """The columns of the printed table; the JSON has all fields."""
    writes: bool
    asks: str | None
    """The confirmation question, if the operation cannot be undone."""
    local: bool = False
    """True if it uses files, the network or the environment of this machine, so that no server offers it."""

    @property
    def streams(self) -> bool:
        """Return whether the result is a stream."""
        return typing.get_origin(self.returns) in (Iterator, typing.get_origin(Iterator[Any]))

    @property
    def item(self) -> Any:
        """Return the type of one item of the result."""
        return typing.get_args(self.returns)[0] if self.streams or self.rows else self.returns

    @property
    def rows(self) -> bool:
        """Return whether the result is a list."""
        return typing.get_origin(self.returns) is list


OPERATIONS: dict[str, Operation] = {}
_FILES = ("file", "files", "folder", "path", "paths", "pattern")
"""Names of parameters that are files of this machine: such an operation is always local."""


def described(
    call: Callable[..., Any],
    name: str,
    columns: Sequence[str] = (),
    *,
    writes: bool = False,
    asks: str | None = None,
    local: bool = False,
) -> Operation:
    """Return a function as an operation: its parameters, help text and result as the function itself declares them."""
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
    files = local or any(one.name in _FILES for one in found)
    about = inspect.getdoc(call) or ""
    changes = writes or bool(asks)
    return Operation(name, call, about, tuple(found), hints["return"], tuple(columns), changes, asks, files)


def operation(
    name: str, *columns: str, writes: bool = False, asks: str | None = None, local: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an operation."""

    def put(call: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS[name] = described(call, name, columns, writes=writes, asks=asks, local=local)
        return call

    return put


class Rows(list[T]):
    """One page of a list, and how many rows come after it."""

    more = 0


def page(rows: Sequence[T], cursor: Callable[[T], str], after: str | None, limit: int) -> Rows[T]:
    """Return up to `limit` rows, from the row after the one whose cursor is `after`; `NotFound` if none has it."""
    if limit < 1:
        raise InvalidInput(f"limit must be at least 1, not {limit}.")
    first = 0
    if after is not None:
        first = next((at + 1 for at, row in enumerate(rows) if cursor(row) == after), 0)
        if not first:
            raise NotFound(f"There is no {after!r} in this list to start after.")
    found = Rows(rows[first : first + limit])
    found.more = len(rows) - first - len(found)
    return found


def time_of(text: str) -> datetime:
    """Return the time in an argument, in UTC unless it names a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a date such as 2026-05-01, or a time such as 2026-05-01T09:30Z.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def groups() -> Mapping[str, list[Operation]]:
    """Return the operations grouped by their first word; those of one word are under ""."""
    found: dict[str, list[Operation]] = {}
    for one in OPERATIONS.values():
        first, _, rest = one.name.partition(" ")
        found.setdefault(first if rest else "", []).append(one)
    return found


def called(operation: Operation, agent: Tenuto, given: Mapping[str, Any]) -> Any:
    """Call an operation with named arguments; return its result."""
    by_position = [given[one.name] for one in operation.parameters if one.positional]
    by_name = {one.name: given[one.name] for one in operation.parameters if not one.positional}
    found = operation.call(agent, *by_position, **by_name)
    is_given = operation.streams or not operation.rows or isinstance(found, list) or not isinstance(found, Iterable)
    return found if is_given else list(found)
