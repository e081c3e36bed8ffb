"""Values of application types that this process has not registered.

Reading one raises `UnknownType`, except inside `allowed()`: there it is an `Unregistered`, with the name of the type
and its stored data. The command line shows stores of programs whose types it does not have. An `Unregistered` is
encoded to the bytes that it was decoded from, so copying a value loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from tenuto.errors import UnknownType

_allowed: Final = ContextVar("tenuto_unregistered_allowed", default=False)


class Unregistered:
    """A stored value of an application type that is not registered here."""

    __slots__ = ("data", "name")

    def __init__(self, name: str, data: Any) -> None:
        self.name = name
        self.data = data

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same type and data."""
        return isinstance(other, Unregistered) and (self.name, self.data) == (other.name, other.data)

    def __hash__(self) -> int:
        """Hash the name alone: the data may be a dict, and the value a member of a set."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Show type and data: `Invoice {'number': 3}`."""
        return f"{self.name} {self.data!r}"


@contextmanager
def allowed() -> Iterator[None]:
    """Decode unregistered types as `Unregistered` in this context instead of raising `UnknownType`."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def unregistered(name: str, data: Any) -> Unregistered:
    """Return the value if this context allows it; else raise `UnknownType`."""
    return Unregistered(name, data) if _allowed.get() else _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise UnknownType(
        f"A stored value contains the application type {name!r}, which is not registered in this process. "
        "Call tenuto.register on its class before reading."
    )
