"""Check histories of concurrent calls for linearizability.

A history is linearizable if every call seems to happen at one moment between its start and its end: some order of the
calls gives the same answers from a plain dict. `Recorded` records the calls and answers of one client; `verify`
searches for the order, and shows the calls for which there is none.

    clients = [Recorded(MyBackend(url), name) for name in ("one", "two", "three")]
    ...                                           # a thread for each of them reads and commits
    verify([call for client in clients for call in client.calls])

A commit without an answer may have happened at any time after its start, or not at all. A commit that is retried with
its request id and succeeds is one call, from the first attempt to the answer. Calls that share no key, even through
others, are checked separately. Keys must be new, and nothing may expire.

The search is Wing and Gong's algorithm with Lowe's cache of visited states. Versions keep it short: an answer fits in
few positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tenuto.errors import Conflict
from tenuto.testing._random_calls import random_calls
from tenuto.testing._recorded import NEVER, Call, Found, Recorded, read_out, shown, value_of

__all__ = ["Call", "NotLinearizable", "Recorded", "random_calls", "verify"]

Held: TypeAlias = tuple[int, bytes | None]
"""A key's version, and its value or None while it is absent."""
State: TypeAlias = tuple[Held, ...]
Seen: TypeAlias = Mapping[tuple[bytes, int], bytes | None]
"""The value of each key and version that any answer shows."""
Lanes: TypeAlias = list[list[Call]]
"""Sequences of calls that do not overlap; the calls of a lane are explained in order."""
Spot: TypeAlias = tuple[tuple[int, ...], State]
"""The number of explained calls of each lane, and the state of the store after them."""


class NotLinearizable(AssertionError):
    """No order of the calls explains their answers; the text shows the first call that fits nowhere, and its context."""


def verify(calls: Sequence[Call]) -> None:
    """Raise `NotLinearizable` unless some order of the calls explains every answer."""
    groups: list[tuple[set[bytes], list[Call]]] = []
    for call in calls:
        touched, together = call.keys, [call]
        for group in [group for group in groups if not group[0].isdisjoint(touched)]:
            groups.remove(group)
            touched, together = touched | group[0], group[1] + together
        groups.append((touched, together))
    for touched, together in groups:
        _verify({key: place for place, key in enumerate(sorted(touched))}, together)


def _verify(places: Mapping[bytes, int], calls: list[Call]) -> None:
    lanes = _lanes(calls)
    seen = {pair: value for call in calls for pair, value in call.values.items()}
    start: Spot = (0,) * len(lanes), ((0, None),) * len(places)
    tried, left = {start}, [start]
    ends: list[Spot] = []
    furthest = 0
    while left:
        spot = left.pop()
        waiting = [(n, lane[at]) for n, (lane, at) in enumerate(zip(lanes, spot[0], strict=True)) if at < len(lane)]
        horizon = min((call.ended for _, call in waiting), default=NEVER)
        if horizon == NEVER:
            return  # the remaining calls have no answer and need not have happened
        if horizon > furthest:
            furthest, ends = horizon, []
        if horizon == furthest:
            ends.append(spot)
        for n, call in waiting:
            # A call cannot precede one that ended before it started.
            held = _after(spot[1], call, places, seen) if call.began <= horizon else None
            if held is not None:
                further = (*spot[0][:n], spot[0][n] + 1, *spot[0][n + 1 :]), held
                if further not in tried:
                    tried.add(further)
                    left.append(further)
    raise NotLinearizable("\n".join(_report(places, lanes, ends, furthest)))


def _lanes(calls: list[Call]) -> Lanes:
    lanes: Lanes = []
    for call in sorted(calls, key=lambda call: call.began):
        for lane in lanes:
            if lane[-1].ended < call.began:
                lane.append(call)
                break
        else:
            lanes.append([call])
    return sorted(lanes, key=lambda lane: -lane[-1].ended)  # the search takes the last lane first: the answered calls


def _after(state: State, call: Call, places: Mapping[bytes, int], seen: Seen) -> State | None:
    """Return the state after a call, or None if its answer does not fit the state."""
    if isinstance(call.answer, Found):
        stored = tuple(state[places[key]] for key in call.read)
        answered = tuple((one.version, one.value) if one else None for one in call.answer.records)
        return state if answered == tuple(None if one[1] is None else one for one in stored) else None
    different = {key for key, version in call.checks if _live(state[places[key]]) != version}
    if isinstance(call.answer, Conflict):
        return state if different and different == set(call.answer.keys) else None
    if different:
        return None
    held, versions = list(state), []
    for write in call.writes:
        place = places[write[0]]
        version, value = held[place]
        new = value_of(write)
        if new is not None or value is not None:
            held[place] = version, value = version + 1, new
        if seen.get((write[0], version), value) != value:
            return None  # some answer shows another value at that version
        versions.append(version)
    return tuple(held) if call.answer is None or call.answer.versions == tuple(versions) else None


def _live(held: Held) -> int:
    return 0 if held[1] is None else held[0]


def _report(places: Mapping[bytes, int], lanes: Lanes, ends: list[Spot], furthest: int) -> Iterator[str]:
    """Yield the call that fits nowhere, the calls around it and related to it, and the possible states."""
    calls = sorted((call for lane in lanes for call in lane), key=lambda call: call.ended)
    last = next(call for call in calls if call.ended == furthest)
    stores = {tuple((key, state[places[key]]) for key in sorted(last.keys)) for _, state in ends}
    wanted = {(key, held[0]) for store in stores for key, held in store} | last.values.keys() | set(last.checks)
    related: set[Call] = set()
    for call in calls:
        near = call.began <= last.ended and call.ended >= last.began and not call.keys.isdisjoint(last.keys)
        refused = isinstance(call.answer, Conflict) and call.ended < last.began and not wanted.isdisjoint(call.checks)
        wrote = call.writes and not wanted.isdisjoint(call.values)
        if near or refused or wrote:
            related.add(call)
        if wrote:
            wanted -= call.values.keys()  # deleting an absent key again reports the same version
    yield "No order of these calls explains their answers (times in microseconds):"
    for call in sorted(related, key=lambda call: call.began):
        ended = "" if call.ended == NEVER else f"{(call.ended - last.began) / 1000:.0f}"
        mark = "   <- fits nowhere" if call is last else ""
        yield f"{(call.began - last.began) / 1000:10.0f} to {ended:>6}  {call.client}: {call}{mark}"
    for store in sorted(stores, key=str):
        held = [f"{shown(key)} {read_out(value)} at {version}" for key, (version, value) in store]
        yield f"At its latest possible position the store holds {', '.join(held)}."
