"""The search index of a user's or the tenant's memories, in this process.

It is filled from the records once, and then follows the journal: each recall reads the lines that are new. A line about
forgotten memories makes it start over, so that nothing of them stays. It is never the truth: what a search finds is read
from the records before it is returned.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from datetime import date
from itertools import filterfalse, islice
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core import journal
from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.memory.records import FORGOT, Memory, home_of, items_of
from tenuto.capabilities.memory.search.index import Index
from tenuto.capabilities.memory.search.ranking import Allowed
from tenuto.capabilities.memory.search.vectors import Vectors
from tenuto.capabilities.memory.search.words import meet
from tenuto.kernel import codec

_PAGE: Final = 1_000
_MOST: Final = 1_000
"""Users whose indexes stay in memory; the least recently used one goes first."""
EVER: Final = float("inf")


Facts = tuple[str, str | None, int, float, float, float, float, float]
"""What is known of a memory besides its text, for filters: kind, about, trust, and when it was learned, begins and ends
to be true, was superseded, and expires. A plain tuple, because the garbage collector stops looking at those."""
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_DAY: Final = 86_400


class Wanted(NamedTuple):
    """Which memories a search may find."""

    known: float
    """Only what was known then; infinity for now, since the clocks of other writers may be ahead."""
    true: float
    """Only what was true then."""
    now: float
    kind: str | None = None
    about: str | None = None
    min_trust: int = 0


class ScopeIndex:
    """The index of one scope. Use it while holding its lock."""

    def __init__(self, context: Context, user: str | None) -> None:
        self.user = user
        self.home = home_of(user)
        self.lock = threading.Lock()
        self._context = context
        self._start_over()

    def _start_over(self) -> None:
        self.index = Index()
        self.facts: list[Facts] = []
        self.numbers: dict[str, int] = {}
        self._limited: set[int] = set()
        """Memories that do not hold at every time."""
        self.vectors = Vectors()
        self.vectors_read = 0
        self._read = -1
        """The last journal line that was read; -1: nothing is loaded."""

    def catch_up(self) -> None:
        """Read what is new."""
        try:
            self._catch_up()
        except BaseException:  # an interrupt may have left a text half added
            self._start_over()
            raise

    def _catch_up(self) -> None:
        kernel = self._context.kernel
        if self._read < 0:
            self._load()
        while page := kernel.entries(self.home, after=self._read, limit=_PAGE):
            for entry in page:
                line = None if entry.forgotten else codec.decode(entry.value)
                if line is None or line[2] == FORGOT:
                    self._start_over()
                    self._load()
                    return
                for fields in line[3]:
                    self._fold(fields)
            self._read = page[-1].number

    def _load(self) -> None:
        # The number first: lines that come during the scan are read again, which changes nothing.
        self._read = journal.last_number(self._context, self.home)
        records = scan_all(self._context.kernel, items_of(self.home))
        while page := [codec.decode(record.value)[3][0] for record in islice(records, _PAGE)]:
            meet("\n".join(fields[1] for fields in page))
            for fields in page:
                self._fold(fields)

    def _fold(self, fields: list[Any]) -> None:
        """Add a memory, or take note of what changed."""
        memory_id, text, kind, _, about, _, source, trust, begins, ends, _, expires = fields[:12]
        learned, over = fields[15], fields[19]
        known = self.numbers.get(memory_id)
        if begins is None and ends is None and over is None and expires is None:
            facts: Facts = (kind, about, trust, learned, -EVER, EVER, EVER, EVER)
        else:
            facts = (
                kind,
                about,
                trust,
                learned,
                -EVER if begins is None else begins,
                EVER if ends is None else ends,
                EVER if over is None else over,
                EVER if expires is None else expires,
            )
            self._limited.add(len(self.facts) if known is None else known)
        if known is not None:
            self.facts[known] = facts
            return
        when = date.fromordinal(_FIRST_DAY + int((learned if begins is None else begins) // _DAY))
        if source is None:
            said = text if about is None else f"{about}: {text}"
            self.numbers[memory_id] = self.index.add(memory_id, said, when=when)
        else:
            said = _joined(about, source[5], text)
            self.numbers[memory_id] = self.index.add(memory_id, said, session=_session(source), when=when)
        self.facts.append(facts)

    def allowed(self, wanted: Wanted) -> Allowed | None:
        """Return a test of whether a memory may be found; None if all may."""
        if wanted.kind is None and wanted.about is None and wanted.min_trust == 0 and wanted.known == EVER:
            hidden = frozenset(filterfalse(self._test(wanted), self._limited))
            return (lambda number: number not in hidden) if hidden else None
        return self._test(wanted)

    def _test(self, wanted: Wanted) -> Allowed:
        at, true, now, kind, about, min_trust = wanted
        known = self.facts

        def test(number: int) -> bool:
            is_kind, subject, trust, learned, begins, ends, over, expires = known[number]
            return (
                learned <= at
                and (over > at or over == EVER)
                and begins <= true < ends
                and expires > now
                and (kind is None or is_kind == kind)
                and (about is None or subject == about)
                and trust >= min_trust
            )

        return test

    def around(self, number: int, count: int, wanted: Wanted) -> tuple[list[str], list[str]]:
        """Return the ids of the memories before and after one in its document or conversation."""
        test = self._test(wanted)
        sides: list[list[str]] = []
        for near in (self.index.previous, self.index.next):
            found: list[str] = []
            one = near[number]
            while one >= 0 and len(found) < count:
                if test(one):
                    found.append(self.index.keys[one])
                one = near[one]
            sides.append(found)
        return sides[0][::-1], sides[1]


class ScopeIndexes:
    """The indexes of a client's tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[str | None, ScopeIndex] = OrderedDict()

    def of(self, user: str | None) -> ScopeIndex:
        """Return the index of a user, or of the tenant."""
        if self._pid != os.getpid():  # a fork: another thread of the parent may have held the locks
            ScopeIndexes.__init__(self, self._context)
        with self._lock:
            found = self._held.pop(user, None)
            if found is None:
                found = ScopeIndex(self._context, user)
            self._held[user] = found
            if len(self._held) > _MOST:
                self._held.popitem(last=False)
            return found

    def leave(self, user: str | None, ids: Iterable[str]) -> int:
        """Remove an index that has some of these memories; return how many it had."""
        with self._lock:
            found = self._held.pop(user, None)
        return 0 if found is None else sum(one in found.numbers for one in ids)


def searched_text(memory: Memory) -> str:
    """Return what search knows a memory by: its subject, its heading and its text."""
    return _joined(memory.about, None if memory.source is None else memory.source.heading, memory.text)


def _joined(about: str | None, heading: str | None, text: str) -> str:
    return ": ".join(one for one in (about, heading, text) if one is not None)


def _session(source: list[Any]) -> str:
    thread, file = source[0], source[4]
    return f"file {file}" if file is not None else f"thread {thread}" if thread is not None else ""
