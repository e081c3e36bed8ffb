"""Operations on memories. What is added here is labelled as said by a person."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from typing import Annotated, NamedTuple

from tenuto.capabilities.memory import TRUST, Kind, Loaded, Memory, Receipt, Source, Trust, new
from tenuto.client import Tenuto
from tenuto.kernel.work import perform
from tenuto.operations.table import operation

_MOST_SIMILAR = 200
MemoryId = Annotated[str, "Memory id"]
User = Annotated[str | None, "Whose memories; without it, those of the whole tenant"]


class Hit(NamedTuple):
    """A memory that a search found."""

    id: str
    text: str
    kind: str
    user: str | None
    score: float
    why: str
    learned_at: datetime
    trust: Trust
    source: Source | None


@operation("memory add", writes=True)
def memory_add(  # noqa: PLR0913 - the command's options
    agent: Tenuto,
    text: Annotated[str, "What to remember"],
    *,
    user: User = None,
    kind: Annotated[Kind, "What kind of memory"] = "fact",
    about: Annotated[str | None, "Its subject"] = None,
    predicate: Annotated[str | None, "What is said of the subject; the same two supersede"] = None,
    valid_until: Annotated[str | None, "When it stops being true, e.g. 2026-12-31"] = None,
    review_by: Annotated[str | None, "When to check it again, e.g. 2026-12-31"] = None,
    ttl: Annotated[str | None, 'Time to live, e.g. "24h"'] = None,
    trust: Annotated[Trust, "Who said it"] = "person",
) -> Memory:
    """Store a memory durably, by default as said by a person."""
    given = new(
        text,
        trust=TRUST[trust],
        user=user,
        kind=kind,
        about=about,
        predicate=predicate,
        valid_until=valid_until,
        review_by=review_by,
        ttl=ttl,
    )
    return perform(agent.memory._remembering(given), agent.clock)


@operation("memory search", "text", "kind", "why", "learned_at", "id")
def memory_search(  # noqa: PLR0913 - the command's options
    agent: Tenuto,
    query: Annotated[str, "A question, or a few words"],
    *,
    user: Annotated[str | None, "Search this user's memories too"] = None,
    thread: Annotated[str | None, "Search the messages of this thread instead"] = None,
    kind: Annotated[Kind | None, "Only this kind"] = None,
    about: Annotated[str | None, "Only this subject"] = None,
    at: Annotated[str | None, "Answer as of this time, e.g. 2026-05-01"] = None,
    min_trust: Annotated[Trust | None, "Only what is at least this trusted"] = None,
    k: Annotated[int, "Maximum number of results"] = 5,
) -> list[Hit]:
    """Find memories, or messages of a thread, best first."""
    found = agent.memory.recall(
        query, k, user=user, thread=thread, kind=kind, about=about, at=at, min_trust=min_trust, neighbours=0
    )
    return [
        Hit(one.id, one.text, one.kind, one.user, score, why, one.learned_at, one.trust, one.source)
        for one, score, why, _, _ in found
    ]


@operation("memory list", "id", "text", "kind", "about", "trust", "learned_at")
def memory_list(
    agent: Tenuto,
    *,
    user: User = None,
    kind: Annotated[Kind | None, "Only this kind"] = None,
    about: Annotated[str | None, "Only this subject"] = None,
    limit: Annotated[int, "Maximum number of memories"] = 100,
    after: Annotated[str | None, "Start after this id"] = None,
    superseded: Annotated[bool, "Also superseded memories"] = False,
) -> list[Memory]:
    """List memories in the order in which they were learned."""
    return agent.memory.list(user, kind, about, limit=limit, after=after, superseded=superseded)


class Similar(NamedTuple):
    """Two memories that say almost the same."""

    first: Memory
    second: Memory
    share: float
    """The share of their words that both have."""


@operation("memory duplicates", "share", "first", "second")
def memory_duplicates(
    agent: Tenuto,
    *,
    user: User = None,
    share: Annotated[float, "At least this share of their words is common"] = 0.6,
    limit: Annotated[int, "How many memories to compare"] = 1_000,
) -> list[Similar]:
    """List memories that say almost the same, most similar first; the same text twice is stored once anyway."""
    known = agent.memory.list(user, limit=limit)
    words = [frozenset(re.findall(r"\w+", one.text.casefold())) for one in known]
    holders: dict[str, list[int]] = {}
    found = []
    for at, own in enumerate(words):
        common = Counter(other for word in own for other in holders.get(word, ()))
        for other, both in common.items():
            part = both / (len(own) + len(words[other]) - both)
            if part >= share:
                found.append(Similar(known[other], known[at], round(part, 2)))
        for word in own:
            holders.setdefault(word, []).append(at)
    return sorted(found, key=lambda one: -one.share)[:_MOST_SIMILAR]


@operation("memory show")
def memory_show(agent: Tenuto, memory: MemoryId) -> Memory:
    """Show a memory with its source, its trust and its times."""
    return agent.memory.get(memory)


@operation("memory history", "id", "text", "learned_at", "superseded_at", "writer")
def memory_history(agent: Tenuto, memory: MemoryId) -> list[Memory]:
    """Show a memory with those it superseded and those that superseded it, newest first."""
    return agent.memory.history(memory)


@operation("memory forget", asks="Remove these memories from every layer for good?")
def memory_forget(
    agent: Tenuto,
    *,
    id: Annotated[str | None, "This memory"] = None,  # noqa: A002 - the word for it
    user: Annotated[str | None, "Those of this user"] = None,
    thread: Annotated[str | None, "Those learned from this thread"] = None,
    about: Annotated[str | None, "Those about this subject"] = None,
    writer: Annotated[str | None, "Those of this writer; what they superseded holds again"] = None,
    reason: Annotated[str, "Why, for the journal"] = "",
) -> Receipt:
    """Remove memories from every layer; with several options, what fits all of them."""
    return agent.memory.forget(id, user=user, thread=thread, about=about, writer=writer, reason=reason)


@operation("memory load", writes=True)
def memory_load(
    agent: Tenuto,
    pattern: Annotated[str, 'A file, or a pattern such as "policies/*.md"'],
    *,
    user: User = None,
    kind: Annotated[Kind, "What kind of memories"] = "fact",
) -> Loaded:
    """Load files as memories; again, it replaces what changed and removes what vanished."""
    return agent.memory.load(pattern, kind=kind, user=user)
