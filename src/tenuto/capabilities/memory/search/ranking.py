"""The one search: the texts of one or several indexes, ranked for a query.

Every path that finds memories or messages by words comes through `search`. Its caller chooses the indexes, so a text
that is not in one of them cannot be found. The score of a text is the sum of its features, each times the weight of the
profile. Statistics are of all given indexes together, so that hits of a user and of the tenant can be compared.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tenuto.capabilities.memory.search.dates import Asked, asked_date, asks_when, date_match, event_match
from tenuto.capabilities.memory.search.index import ASKS, HAS_TIME, IS_QUESTION, MAX_COUNT, Index
from tenuto.capabilities.memory.search.profiles import Profile
from tenuto.capabilities.memory.search.words import ASKING, terms, words

_K1, _B, _SESSION_K1 = 0.9, 0.75, 1.2
_MANY: Final = 2_000
"""Of more texts than this that have a term of the query, only the best by words are looked at closely."""
_SHORT, _LONG = 12, 25
Allowed = Callable[[int], bool]


class Hit(NamedTuple):
    """A text that was found."""

    part: int
    """Which of the given indexes."""
    number: int
    score: float
    parts: dict[str, float]
    """What each feature contributed."""


class Dense(NamedTuple):
    """Similarities to the query, one for each text, scaled from 0 to 1; empty without an embedder."""

    near: Sequence[float] = ()
    """Of the text together with the end of the one before it."""
    text: Sequence[float] = ()
    """Of the text alone."""
    top: Sequence[int] = ()
    """The most similar texts."""


NOT_DENSE: Final = Dense()


class Query(NamedTuple):
    """A question, taken apart."""

    text: str
    terms: list[str]
    named: frozenset[str]
    """Speakers that it names."""
    asked: Asked | None
    when: bool


class Part(NamedTuple):
    """An index to search, which of its texts may be found, and their similarities."""

    texts: Index
    allowed: Allowed | None = None
    dense: Dense = NOT_DENSE


def query_of(text: str, indexes: Iterable[Index]) -> Query:
    """Take a question apart; names of speakers say who, not what, and are not terms."""
    said = set(words(text))
    skip, named = set(ASKING), set()
    for index in indexes:
        skip |= index.name_terms()
        named |= {name for name, parts in index.names.items() if any(one in said or one + "s" in said for one in parts)}
    found = list(dict.fromkeys(terms(text)))
    return Query(
        text, [t for t in found if t not in skip] or found, frozenset(named), asked_date(text), asks_when(text)
    )


def search(parts: Sequence[Part], query: Query, profile: Profile, k: int) -> list[Hit]:
    """Return the `k` best texts that have anything in common with a query, best first."""
    scores = [_Scores(part, query, profile) for part in parts]
    _weigh(scores, query)
    found: list[tuple[float, int, int]] = []
    for at, one in enumerate(scores):
        found += [(score, at, number) for number, score in one.ranked(k)]
    best = heapq.nlargest(k, found, key=lambda hit: hit)
    return [Hit(at, number, score, scores[at].explained(number)) for score, at, number in best]


def _weigh(scores: Sequence[_Scores], query: Query) -> None:
    """Score every text that has a term of the query, with statistics of all indexes together."""
    indexes = [one.index for one in scores]
    total = sum(map(len, indexes))
    own_average = sum(index.own_total for index in indexes) / max(total, 1) or 1.0
    context_average = sum(index.context_total for index in indexes) / max(total, 1) or 1.0
    sessions = sum(len(index.session_lengths) for index in indexes)
    session_average = sum(index.session_total for index in indexes) / max(sessions, 1) or 1.0
    longest = max((index.longest for index in indexes), default=0)
    own_norms, norms = _norms(longest, own_average), _norms(longest, context_average)
    for term in query.terms:
        having = sum(len(index.postings.get(term, ())) for index in indexes)
        context = _idf(total, having)
        own = _idf(total, having - sum(index.context_only.get(term, 0) for index in indexes))
        spread = _idf(sessions, sum(len(index.session_postings.get(term, ())) for index in indexes))
        for one in scores:
            one.add_term(term, own * (_K1 + 1), context * (_K1 + 1), own_norms, norms)
            if spread:
                one.add_session_term(term, spread * (_SESSION_K1 + 1), session_average)
    highest = [max((max(kind.values(), default=0.0) for kind in kinds), default=0.0) or 1.0 for kinds in zip(
        *((one.own, one.context, one.session) for one in scores), strict=True
    )]  # fmt: skip
    for one in scores:
        one.scale = (1 / highest[0], 1 / highest[1], 1 / highest[2])


def _idf(total: int, having: int) -> float:
    return math.log(1 + (total - having + 0.5) / (having + 0.5)) if having else 0.0


def _norms(longest: int, average: float) -> list[float]:
    """Return the length norm of BM25 for each length."""
    return [_K1 * (1 - _B + _B * length / average) for length in range(longest + 1)]


class _Scores:
    """The scores of one index for one query."""

    def __init__(self, part: Part, query: Query, profile: Profile) -> None:
        self.index, self._allowed, self._dense = part
        self._query = query
        self._profile = profile
        self.own: dict[int, float] = {}
        self.context: dict[int, float] = {}
        self.session: dict[int, float] = {}
        self.scale = (1.0, 1.0, 1.0)
        self._flat = not (self.index.session_lengths and (profile.context or profile.before or profile.after))
        """Neighbours do not count, or there are none: the context of a text is the text."""
        self._best_dense: dict[int, float] = {}
        if profile.dense_session and part.dense.near:
            for number, similarity in enumerate(part.dense.near):
                place = self.index.sessions[number]
                if similarity > self._best_dense.get(place, 0.0):
                    self._best_dense[place] = similarity

    def add_term(self, term: str, own: float, context: float, own_norms: list[float], norms: list[float]) -> None:
        """Add one term of the query to the scores of the texts that have it."""
        postings = self.index.postings.get(term)
        if postings is None:
            return
        lengths, around = self.index.own_lengths, self.index.context_lengths
        once = [own / (1 + norm) for norm in own_norms]
        scores = self.own
        for posting in postings:
            count = posting >> 8 & MAX_COUNT
            if count:
                number = posting >> 16
                length = lengths[number]
                gain = once[length] if count == 1 else own * count / (count + own_norms[length])
                scores[number] = scores.get(number, 0.0) + gain
        if self._flat:
            self.context = scores
            return
        once = [context / (1 + norm) for norm in norms]
        scores = self.context
        for posting in postings:
            number, count = posting >> 16, posting & MAX_COUNT
            length = around[number]
            gain = once[length] if count == 1 else context * count / (count + norms[length])
            scores[number] = scores.get(number, 0.0) + gain

    def add_session_term(self, term: str, weight: float, average: float) -> None:
        """Add one term of the query to the scores of the sessions that have it."""
        for place, count in self.index.session_postings.get(term, {}).items():
            norm = _SESSION_K1 * (1 - _B + _B * self.index.session_lengths[place] / average)
            self.session[place] = self.session.get(place, 0.0) + weight * count / (count + norm)

    def ranked(self, k: int) -> list[tuple[int, float]]:
        """Return the best texts of this index with their scores."""
        scores = self._of_words()
        self._add_others(scores)
        allowed = self._allowed
        if allowed is not None:
            scores = {number: score for number, score in scores.items() if allowed(number)}
        self._complete(scores)
        sign = 1 if self._flat else -1  # of equal memories the newer, of equal messages the earlier
        best = heapq.nlargest(k, [(score, sign * number) for number, score in scores.items()])
        return [(sign * number, score) for score, number in best]

    def _of_words(self) -> dict[int, float]:
        """Return the scores by words of the texts that match best, and of their neighbours."""
        weights, (own_scale, context_scale, _) = self._profile, self.scale
        matched, allowed = self.context, self._allowed
        if len(matched) > _MANY:
            # The best of many, before the rest of the features: a filter must not leave too few.
            kept = matched if allowed is None else {number: s for number, s in matched.items() if allowed(number)}
            most = _MANY // 4 if self._flat else _MANY  # without neighbours fewer change places
            matched = {number: kept[number] for number in heapq.nlargest(most, kept, key=kept.__getitem__)}
        if self._flat:
            weight = weights.own * own_scale
            return {number: weight * score for number, score in matched.items()}
        weight = weights.context * context_scale
        found = {number: weight * score for number, score in matched.items()}
        index, get = self.index, found.get
        previous, following, flags = index.previous, index.next, index.flags
        mine, before, after = weights.own * own_scale, weights.before * own_scale, weights.after * own_scale
        before2, after2, answer = weights.before2 * own_scale, weights.after2 * own_scale, weights.answer * own_scale
        for number in matched:
            score = self.own.get(number)
            if score is None:
                continue
            found[number] += mine * score
            near = following[number]
            if near >= 0:  # of which this text is the one before
                found[near] = get(near, 0.0) + score * (before + answer if flags[number] & ASKS else before)
                near = following[near]
                if near >= 0:
                    found[near] = get(near, 0.0) + before2 * score
            near = previous[number]
            if near >= 0:
                found[near] = get(near, 0.0) + after * score
                near = previous[near]
                if near >= 0:
                    found[near] = get(near, 0.0) + after2 * score
        return found

    def _add_others(self, scores: dict[int, float]) -> None:
        """Add texts that match by date or by meaning alone."""
        asked = self._query.asked
        if asked is not None and len(self.index) <= _MANY:
            match = {said: date_match(asked, said) for said in set(self.index.dates) if said is not None}
            for number, said in enumerate(self.index.dates):
                if said is not None and match[said] and number not in scores:
                    scores[number] = 0.0
        for number in self._dense.top:
            scores.setdefault(number, 0.0)

    def _complete(self, scores: dict[int, float]) -> None:
        """Add the features that are not words."""
        index, weights, query = self.index, self._profile, self._query
        sessions, speakers, flags, lengths = index.sessions, index.speakers, index.flags, index.own_lengths
        of_session = {place: weights.session * self.scale[2] * score for place, score in self.session.items()}
        only = next(iter(query.named)) if len(query.named) == 1 else None
        when = weights.when if query.when else 0.0
        other = bool(weights.length or weights.question or self._dense.near)
        if not (of_session or weights.user or weights.speaker or when or query.asked or other):
            return
        for number in scores:
            more = of_session.get(sessions[number], 0.0)
            speaker = speakers[number]
            if speaker == "user":
                more += weights.user
            elif speaker == only:
                more += weights.speaker
            if when and flags[number] & HAS_TIME:
                more += when
            if query.asked is not None and (said := index.dates[number]) is not None:
                more += weights.date * date_match(query.asked, said)
                if event_match(query.asked, index.events.get(number, ()), said):
                    more += weights.event
            if other:
                more += sum(self._others(number, lengths[number]).values())
            scores[number] += more

    def _others(self, number: int, length: int) -> dict[str, float]:
        """Return the features that depend on the form and the meaning of a text."""
        index, weights, near = self.index, self._profile, self._dense.near
        parts = {"length": weights.length * min(1.0, length / _LONG)}
        if length < _SHORT and index.flags[number] & IS_QUESTION:
            parts["question"] = weights.question
        if not near:
            return parts
        parts["dense"] = weights.dense * near[number]
        parts["dense_text"] = weights.dense_text * (self._dense.text or near)[number]
        if self._flat:
            return parts
        parts["dense_session"] = weights.dense_session * self._best_dense.get(index.sessions[number], 0.0)
        before, after = index.previous[number], index.next[number]
        if before >= 0:
            parts["dense_before"] = weights.dense_before * near[before]
            if index.flags[before] & ASKS:
                parts["dense_answer"] = weights.dense_answer * near[before]
        if after >= 0:
            parts["dense_after"] = weights.dense_after * near[after]
        return parts

    def explained(self, number: int) -> dict[str, float]:
        """Return what each feature adds to the score of a text: the same sum, feature by feature."""
        index, weights, query = self.index, self._profile, self._query
        own_scale, context_scale, session_scale = self.scale
        own = self.own
        parts = {"own": weights.own * own_scale * own.get(number, 0.0)}
        if not self._flat:
            parts["context"] = weights.context * context_scale * self.context.get(number, 0.0)
            parts["session"] = weights.session * session_scale * self.session.get(index.sessions[number], 0.0)
            before, after = index.previous[number], index.next[number]
            if before >= 0:
                parts["before"] = weights.before * own_scale * own.get(before, 0.0)
                if index.flags[before] & ASKS:
                    parts["answer"] = weights.answer * own_scale * own.get(before, 0.0)
            if after >= 0:
                parts["after"] = weights.after * own_scale * own.get(after, 0.0)
        speaker = index.speakers[number]
        if speaker == "user":
            parts["user"] = weights.user
        elif len(query.named) == 1 and speaker in query.named:
            parts["speaker"] = weights.speaker
        if query.when and index.flags[number] & HAS_TIME:
            parts["when"] = weights.when
        if query.asked is not None and (said := index.dates[number]) is not None:
            parts["date"] = weights.date * date_match(query.asked, said)
            if event_match(query.asked, index.events.get(number, ()), said):
                parts["event"] = weights.event
        parts.update(self._others(number, index.own_lengths[number]))
        return {name: value for name, value in parts.items() if value}
