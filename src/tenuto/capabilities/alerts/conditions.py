"""Conditions such as `lookup.p95 > 100ms for 5m`, parsed and compared. Pure functions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from tenuto.capabilities.alerts.figures import FIGURES
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import seconds

_FORM: Final = re.compile(
    r"\s*([a-z_.0-9]+)\s*(>=|<=|>|<|==)\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z%$]*)\s*(?:for\s+(.+?))?\s*"
)
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_UNITS: Final = {
    "": 1.0, "$": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0,
    "B": 1.0, "KB": 1024.0, "MB": 1024.0**2, "GB": 1024.0**3,
}  # fmt: skip


class Condition(NamedTuple):
    """A condition on a figure."""

    figure: str
    compare: str
    limit: float
    """In seconds, bytes or a number."""
    seconds: float
    """For how long it must hold."""

    def holds(self, value: float) -> bool:
        """Return whether the condition is true of a value."""
        return _COMPARE[self.compare](value, self.limit)


def condition_of(when: str) -> Condition:
    """Return the condition of a text; `InvalidInput` that names the figures."""
    found = _FORM.fullmatch(when) if isinstance(when, str) else None
    if found is None or found[4] not in _UNITS:
        raise InvalidInput(f'A condition is like "lookup.p95 > 100ms for 5m", not {when!r:.80}. Nothing was stored.')
    if found[1] not in FIGURES:
        raise InvalidInput(f"There is no figure {found[1]!r}; nothing was stored. These exist: {', '.join(FIGURES)}.")
    return Condition(
        found[1], found[2], float(found[3]) * _UNITS[found[4]], seconds(found[5], "time") if found[5] else 0.0
    )
