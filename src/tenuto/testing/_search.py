"""Search for an order of concurrent calls that explains their answers, whatever the calls are.

The algorithm is Wing and Gong's with Lowe's cache of visited states: calls are taken one after the other, each only if it
could have happened before all others that are left, and only if its answer fits the state so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

NEVER: Final = 1 << 63
"""The end time of a call without an answer."""


class Overlapping(Protocol):
    """A call with a start and an end."""

    @property
    def began(self) -> int:
        """Return the start, in nanoseconds of a clock that all callers share."""
        ...

    @property
    def ended(self) -> int:
        """Return the end; `NEVER` for a call without an answer, which need not have happened."""
        ...


C = TypeVar("C", bound=Overlapping)
S = TypeVar("S", bound=Hashable)


class Stuck(NamedTuple, Generic[C, S]):
    """The call that no order can explain, and the states in which it could have met the store."""

    call: C
    states: list[S]


def search(calls: Sequence[C], start: S, after: Callable[[S, C], S | None]) -> Stuck[C, S] | None:
    """Return None if some order of the calls explains every answer, else where the search was stuck.

    `after(state, call)` returns the state after a call, or None if its answer does not fit.
    """
    lanes = _lanes(calls)
    first = (0,) * len(lanes), start
    tried, left = {first}, [first]
    ends: list[S] = []
    furthest = 0
    while left:
        taken, state = left.pop()
        waiting = [(n, lane[at]) for n, (lane, at) in enumerate(zip(lanes, taken, strict=True)) if at < len(lane)]
        horizon = min((call.ended for _, call in waiting), default=NEVER)
        if horizon == NEVER:
            return None  # the remaining calls have no answer and need not have happened
        if horizon > furthest:
            furthest, ends = horizon, []
        if horizon == furthest:
            ends.append(state)
        for n, call in waiting:
            # A call cannot precede one that ended before it started.
            reached = after(state, call) if call.began <= horizon else None
            if reached is not None:
                further = (*taken[:n], taken[n] + 1, *taken[n + 1 :]), reached
                if further not in tried:
                    tried.add(further)
                    left.append(further)
    return Stuck(next(call for call in calls if call.ended == furthest), ends)


def _lanes(calls: Sequence[C]) -> list[list[C]]:
    """Return sequences of calls that do not overlap; the calls of a lane are explained in order."""
    lanes: list[list[C]] = []
    for call in sorted(calls, key=lambda call: call.began):
        for lane in lanes:
            if lane[-1].ended < call.began:
                lane.append(call)
                break
        else:
            lanes.append([call])
    return sorted(lanes, key=lambda lane: -lane[-1].ended)  # the search takes the last lane first: the answered calls
