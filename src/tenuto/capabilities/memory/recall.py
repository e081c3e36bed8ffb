"""Recall: the search of memories and of conversations, with words for what made each hit.

The scope is fixed before the search begins: the indexes of the tenant and of one user, or of one thread. What a search
of memories finds is read from the store before it is returned: forgotten and expired memories are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.capabilities.memory.embedding import Embedding
from tenuto.capabilities.memory.records import MAX_QUERY, TRUST, Memory, item_key, memory_of
from tenuto.capabilities.memory.scopes import ScopeIndex, Wanted
from tenuto.capabilities.memory.search.index import Index
from tenuto.capabilities.memory.search.profiles import WORDS
from tenuto.capabilities.memory.search.ranking import Hit, Part, Query, query_of, search
from tenuto.capabilities.memory.search.words import terms
from tenuto.capabilities.memory.turns import ThreadIndex
from tenuto.errors import InvalidInput, TooLarge

_SPARE: Final = 5
"""Hits that are searched for beyond `k`, in place of memories that expired or were forgotten meanwhile."""


class Recalled(NamedTuple):
    """A memory that was found."""

    memory: Memory
    score: float
    """Comparable within one recall only."""
    why: str
    """What made it a hit, in words."""
    before: tuple[Memory, ...] = ()
    after: tuple[Memory, ...] = ()
    """Its neighbours in the same conversation or document."""


def must_be_query(query: str, k: int, neighbours: int) -> None:
    """Raise `InvalidInput` unless a search is possible."""
    if not isinstance(query, str) or not query.strip():
        raise InvalidInput("A recall needs a question or some words to search for.")
    if len(query) > MAX_QUERY:
        raise TooLarge(
            f"A query takes up to {MAX_QUERY:,} characters; this one has {len(query):,}. Ask for what you want to know."
        )
    if type(k) is not int or not 1 <= k <= 1_000:
        raise InvalidInput(f"k must be an int from 1 to 1,000, not {k!r}.")
    if type(neighbours) is not int or not 0 <= neighbours <= 20:
        raise InvalidInput(f"neighbours must be an int from 0 to 20, not {neighbours!r}.")


def recall_memories(
    context: Context,
    embedding: Embedding,
    scopes: Sequence[ScopeIndex],
    query: str,
    k: int,
    wanted: Wanted,
    neighbours: int,
) -> list[Recalled]:
    """Return the memories of these scopes that answer a query best."""
    with scopes[0].lock, scopes[1].lock if len(scopes) > 1 else nullcontext():  # the tenant's is always the first
        return _recall_memories(context, embedding, scopes, query, k, wanted, neighbours)


def _recall_memories(
    context: Context,
    embedding: Embedding,
    scopes: Sequence[ScopeIndex],
    query: str,
    k: int,
    wanted: Wanted,
    neighbours: int,
) -> list[Recalled]:
    for scope in scopes:
        scope.catch_up()
    asked = query_of(query, [scope.index for scope in scopes])
    dense = embedding.of_scopes(scopes, query)
    parts = [Part(scope.index, scope.allowed(wanted), own) for scope, own in zip(scopes, dense, strict=True)]
    hits = search(parts, asked, embedding.profiles(dense).facts, k + _SPARE)
    found: list[tuple[Hit, bytes, list[bytes], list[bytes]]] = []
    for hit in hits:
        scope = scopes[hit.part]
        before, after = scope.around(hit.number, neighbours, wanted)
        own = item_key(scope.home, scope.index.keys[hit.number])
        found.append(
            (hit, own, [item_key(scope.home, one) for one in before], [item_key(scope.home, one) for one in after])
        )
    wanted_keys = list({key for _, own, before, after in found for key in (own, *before, *after)})
    records = context.kernel.read(wanted_keys) if wanted_keys else []
    memories = {key: memory_of(record) for key, record in zip(wanted_keys, records, strict=True) if record is not None}
    return [
        Recalled(
            memories[own],
            round(hit.score, 4),
            _why(asked, hit, memories[own], "", wanted.now),
            tuple(memories[key] for key in before if key in memories),
            tuple(memories[key] for key in after if key in memories),
        )
        for hit, own, before, after in found
        if own in memories
    ][:k]


def recall_turns(  # noqa: PLR0913 - the words of the API
    embedding: Embedding,
    thread: ThreadIndex,
    query: str,
    k: int,
    *,
    at: float | None,
    min_trust: int,
    neighbours: int,
    now: float,
) -> list[Recalled]:
    """Return the messages of a conversation that answer a query best."""
    with thread.lock:
        return _recall_turns(embedding, thread, query, k, at, min_trust, neighbours, now)


def _recall_turns(  # noqa: PLR0913 - the words of the API
    embedding: Embedding,
    thread: ThreadIndex,
    query: str,
    k: int,
    at: float | None,
    min_trust: int,
    neighbours: int,
    now: float,
) -> list[Recalled]:
    thread.catch_up()
    index = thread.index
    asked = query_of(query, [index])

    def allowed(number: int) -> bool:
        said = thread.said[number].at
        return (at is None or said is None or said <= at) and TRUST[thread.memory(number).trust] >= min_trust

    every = at is None and min_trust == 0
    dense = embedding.of_thread(thread, query)
    profiles = embedding.profiles([dense])
    profile = profiles.people if index.names else profiles.assistant
    hits = search([Part(index, None if every else allowed, dense)], asked, profile, k)
    found = []
    for hit in hits:
        memory = thread.memory(hit.number)
        first, last = max(hit.number - neighbours, 0), hit.number + neighbours
        before = [thread.memory(one) for one in range(first, hit.number)]
        after = [thread.memory(one) for one in range(hit.number + 1, min(last + 1, len(index)))]
        if at is not None:
            after = [one for one in after if one.learned_at.timestamp() <= at]
        speaker = index.speakers[hit.number]
        why = _why(asked, hit, memory, speaker, now)
        found.append(Recalled(memory, round(hit.score, 4), why, tuple(before), tuple(after)))
    return found


def rank_texts(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """Return the positions of the texts that have words of a query, with their scores, best first.

    The search of `recall` for texts that an adapter passes; of equal texts the earlier comes first.
    """
    index = Index()
    for at, text in enumerate(texts):
        index.add(at, text)
    hits = search([Part(index)], query_of(query, []), WORDS.facts, max(len(texts), 1))
    return sorted(((hit.number, hit.score) for hit in hits), key=lambda one: (-one[1], one[0]))


def _why(query: Query, hit: Hit, memory: Memory, speaker: str, now: float) -> str:
    """Return in words what made a hit, strongest first."""
    heading = "" if memory.source is None else memory.source.heading or ""
    own = set(terms(f"{memory.about or ''} {heading} {memory.text}"))
    same = [term for term in query.terms if term in own]
    said = {
        "own": f"has the words {', '.join(same)}" if same else "",
        "context": "" if same else "follows a text with these words",
        "answer": "answers a question with these words",
        "after": "" if same else "is followed by a text with these words",
        "session": "is in a session about it",
        "speaker": f"said by {speaker}",
        "user": "said by the user",
        "date": "is of that date",
        "event": "refers to that date",
        "when": "names a time",
        "dense": "has a similar meaning",
    }
    strongest = sorted(hit.parts.items(), key=lambda part: -part[1])
    reasons = [said[name] for name, value in strongest if value > 0 and said.get(name)]
    if memory.review_by is not None and memory.review_by.timestamp() < now:
        reasons.append(f"its review was due on {memory.review_by:%Y-%m-%d}")
    return "; ".join(reasons)
