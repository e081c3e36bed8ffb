"""Costs: what runs have spent on models, and what was not spent again because recorded steps were reused.

It owns no keys: it reads the logs of runs, so a report costs one read of each run. Deleting a run deletes its costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from tenuto.capabilities._core.base import Timed
from tenuto.capabilities.runs import Engine, Op, Prices, Usage, forked_from, logs_of, origin_of, priced
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import moment

By = Literal["model", "run", "user", "playbook", "day"]


class Cost(NamedTuple):
    """What one model, run, user, playbook or day has cost."""

    key: str
    calls: int
    tokens: int
    """Input and output."""
    cached_tokens: int
    """The input tokens that the provider had cached."""
    spent: float
    """In dollars; calls without a known price count as 0."""
    saved: float
    """What reused steps had cost: those that a resume or a fork did not repeat."""
    seconds_saved: float
    cheaper: float = 0.0
    """By playbook: what the same tokens would have cost more with the model that designed it."""


class _Use(NamedTuple):
    run: str
    user: str | None
    usage: list[Any]
    at: float
    inherited: bool
    reused: int
    forked: str | None
    """The run that this one was forked from."""


class Costs(Timed):
    """The costs of a tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context = engine.context
        self._playbook_of: Callable[[str], tuple[str, str | None] | None] = lambda _: None
        """Return the playbook that a run carries out, and the model that designed it; set by the client."""

    @property
    def prices(self) -> Prices:
        """Return the table of prices by model: `agent.costs.prices["my-model"] = Price(input=1.0, output=4.0)`."""
        return self._engine.prices

    def report(self, by: By = "model", since: datetime | None = None, user: str | None = None) -> list[Cost]:
        """Return what was spent and saved by model, run, user, playbook or day (UTC), the most expensive first.

        A model call counts once, in the run that made it: what a fork inherited is saved there, not spent again. By
        playbook, the runs of workflows that a playbook started count, and their forks.
        """
        if by not in get_args(By):
            raise InvalidInput(f"by must be one of {', '.join(get_args(By))}; not {by!r}.")
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise InvalidInput("since must be a datetime with a time zone, for example datetime.now(UTC).")
        first = 0.0 if since is None else since.timestamp()
        found: dict[str, Cost] = {}
        seen: set[tuple[str, int]] = set()
        playbooks: dict[str, tuple[str, str | None] | None] = {}
        for used, op, number in self._uses(user, first):
            if used.at < first:
                continue
            cheaper = 0.0
            if by == "playbook":
                if used.run not in playbooks:
                    playbooks[used.run] = self._played(used.run, used.forked)
                played = playbooks[used.run]
                if played is None:
                    continue
                key, cheaper = played[0], self._cheaper(used, played[1])
            else:
                key = _key(by, used)
            seconds = 0.0
            if (used.run, number) not in seen:  # a step with several calls saves its time once
                seen.add((used.run, number))
                seconds = op.seconds * used.reused
            known = found.get(key, Cost(key, 0, 0, 0, 0.0, 0.0, 0.0))
            found[key] = _added(known, used, seconds, cheaper)
        return sorted(found.values(), key=lambda one: (-one.spent, -one.saved, one.key))

    def _played(self, run: str, forked: str | None) -> tuple[str, str | None] | None:
        """Return the playbook that a run carries out, or the run that it was forked from, and so on."""
        while (played := self._playbook_of(run)) is None and forked is not None:
            run, forked = forked, forked_from(self._context, forked)
        return played

    def _cheaper(self, used: _Use, designer: str | None) -> float:
        """Return how much more a call would have cost with the model that designed its playbook; 0 if that is unknown."""
        _, given, made, cost, cached = used.usage
        if designer is None or cost is None or used.inherited:
            return 0.0
        price = priced(Usage(designer, given, made, cached), self.prices)
        return 0.0 if price is None else price - cost

    def _uses(self, user: str | None, since: float) -> Iterator[tuple[_Use, Op, int]]:
        for run_id, owner, history in logs_of(self._context, user, since):
            for number, op in sorted(history.ops.items()):
                if op.ended is None:
                    continue
                again = len(history.resumes) - op.resumes if op.state == "done" else 0
                for at, usage in enumerate(op.usage):
                    inherited = at < op.inherited
                    yield _Use(run_id, owner, usage, op.ended, inherited, again, origin_of(history)), op, number


def _key(by: By, used: _Use) -> str:
    if by == "model":
        return str(used.usage[0])
    if by == "run":
        return used.run
    if by == "user":
        return used.user or ""
    return f"{moment(used.at):%Y-%m-%d}"


def _added(known: Cost, used: _Use, seconds: float, cheaper: float) -> Cost:
    _, given, made, cost, cached = used.usage
    cost = cost or 0.0
    saved = known.saved + cost * used.reused
    if used.inherited:
        return known._replace(saved=saved, seconds_saved=known.seconds_saved + seconds)
    return Cost(
        known.key,
        known.calls + 1,
        known.tokens + given + made,
        known.cached_tokens + cached,
        known.spent + cost,
        saved,
        known.seconds_saved + seconds,
        known.cheaper + cheaper,
    )
