"""Recall held out: fit the weights of a rung on all conversations but one, and measure that one, for each of them.

`python -m bench.recall_folds FILE [words|wordllama|minilm]` takes the file of `tenuto bench recall`. The fit is a softmax
regression over the messages that have anything in common with a question. It prints R@10 of each conversation with the shipped
weights, with those that were fitted without it, and with those fitted on all: the difference of the last two is what a fit to the
file gains by knowing it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenuto.capabilities.memory.search import ranking
from tenuto.capabilities.memory.search.dates import date_match, event_match
from tenuto.capabilities.memory.search.index import ASKS, HAS_TIME
from tenuto.capabilities.memory.search.profiles import SENTENCES, STATIC, WORDS, Profile
from tenuto.cli.bench_recall import _threads
from tenuto.client import Tenuto

OF_WORDS = (
    *("own", "before", "after", "before2", "after2", "context", "answer"),
    *("session", "speaker", "date", "event", "when"),
)
OF_MEANING = (
    *("question", "length", "dense", "dense_text"),
    *("dense_before", "dense_after", "dense_answer", "dense_session"),
)
_SHIPPED = {"words": WORDS.people, "wordllama": STATIC.people, "minilm": SENTENCES.people}
_STEPS, _RATE, _DECAY = 300, 0.3, 1e-3


class Asked(NamedTuple):
    """A question: the features of each candidate, which of them are right, and how many right ones there are."""

    features: Any
    right: Any
    wanted: int


def names_of(rung: str) -> tuple[str, ...]:
    """Return the features of a rung."""
    if rung == "words":
        return OF_WORDS
    return tuple(one for one in (*OF_WORDS, *OF_MEANING) if one != "dense_text" or _SHIPPED[rung].dense_text)


def questions(agent: Tenuto, number: int, ids: list[str], conversation: dict[str, Any], rung: str) -> list[Asked]:
    agent.memory.recall("anything", thread=str(number))
    thread = agent.memory._conversations.of(str(number), None)
    index, names, found = thread.index, names_of(rung), []
    for one in conversation["questions"]:
        wanted = set(one["evidence"])
        if not wanted:
            continue
        query = ranking.query_of(one["q"], [index])
        dense = agent.memory._embedding.of_thread(thread, one["q"])
        scores = ranking._Scores(ranking.Part(index, None, dense), query, Profile(*[1.0] * len(Profile._fields)))
        ranking._weigh([scores], query)
        candidates = scores._of_words()
        scores._add_others(candidates)
        rows = [[_features(scores, index, query, at).get(name, 0.0) for name in names] for at in candidates]
        right = [ids[index.keys[at] - 1] in wanted for at in candidates]
        found.append(Asked(np.array(rows).reshape(-1, len(names)), np.array(right, dtype=bool), len(wanted)))
    return found


def _features(scores: Any, index: Any, query: Any, at: int) -> dict[str, float]:
    own_scale, context_scale, session_scale = scores.scale

    def own(place: int) -> float:
        return own_scale * scores.own.get(place, 0.0) if place >= 0 else 0.0

    before, after = index.previous[at], index.next[at]
    said, asked = index.dates[at], query.asked
    dated = asked is not None and said is not None
    return {
        "own": own(at),
        "before": own(before),
        "after": own(after),
        "before2": own(index.previous[before]) if before >= 0 else 0.0,
        "after2": own(index.next[after]) if after >= 0 else 0.0,
        "context": context_scale * scores.context.get(at, 0.0),
        "answer": own(before) if before >= 0 and index.flags[before] & ASKS else 0.0,
        "session": session_scale * scores.session.get(index.sessions[at], 0.0),
        "speaker": float(len(query.named) == 1 and index.speakers[at] in query.named),
        "date": date_match(asked, said) if dated else 0.0,
        "event": float(dated and event_match(asked, index.events.get(at, ()), said)),
        "when": float(bool(query.when and index.flags[at] & HAS_TIME)),
        **scores._others(at, index.own_lengths[at]),
    }


def fit(given: list[Asked]) -> Any:
    """Return the weights that make the right messages most likely, by gradient descent with Adam."""
    usable = [one for one in given if one.right.any()]
    weights = np.ones(usable[0].features.shape[1])
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, _STEPS + 1):
        gradient = _DECAY * weights
        for one in usable:
            score = one.features @ weights
            likely = np.exp(score - score.max())
            likely /= likely.sum()
            target = likely * one.right
            gradient += (likely - target / max(target.sum(), 1e-12)) @ one.features / len(usable)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        weights -= _RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return weights


def recall(given: list[Asked], weights: Any) -> float:
    shares = []
    for one in given:
        best = np.argsort(-(one.features @ weights), kind="stable")[:10]
        shares.append(one.right[best].sum() / one.wanted)
    return 100 * float(np.mean(shares))


def prepared(path: str, rung: str) -> list[list[Asked]]:
    """Return the questions of each conversation."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    with Tenuto("bench", "volatile:", embed=None if rung == "words" else rung) as agent:
        every = _threads(agent, data, embed=rung != "words")
        return [questions(agent, n, ids, one, rung) for n, (ids, one) in enumerate(zip(every, data, strict=True))]


def main(path: str, rung: str = "words") -> None:
    sets = prepared(path, rung)
    shipped = np.array([getattr(_SHIPPED[rung], name) for name in names_of(rung)])
    print("held out  questions  shipped  fitted on the others  fitted on all")
    whole = fit([one for part in sets for one in part])
    rows = []
    for number, part in enumerate(sets):
        others = [one for at, other in enumerate(sets) if at != number for one in other]
        weights = fit(others)
        rows.append((len(part), recall(part, shipped), recall(part, weights), recall(part, whole)))
        print(f"{number:8}  {rows[-1][0]:9}  {rows[-1][1]:7.1f}  {rows[-1][2]:20.1f}  {rows[-1][3]:13.1f}", flush=True)
    counts = [row[0] for row in rows]
    means = [np.average([row[at] for row in rows], weights=counts) for at in (1, 2, 3)]
    print(f"{'all':>8}  {sum(counts):9}  {means[0]:7.1f}  {means[1]:20.1f}  {means[2]:13.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
