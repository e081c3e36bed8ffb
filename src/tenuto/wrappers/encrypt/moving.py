"""Load exported values into an encrypted tenant: `load` compares plain values, its backend compares sealed ones.

A value that is there already keeps its sealed bytes, so that loading it again is recognised. An entry is sealed as `Append`
sealed it: the bytes depend on nothing but key, stream and value. So what was trimmed links to what is left when it comes
back, also after a rotation: then an older data key is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tenuto.errors import Damaged
from tenuto.kernel.contract import Append, Backend, Entry, Put, Record, Write
from tenuto.wrappers.encrypt.keyring import Keyring
from tenuto.wrappers.encrypt.seal import RECORD, STREAM, DataKey

Opened = Callable[[bytes, bytes, bytes], "bytes | None"]
"""Return the content of sealed bytes by kind and place, None if its key was destroyed."""


class Given(NamedTuple):
    """One value to load: what it says before it is sealed, and the sealed bytes that are there already."""

    place: bytes
    content: bytes
    there: bytes | None
    own: DataKey | None
    """The key of the user whose value it is."""

    def sealed(self, kind: bytes, key: DataKey) -> bytes:
        """Return the bytes to load."""
        return self.there or (self.own or key).seal(kind, self.place, self.content)


class Loading:
    """One load, as plain values and as what the backend takes."""

    def __init__(  # noqa: PLR0913 - what the wrapper knows, and what it loads
        self, backend: Backend, ring: Keyring, place: Callable[[bytes], bytes], content: Callable[[bytes, bytes], bytes],
        opened: Opened, own: Callable[[Sequence[Write]], Sequence[DataKey | None]],
        records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]],
    ) -> None:  # fmt: skip
        self._backend, self._ring, self._opened = backend, ring, opened
        self._records = records
        self._streams = [(place(stream), given) for stream, given in entries.items()]
        writes: list[Write] = [Put(one.key, one.value) for one in records]
        writes += [Append(stream, one.value) for stream, given in entries.items() for one in given]
        keys = iter(own(writes))
        there = backend.read([place(one.key) for one in records]) if records else []
        self._values = [
            self._given(RECORD, place(one.key), content(one.key, one.value), found and found.value, next(keys))
            for one, found in zip(records, there, strict=True)
        ]
        self._entries: list[list[Given]] = []
        for (where, given), stream in zip(self._streams, entries, strict=True):
            found = {e.number: e for e in backend.entries(where, after=given[0].number - 1, limit=len(given))}
            stored = [None if (e := found.get(one.number)) is None or e.forgotten else e.value for one in given]
            self._entries.append(
                [
                    self._given(STREAM, where, content(stream, one.value), known, next(keys))
                    for one, known in zip(given, stored, strict=True)
                ]
            )

    def _given(self, kind: bytes, place: bytes, content: bytes, there: bytes | None, own: DataKey | None) -> Given:
        same = there is not None and self._opened(kind, place, there) == content
        return Given(place, content, there if same else None, own)

    def carry_out(self) -> int:
        """Load, with the active data key or an older one that links the entries; return how many were new."""
        by_age = [*self._ring.by_id.values()][::-1]
        for key in by_age[:-1]:
            try:
                return self._loaded([[key] * len(given) for given in self._entries])
            except Damaged:
                continue
        try:
            return self._loaded([[by_age[-1]] * len(given) for given in self._entries])
        except Damaged:
            if len(by_age) == 1:
                raise
        return self._one_by_one(by_age)

    def _one_by_one(self, by_age: list[DataKey]) -> int:
        """Load entries from the last one backwards, each with the key that links it: a rotation was among them."""
        count = 0
        for number, (_, given) in enumerate(self._streams):
            for at in reversed(range(len(given))):
                for key in by_age:
                    try:
                        count += self._loaded([[key]], (number, slice(at, at + 1)))
                    except Damaged:
                        if key is by_age[-1]:
                            raise
                    else:
                        break
        return count + self._loaded([], (0, slice(0, 0)))

    def _loaded(self, keys: Sequence[Sequence[DataKey]], part: tuple[int, slice] | None = None) -> int:
        chosen = list(zip(self._streams, self._entries, strict=True))
        if part is not None:
            ((place, given), values) = chosen[part[0]] if chosen else ((b"", ()), [])
            chosen = [((place, given[part[1]]), values[part[1]])] if keys else []
        entries = {
            place: [
                one if one.forgotten else one._replace(value=value.sealed(STREAM, key))
                for one, value, key in zip(given, values, own, strict=True)
            ]
            for ((place, given), values), own in zip(chosen, keys, strict=True)
        }
        active = self._ring.active
        with_records = part is None or not keys
        records = [
            Record(value.place, value.sealed(RECORD, active), *one[2:])
            for one, value in zip(self._records, self._values, strict=True)
        ]
        return self._backend.load(records if with_records else [], entries) if entries or with_records else 0
