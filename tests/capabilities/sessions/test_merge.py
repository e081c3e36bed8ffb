"""Merges: agreement by field, rules, a judge or a person, and one recorded verdict on each contradiction."""

import asyncio
import itertools
from typing import Any

import pytest

from tenuto import AsyncTenuto, InvalidInput, StepMismatch, Tenuto, Verdict, Waiting
from tenuto.capabilities.sessions import MergeConflict

RESULTS = {
    "a": {"city": "Lisbon", "price": 120, "tags": ["sun", "sea"], "stars": 4},
    "b": {"city": "Lisbon", "price": 90, "tags": ["sea", "food"], "stars": 5},
    "c": {"city": "Lisbon", "price": 110, "tags": [], "stars": 4, "note": "only here"},
}


def test_fields_are_merged_by_their_rules(agent: Tenuto) -> None:
    rules = {"price": "min", "tags": "union", "stars": "majority"}
    merged = agent.merge("trip", RESULTS, rules=rules)  # type: ignore
    assert merged.value == {
        "city": "Lisbon", "price": 90, "tags": ["sun", "sea", "food"], "stars": 4, "note": "only here",
    }  # fmt: skip
    assert [(one.field, one.by) for one in merged.verdicts] == [
        ("price", "rule min"),
        ("tags", "rule union"),
        ("stars", "rule majority"),
    ]
    assert merged.conflicts[0] == MergeConflict("price", {"a": 120, "b": 90, "c": 110})
    assert agent.runs.get("merge:trip").result["value"] == merged.value
    other = agent.merge("trip", RESULTS, rules={"*": "max"})
    assert other.value == merged.value, "the recorded verdicts count"


def test_the_newest_is_by_time_or_by_order(agent: Tenuto) -> None:
    given = {"a": {"x": 1}, "b": {"x": 2}}
    assert agent.merge("order", given, rules={"*": "newest"}).value == {"x": 2}
    assert agent.merge("times", given, rules={"*": "newest"}, times={"a": 9.0, "b": 3.0}).value == {"x": 1}
    assert agent.merge("fn", given, rules={"x": lambda values: sum(values.values())}).value == {"x": 3}
    assert agent.merge("max", given, rules={"x": "max"}).value == {"x": 2}
    assert agent.merge("whole", {"a": 3, "b": 5}, rules={"*": "max"}).value == 5


def test_a_judge_decides_once_and_its_reason_is_kept(agent: Tenuto) -> None:
    numbers = itertools.count()

    def judge(conflict: MergeConflict) -> Verdict:
        return Verdict([conflict.field, next(numbers)], f"because of {sorted(conflict.values)}")

    given = {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 2}}
    first = agent.merge("judged", given, judge=judge)
    assert first.value == {"x": ["x", 0], "y": ["y", 1]}
    assert first.verdicts[0] == ("x", ["x", 0], "judge judge", "because of ['a', 'b']")
    assert agent.merge("judged", given, judge=judge) == first
    with pytest.raises(StepMismatch):
        agent.merge("judged", {"a": {"x": 1}, "b": {"x": 3}}, judge=judge)


def test_a_judge_that_dies_at_the_second_field_leaves_the_first_verdict(agent: Tenuto) -> None:
    seen: list[str] = []

    def judge(conflict: MergeConflict) -> int:
        seen.append(conflict.field)
        if seen == ["x", "y"]:
            raise KeyboardInterrupt
        return len(seen)

    given = {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 2}}
    with pytest.raises(KeyboardInterrupt):
        agent.merge("killed", given, judge=judge)
    assert agent.merge("killed", given, judge=judge).value == {"x": 1, "y": 3}
    assert seen == ["x", "y", "y"]


def test_a_conflict_without_a_judge_is_a_question(agent: Tenuto) -> None:
    given = {"a": {"price": 120}, "b": {"price": 90}}
    for _ in range(2):
        with pytest.raises(Waiting):
            agent.merge("asked", given, judge="finance", rules={"price": "majority"})
    asked = agent.inbox.list(to="finance")
    assert len(asked) == 1
    assert (asked[0].choices, asked[0].context["values"]) == (["a", "b"], {"a": 120, "b": 90})
    agent.inbox.answer(asked[0].id, "b", by="ann")
    merged = agent.merge("asked", given, judge="finance")
    assert merged.value == {"price": 90}
    assert merged.verdicts == [("price", 90, "finance", "the value of b")]


def test_true_is_not_1_also_deep_inside(agent: Tenuto) -> None:
    merged = agent.merge("flags", {"a": {"x": [True]}, "b": {"x": [1]}}, rules={"x": "newest"})
    assert [one.field for one in merged.conflicts] == ["x"]


def test_wrong_rules_and_results_are_refused(agent: Tenuto) -> None:
    for results, rules in (
        ({}, {}),
        ({"a": {1: 2}}, {}),
        ({"a": {"x": 1}, "b": {"x": 2}}, {"x": "best"}),
        ({"a": {"x": 1}, "b": {"x": "y"}}, {"x": "min"}),
        ({"a": {"x": 1}, "b": {"x": 2}}, {"x": "union"}),
        ({"a": {"x": 1}, "b": {"x": 2}}, "newest"),
    ):
        with pytest.raises(InvalidInput):
            agent.merge(f"wrong {rules}", results, rules=rules)  # type: ignore
    wrong: Any
    for wrong in (7, {"a": "now", "b": 1}, {"a": 1}):
        with pytest.raises(InvalidInput, match="time"):
            agent.merge("w", {"a": 1, "b": 2}, rules={"*": "newest"}, times=wrong)
    with pytest.raises(InvalidInput, match="judge"):
        agent.merge("w", {"a": 1, "b": 2}, judge=3)  # type: ignore


def test_parallel_agents_and_a_merge_in_one_run(agent: Tenuto) -> None:
    with agent.run("research") as run:
        found = run.map("ask", lambda model: {"price": len(model), "by": "x"}, ["small", "larger", "largest!"])
        merged = agent.merge("research", dict(zip("abc", found, strict=True)), rules={"price": "max"})
        run.result = merged.value
    assert run.result == {"price": 8, "by": "x"}


def test_a_coroutine_may_judge() -> None:
    async def judge(conflict: MergeConflict) -> Verdict:
        await asyncio.sleep(0)
        return Verdict(max(conflict.values.values()), "the larger")

    async def story() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            merged = await agent.merge("m", {"a": {"x": 1}, "b": {"x": 2}}, judge=judge)
            assert merged.verdicts == [("x", 2, "judge judge", "the larger")]

    asyncio.run(story())
