"""An index of texts in memory: which terms occur where, in what order, and who said them when.

It is derived data: filled from records and journals, never stored. A posting packs a text's number, the count of the
term in the text, and its count in the text together with the end of the text before it in the same session.
"""

from __future__ import annotations

from array import array
from collections import Counter
from datetime import date
from typing import Any, Final

from tenuto.capabilities.memory.search.dates import event_days, names_a_time
from tenuto.capabilities.memory.search.words import stem, stems, words

TAIL: Final = 30
"""Terms of the text before that count as context."""
ASKS, IS_QUESTION, HAS_TIME = 1, 2, 4
ROLES: Final = frozenset({"", "user", "assistant", "system", "developer", "tool", "function", "human", "ai"})
MAX_COUNT: Final = 255


class Index:
    """The texts of one scope or one thread, numbered from 0."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        """What each text is known by outside."""
        self.postings: dict[str, array[int]] = {}
        self.context_only: dict[str, int] = {}
        """In how many texts a term occurs in the context alone."""
        self.own_lengths: array[int] = array("I")
        self.context_lengths: array[int] = array("I")
        self.own_total = self.context_total = self.session_total = self.longest = 0
        self.previous: array[int] = array("i")
        self.next: array[int] = array("i")
        self.sessions: list[int] = []
        """The number of each text's session; -1: none."""
        self.session_postings: dict[str, dict[int, int]] = {}
        self.session_lengths: list[int] = []
        self.speakers: list[str] = []
        self.dates: list[date | None] = []
        self.events: dict[int, tuple[tuple[int, int], ...]] = {}
        self.flags = bytearray()
        self.names: dict[str, frozenset[str]] = {}
        """Speakers with a name, and the words of each name."""
        self._session_numbers: dict[str, int] = {}
        self._tails: dict[int, list[str]] = {}
        self._last: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.keys)

    def add(self, key: Any, text: str, *, speaker: str = "", session: str = "", when: date | None = None) -> int:
        """Add a text at the end of its session; return its number."""
        number = len(self.keys)
        place = self._session(session) if session else -1
        said = words(text)
        own = stems(said)
        counts: dict[str, int] = dict.fromkeys(own, 1)
        if len(counts) < len(own):
            counts = Counter(own)
        tail = self._tails.get(place) if place >= 0 else None
        if tail:
            around = Counter(tail)
            around.update(own)
            for term, count in around.items():
                mine = counts.get(term, 0)
                self._post(term, number << 16 | min(mine, MAX_COUNT) << 8 | min(count, MAX_COUNT), mine)
        else:
            postings, base = self.postings, number << 16
            for term, count in counts.items():
                found = postings.get(term)
                if found is None:
                    found = postings[term] = array("Q")
                found.append(base | (257 if count == 1 else min(count, MAX_COUNT) * 257))
        length = len(own) + (len(tail) if tail else 0)
        self.keys.append(key)
        self.own_lengths.append(len(own))
        self.context_lengths.append(length)
        self.longest = max(self.longest, length)
        self.own_total += len(own)
        self.context_total += length
        self.sessions.append(place)
        self.speakers.append(speaker)
        self.dates.append(when)
        if when is not None and (events := event_days(text, said, when)):
            self.events[number] = events
        self.flags.append(_flags(text, said))
        if place < 0:
            self.previous.append(-1)
            self.next.append(-1)
        else:
            self._link(number, place, own, counts)
        if speaker and speaker.lower() not in ROLES and speaker not in self.names:
            self.names[speaker] = frozenset(words(speaker))
        return number

    def _post(self, term: str, posting: int, own: int) -> None:
        found = self.postings.get(term)
        if found is None:
            found = self.postings[term] = array("Q")
        found.append(posting)
        if not own:
            self.context_only[term] = self.context_only.get(term, 0) + 1

    def _session(self, name: str) -> int:
        number = self._session_numbers.get(name)
        if number is None:
            number = self._session_numbers[name] = len(self.session_lengths)
            self.session_lengths.append(0)
        return number

    def _link(self, number: int, place: int, own: list[str], counts: dict[str, int]) -> None:
        before = self._last.get(place, -1)
        self.previous.append(before)
        self.next.append(-1)
        if before >= 0:
            self.next[before] = number
        self._last[place] = number
        self._tails[place] = own[-TAIL:]
        self.session_lengths[place] += len(own)
        self.session_total += len(own)
        for term, count in counts.items():
            spread = self.session_postings.setdefault(term, {})
            spread[place] = spread.get(place, 0) + count

    def name_terms(self) -> set[str]:
        """Return the terms of the speakers' names."""
        found = {word for name in self.names.values() for word in name}
        return found | {stem(word) for word in found}


def _flags(text: str, said: list[str]) -> int:
    flags = HAS_TIME if names_a_time(text, said) else 0
    if "?" in text:
        flags |= ASKS
        if text.rstrip().endswith("?"):
            flags |= IS_QUESTION
    return flags
