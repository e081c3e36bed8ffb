"""Merges: the results of parallel agents as one, with a recorded verdict on every contradiction.

A merge is the run `merge:NAME`, so it has no keys or commits of its own. Its first step records all results, whole;
each verdict of a judge is a step, each question to a person a wait of that run. A crash between two of them leaves the
verdicts that were recorded; the same call continues with the next field, so each field gets one verdict.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto.capabilities._core.schemas import same
from tenuto.capabilities.runs import Engine, Run, Step, run_step, to_stored
from tenuto.errors import InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.work import Work, work_of

RuleName = Literal["union", "newest", "majority", "min", "max"]
Rule = RuleName | Callable[[dict[str, Any]], Any]
_WHOLE: Final = "value"
"""The field of results that are no dicts."""


class MergeConflict(NamedTuple):
    """A field on which results differ: the value of each source that has one."""

    field: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What a judge decides: the value, and why."""

    value: Any
    reason: str | None = None


class MergeVerdict(NamedTuple):
    """The recorded verdict on a field."""

    field: str
    value: Any
    by: str
    """The rule, the judge, or the person or team that was asked."""
    reason: str | None


class Merged(NamedTuple):
    """The merged results of several agents."""

    value: Any
    conflicts: list[MergeConflict]
    """What the results differed on; nothing of it was overwritten."""
    verdicts: list[MergeVerdict]
    """How each conflict was decided."""


Judge = Callable[[MergeConflict], Any] | str


def merge_results(
    engine: Engine,
    name: str,
    results: Mapping[str, Any],
    *,
    rules: Mapping[str, Rule] | None,
    judge: Judge | None,
    times: Mapping[str, datetime | float] | None,
    block: bool,
) -> Work[Merged]:
    """Merge results in a run; see `Tenuto.merge`."""
    given = _valid(results)
    chosen = _rules(rules or {})
    order = sorted(given, key=lambda source: _time(times, source)) if times is not None else list(given)
    if not (judge is None or isinstance(judge, str) or callable(judge)):
        raise InvalidInput(
            f"judge must be a function of a conflict or the name of a person, not {type(judge).__name__}."
        )
    run = Run(engine, f"merge:{keys.name(name, 'merge')}", block=block)
    yield from run._taking()
    try:
        merged = yield from _merged(run, given, chosen, judge, order)
        run.result = {
            "value": merged.value,
            "conflicts": [one._asdict() for one in merged.conflicts],
            "verdicts": [one._asdict() for one in merged.verdicts],
        }
    except BaseException as error:
        yield from run._leaving(error)
        raise
    yield from run._leaving(None)
    return merged


def _merged(
    run: Run, given: dict[str, Any], rules: Mapping[str, Rule], judge: Judge | None, order: list[str]
) -> Work[Merged]:
    record = Step("results", _results, (given,), None, "pure")
    results: dict[str, Any] = yield from run_step(run._running, record)
    alone = not all(isinstance(one, dict) for one in results.values())
    by_source = {source: {_WHOLE: one} if alone else one for source, one in results.items()}
    value: dict[str, Any] = {}
    conflicts: list[MergeConflict] = []
    verdicts: list[MergeVerdict] = []
    for field in dict.fromkeys(field for one in by_source.values() for field in one):
        values = {source: one[field] for source, one in by_source.items() if field in one}
        first = next(iter(values.values()))
        if all(same(first, other) for other in values.values()):
            value[field] = first
            continue
        conflict = MergeConflict(field, values)
        verdict = yield from _verdict(run, conflict, rules.get(field, rules.get("*")), judge, order)
        conflicts.append(conflict)
        verdicts.append(verdict)
        value[field] = verdict.value
    return Merged(value[_WHOLE] if alone else value, conflicts, verdicts)


def _verdict(
    run: Run, conflict: MergeConflict, rule: Rule | None, judge: Judge | None, order: list[str]
) -> Work[MergeVerdict]:
    """Decide a conflict: by its rule, else by the judge, else by a person."""
    field, values = conflict
    if callable(rule):
        found = yield from run_step(run._running, Step("rule", rule, (values,), field, "idempotent"))
        return _noted(field, found, f"rule {_name(rule)}")
    if rule is not None:
        ordered = {source: values[source] for source in order if source in values}
        step = Step("rule", functools.partial(_RULES[rule], field), (ordered,), field, "pure")
        ruled = yield from run_step(run._running, step)
        if ruled is not None:
            return MergeVerdict(field, ruled[0], f"rule {rule}", None)
    if callable(judge):
        found = yield from run_step(run._running, Step("judge", judge, (conflict,), field, "idempotent"))
        return _noted(field, found, f"judge {_name(judge)}")
    answer = yield from work_of(run.ask)(
        f"{run.id.removeprefix('merge:')}: the results differ on {field!r}. Which one is right?",
        to=judge,
        context={"field": field, "values": values},
        choices=list(values),
    )
    return MergeVerdict(field, values[answer], judge or "inbox", f"the value of {answer}")


def _results(given: dict[str, Any]) -> dict[str, Any]:
    """Return the results, to be recorded whole."""
    return given


def _noted(field: str, found: Any, by: str) -> MergeVerdict:
    if isinstance(found, Verdict):
        return MergeVerdict(field, found.value, by, found.reason)
    if isinstance(found, dict) and set(found) == {"value", "reason"}:  # a verdict, as steps return it
        return MergeVerdict(field, found["value"], by, found["reason"])
    return MergeVerdict(field, found, by, None)


# -- rules -------------------------------------------------------------------------------------------------------------


def _union(field: str, values: dict[str, Any]) -> list[Any] | None:
    if not all(isinstance(one, list | tuple | set | frozenset) for one in values.values()):
        raise InvalidInput(
            f"The rule union needs lists or sets, which {field!r} does not have. Choose another rule for it."
        )
    if all(isinstance(one, set | frozenset) for one in values.values()):
        return [set().union(*values.values())]
    found: list[Any] = []
    for one in values.values():
        found += [inner for inner in one if not any(same(inner, there) for there in found)]
    return [found]


def _majority(_field: str, values: dict[str, Any]) -> list[Any] | None:
    """Return the value of more than half of the sources; None if there is none."""
    counts = Counter(codec.encode(one) for one in values.values())
    most, count = counts.most_common(1)[0]
    return [codec.decode(most)] if count * 2 > len(values) else None


def _extreme(pick: Callable[[Any], Any]) -> Callable[[str, dict[str, Any]], list[Any] | None]:
    def rule(field: str, values: dict[str, Any]) -> list[Any] | None:
        try:
            return [pick(values.values())]
        except TypeError as error:
            raise InvalidInput(
                f"The values of {field!r} cannot be ordered: {error}. Choose another rule for it."
            ) from error

    return rule


_RULES: Final[dict[RuleName, Callable[[str, dict[str, Any]], list[Any] | None]]] = {
    "union": _union,
    "newest": lambda _, values: [list(values.values())[-1]],
    "majority": _majority,
    "min": _extreme(min),
    "max": _extreme(max),
}


def _valid(results: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(results, Mapping) or not results:
        raise InvalidInput("results must be a dict of at least one result, by the name of its source.")
    given = {keys.name(source, "source"): to_stored(one)[0] for source, one in results.items()}
    for source, one in given.items():
        for field in one if isinstance(one, dict) else ():
            if not isinstance(field, str) or not field:
                raise InvalidInput(f"The fields of results must be named by text; {source!r} has {field!r:.80}.")
    return given


def _rules(rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    if not isinstance(rules, Mapping):
        raise InvalidInput(f"rules must be a dict of a rule for each field, not {rules!r:.80}.")
    for field, rule in rules.items():
        if not callable(rule) and rule not in get_args(RuleName):
            known = ", ".join(get_args(RuleName))
            raise InvalidInput(f"The rule of {field!r} must be one of {known}, or a function; not {rule!r}.")
    return rules


def _time(times: Mapping[str, datetime | float], source: str) -> float:
    if not isinstance(times, Mapping) or source not in times:
        raise InvalidInput(f"times has no entry for {source!r}. Give the time of each result, or leave times out.")
    at = times[source]
    if isinstance(at, bool) or not isinstance(at, datetime | int | float):
        raise InvalidInput(f"The time of {source!r} must be a datetime or seconds, not {at!r:.80}.")
    return at.timestamp() if isinstance(at, datetime) else float(at)


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))
