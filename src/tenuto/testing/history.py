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

Scans, entries and lists of streams are calls like any other: what they return must be what was stored at one moment.

`_search` looks for the order. Versions keep it short: an answer fits in few positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tenuto.errors import Conflict
from tenuto.kernel.contract import Append, CheckEnd, Commit, Entry, Record
from tenuto.testing._random_calls import random_calls
from tenuto.testing._recorded import Call, Found, Look, Page, Recorded, read_out, shown, value_of
from tenuto.testing._search import NEVER, Stuck, search

__all__ = ["Call", "NotLinearizable", "Recorded", "random_calls", "verify"]

Held: TypeAlias = tuple[int, bytes | None]
"""A key's version, and its value or None while it is absent."""
State: TypeAlias = tuple[Held, ...]
Seen: TypeAlias = Mapping[tuple[bytes, int], bytes | None]
"""The value of each key and version that any answer shows."""


class NotLinearizable(AssertionError):
    """No order of the calls explains their answers; the text shows the first call that fits nowhere, and its context."""


def verify(calls: Sequence[Call]) -> None:
    """Raise `NotLinearizable` unless some order of the calls explains every answer."""
    groups: list[tuple[set[bytes], list[Call]]] = []
    every = {key for call in calls for key in call.keys}
    for call in calls:
        touched, together = _touched(call, every), [call]
        for group in [group for group in groups if not group[0].isdisjoint(touched)]:
            groups.remove(group)
            touched, together = touched | group[0], group[1] + together
        groups.append((touched, together))
    for touched, together in groups:
        _verify({key: place for place, key in enumerate(sorted(touched))}, together)


def _verify(places: Mapping[bytes, int], calls: list[Call]) -> None:
    seen = {pair: value for call in calls for pair, value in call.values.items()}
    model = _Model(places, _streams(calls), seen)
    start: State = ((0, None),) * len(places)
    stuck = search(calls, start, model.after)
    if stuck is not None:
        raise NotLinearizable("\n".join(_report(places, calls, stuck)))


def _touched(call: Call, every: Iterable[bytes]) -> set[bytes]:
    """Return the keys of a call; those of a scan are all below its prefix, found or not."""
    below = call.look.key if call.look is not None and call.look.verb != "entries" else None
    return call.keys if below is None else call.keys | {key for key in every if key.startswith(below)}


def _streams(calls: Sequence[Call]) -> frozenset[bytes]:
    """Return the keys that are streams: all others are records."""
    found = {write[0] for call in calls for write in call.writes if isinstance(write, Append)}
    found |= {check[0] for call in calls for check in call.checks if isinstance(check, CheckEnd)}
    return frozenset(found | {call.look.key for call in calls if call.look and call.look.verb == "entries"})


class _Model(NamedTuple):
    """What a store must answer."""

    places: Mapping[bytes, int]
    streams: frozenset[bytes]
    seen: Seen

    def after(self, state: State, call: Call) -> State | None:
        """Return the state after a call, or None if its answer does not fit the state."""
        places, seen = self.places, self.seen
        if call.look is not None:
            return state if isinstance(call.answer, Page) and self._fits(state, call.look, call.answer) else None
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
        return tuple(held) if not isinstance(call.answer, Commit) or call.answer.versions == tuple(versions) else None

    def _fits(self, state: State, look: Look, page: Page) -> bool:
        """Return whether a page is what the store holds in this state."""
        if look.verb == "entries":
            last = state[self.places[look.key]][0]
            entries = [(number, self.seen.get((look.key, number))) for number in range(1, last + 1)]
            return _cut(entries, look) == [(one.number, one.value) for one in page.items if isinstance(one, Entry)]
        below = sorted(key for key in self.places if key.startswith(look.key))
        if look.verb == "streams":
            return _cut([(key,) for key in below if key in self.streams and state[self.places[key]][0]], look) == [
                (one,) for one in page.items
            ]
        held = [(key, *state[self.places[key]]) for key in below if key not in self.streams]
        return _cut([one for one in held if one[2] is not None], look) == [
            (one.key, one.version, one.value) for one in page.items if isinstance(one, Record)
        ]


def _cut(items: list[Any], look: Look) -> list[Any]:
    """Return the page of items, whose first part is what `after` names, that a look asks for."""
    ordered = items[::-1] if look.reverse else items
    if look.after is not None:
        ordered = [one for one in ordered if (one[0] < look.after if look.reverse else one[0] > look.after)]
    return ordered[: look.limit]


def _live(held: Held) -> int:
    return 0 if held[1] is None else held[0]


def _report(places: Mapping[bytes, int], calls: Sequence[Call], stuck: Stuck[Call, State]) -> Iterator[str]:
    """Yield the call that fits nowhere, the calls around it and related to it, and the possible states."""
    calls = sorted(calls, key=lambda call: call.ended)
    last = stuck.call
    stores = {tuple((key, state[places[key]]) for key in sorted(_touched(last, places))) for state in stuck.states}
    wanted = {(key, held[0]) for store in stores for key, held in store} | last.values.keys() | set(last.checks)
    related: set[Call] = set()
    for call in calls:
        near = (
            call.began <= last.ended and call.ended >= last.began and not call.keys.isdisjoint(_touched(last, places))
        )
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
