"""What memories report to hooks: the operation, how many, how long; neither texts nor queries."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from tenuto.capabilities._core.base import Context
from tenuto.hooks.events import MemoryUsed
from tenuto.kernel import correlation

P = ParamSpec("P")


class _Reporting(Protocol):
    _context: Context


S = TypeVar("S", bound=_Reporting)
R = TypeVar("R", bound=Sequence[Any])
Operation = Literal["search_memory", "create_memory", "update_memory", "delete_memory"]


def reported(context: Context, operation: Operation, count: int, began: float, record: str | None = None) -> None:
    """Report an operation that began at a time of `perf_counter`, if there are hooks."""
    if context.observed:
        context.report(MemoryUsed(operation, count, time.perf_counter() - began, record, correlation.current()))


def searching(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Report each search of a method."""

    @functools.wraps(method)
    def inner(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        began = time.perf_counter()
        found = method(self, *args, **kwargs)
        reported(self._context, "search_memory", len(found), began)
        return found

    return inner
