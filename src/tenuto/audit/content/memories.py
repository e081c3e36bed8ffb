"""Memories: junk, duplicates, contradictions, stale and orphaned ones. It compares words, and says what it compared.

All in one pass: duplicates and contradictions are found by buckets of terms, so 100,000 memories take seconds, not pairs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tenuto.audit.findings import Item
from tenuto.capabilities._core.base import scan_all
from tenuto.capabilities.memory import Memory, memory_in, terms
from tenuto.client import Tenuto

CODES: Final = ("T101", "T102", "T103", "T104", "T105")
_OLD: Final = timedelta(days=365)
_EVERY: Final = 500
_LONGEST: Final = 14
"""Terms of a memory that is compared for contradictions; longer ones are rarely one statement."""
_JUNK: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), what)
    for pattern, what in (
        (
            r"\W*(?:n/?a|none|null|nil|undefined|unknown|todo|tbd|test|foo|bar|ok|okay|yes|no|hi|hello|thanks)\W*",
            "a placeholder",
        ),
        (
            r"(?:as an ai|i(?:'m| am) sorry,? (?:but )?i (?:can|am un)|i cannot (?:help|assist)).*",
            "a refusal of a model",
        ),
        (r"(?:you are (?:a|an) [\w ]*(?:assistant|agent|model)|system:|### ?instruction).*", "a prompt"),
        (r"(?:traceback \(most recent call last\)|\w*(?:error|exception): ).*", "an error message"),
        (r"\s*[\[{].*[\]}]\s*", "raw JSON"),
        (r"(.)\1{9,}.*", "one character repeated"),
        (r"lorem ipsum.*", "filler text"),
        (r"(?:the user (?:said|sent|asked|wrote) (?:hi|hello|something|nothing|a message)).*", "no content"),
    )
)
_NEGATION: Final = re.compile(r"\b(?:not|never|no longer|cannot|without)\b|n't\b", re.IGNORECASE)
_VALUE: Final = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][\w-]*|\b\w*\d(?:[\w.:,/-]*\w)?|\b[A-Z]{2,}\b")
_SLOT: Final = "valueslot"
_DATE: Final = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)\b")


def examined(agent: Tenuto, step: Callable[[int, int], None]) -> dict[str, tuple[str, list[Item], int]]:
    """Return for each code what was looked at, the first items and the count."""
    found: dict[str, list[Item]] = {code: [] for code in CODES}
    counts: Counter[str] = Counter()

    def add(code: str, item: Item) -> None:
        counts[code] += 1
        if len(found[code]) < 100:
            found[code].append(item)

    texts: dict[tuple[str | None, tuple[str, ...], bool], list[str]] = {}
    statements: dict[tuple[Any, ...], list[tuple[str, str, bool, str]]] = defaultdict(list)
    threads = {one.id for one in agent.threads.list()}
    now = datetime.fromtimestamp(agent.kernel.now(), UTC)
    number = 0
    for memory in _every(agent, step):
        if memory.superseded_by is not None:
            continue
        number += 1
        why = junk_in(memory.text)
        if why is not None:
            add("T101", Item(memory.id, "memory", f"{why}: {_short(memory.text)}"))
            continue
        words = tuple(terms(memory.text))
        same = texts.setdefault((memory.user, words, bool(_NEGATION.search(memory.text))), [])
        if same:
            add("T102", Item(memory.id, "memory", f"says the same as {same[0]}: {_short(memory.text)}"))
        same.append(memory.id)
        for other in _contradicted(memory, statements) if len(same) == 1 else ():
            add("T103", Item(memory.id, "memory", f"{_short(memory.text)} — but {other[0]}: {_short(other[3])}"))
        stale = stale_of(memory, now)
        if stale is not None:
            add("T104", Item(memory.id, "memory", f"{stale}: {_short(memory.text)}"))
        if memory.source is not None and memory.source.thread is not None and memory.source.thread not in threads:
            add("T105", Item(memory.id, "memory", f"its conversation {memory.source.thread!r} no longer exists"))
    return {code: (f"{number:,} memories", found[code], counts[code]) for code in CODES}


def _every(agent: Tenuto, step: Callable[[int, int], None]) -> Iterator[Memory]:
    """Yield the memories of every user, in one pass over the records of the tenant."""
    total = int(agent.store.stats().get("records", 0) or 0)
    for at, record in enumerate(scan_all(agent.kernel, b"")):
        if at % _EVERY == 0:
            step(at, max(total, at))
        memory = memory_in(record)
        if memory is not None:
            yield memory


def junk_in(text: str) -> str | None:
    """Return what kind of junk a text is, or None."""
    bare = text.strip()
    if len(bare) < 3 or not any(map(str.isalnum, bare)):
        return "nothing but signs"
    return next((what for pattern, what in _JUNK if pattern.fullmatch(bare.replace("\n", " "))), None)


def stale_of(memory: Memory, now: datetime) -> str | None:
    """Return why a memory is stale, or None."""
    if memory.review_by is not None and memory.review_by < now:
        return f"to be reviewed by {memory.review_by:%Y-%m-%d}"
    if memory.valid_until is not None:
        return None  # it is not recalled after that
    dates = [
        datetime(int(y), int(m), int(d), tzinfo=UTC)
        for y, m, d in _DATE.findall(memory.text)
        if "01" <= m <= "12" and "01" <= d <= "28"
    ]
    if memory.kind == "event" and dates and max(dates) < now - timedelta(days=1):
        return f"about {max(dates):%Y-%m-%d}, without valid_until"
    if memory.kind == "fact" and memory.seen == 1 and memory.learned_at < now - _OLD:
        return f"learned {memory.learned_at:%Y-%m-%d} and never confirmed"
    return None


Statement = tuple[str, str, bool, str]


def _contradicted(memory: Memory, statements: dict[tuple[Any, ...], list[Statement]]) -> list[Statement]:
    """Return the statements that a memory contradicts: the same words with another value, or with a negation."""
    negated = bool(_NEGATION.search(memory.text))
    words = terms(_NEGATION.sub(" ", memory.text))
    if not 2 <= len(words) <= _LONGEST:
        return []
    found: list[Statement] = []
    whole = (memory.user, tuple(words))
    found += [one for one in statements[whole] if one[2] is not negated]
    statements[whole].append((memory.id, "", negated, memory.text))
    for hit in list(_VALUE.finditer(memory.text)) if len(words) > 2 else ():
        rest = terms(_NEGATION.sub(" ", f"{memory.text[: hit.start()]} {_SLOT} {memory.text[hit.end() :]}"))
        key, value = (memory.user, *rest), hit[0].casefold()
        found += [one for one in statements[key] if one[1] != value and one[2] is negated]
        statements[key].append((memory.id, value, negated, memory.text))
    return found[:1]


def _short(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= 90 else one[:89] + "…"
