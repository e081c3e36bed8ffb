"""Three agents with contradicting results and a judge, killed at every boundary of the merge: one recorded verdict."""

import pytest

from tenuto import Tenuto, Verdict, idempotency_key
from tenuto.testing.crash import Crash, crash

__all__ = ["crash"]

RESULTS = {
    "a": {"price": 120, "city": "Lisbon"},
    "b": {"price": 90, "city": "Porto"},
    "c": {"price": 110, "city": "Faro"},
}


@pytest.mark.slow
def test_a_merge_that_is_killed_anywhere_has_one_verdict(crash: Crash) -> None:
    def work() -> list[object]:
        def judge(conflict: object) -> Verdict:
            crash.effect("judged", key=idempotency_key())
            return Verdict("Lisbon", "the cheapest flight")

        with Tenuto("lead", crash.url) as agent:
            merged = agent.merge("trip", RESULTS, rules={"price": "min"}, judge=judge)
            steps = [one.name for one in agent.runs.get("merge:trip").steps]
            return [merged.value, [one.by for one in merged.verdicts], steps]

    report = crash(work)
    assert report.ok, report
    assert len(report.kills) > 5
