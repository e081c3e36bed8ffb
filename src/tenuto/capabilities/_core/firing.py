"""Do several things that are due; one that fails does not keep the others waiting. It owns no keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tenuto.errors import Closed, StorageUnavailable, TenutoError
from tenuto.kernel.work import Work

T = TypeVar("T")


def fire_each(items: Iterable[T], fire: Callable[[T], Work[int]]) -> Work[int]:
    """Fire each item and return how many were due; raise the first error, after the other items.

    An unavailable store is raised at once.
    """
    count = 0
    failed: TenutoError | None = None
    for one in items:
        try:
            count += yield from fire(one)
        except (Closed, StorageUnavailable):
            raise
        except TenutoError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return count
