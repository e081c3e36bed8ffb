"""The bench's contenders make the calls they are named for. No figure is looked at here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from bench.calls import KINDS
from bench.child import Child
from bench.compare import Contender, Round
from bench.measure import Row, Table, show
from bench.summary import summary


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_is_made_by_two_threads(kind: str, tmp_path: Path) -> None:
    if kind == "graph turn" and importlib.util.find_spec("langgraph") is None:
        pytest.skip("langgraph is not installed")
    child = Child("bench.calls", kind, str(tmp_path / "store.db"), "process", log=tmp_path / "log")
    try:
        told = child.ask("go", 2, 0.01)
    finally:
        child.end()
    assert told["errors"] == []
    assert [len(calls) > 0 for calls in told["took"]] == [True, True]
    assert told["processor"] > 0


def test_a_checkout_whose_tenuto_is_not_the_one_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(RuntimeError, match="not the tenuto of"):
        Child("bench.calls", "raw insert", str(tmp_path / "s.db"), "full", log=tmp_path / "log", source=tmp_path)


def test_ratios_are_of_totals_but_for_the_median(tmp_path: Path) -> None:
    own, other = Contender("new", "new", tmp_path), Contender("old", "old", tmp_path)
    own.rounds = [Round([1.0, 1.0, 10.0], 1.0, 1, 6.0, 12), Round([1.0, 1.0, 2.0], 1.0, 1, 6.0, 12)]
    other.rounds = [Round([2.0, 2.0, 2.0], 1.0, 1, 3.0, 6), Round([1.0, 1.0, 2.0], 1.0, 1, 3.0, 6)]
    ratios = own.against(other, "new / old").ratios
    assert {name: ratio.split("x")[0] for name, ratio in ratios.items()} == {
        "p50": "0.75",  # of 0.5 in one round and 1.0 in the other
        "mean": "1.60",  # 16 to 10
        "p99": "5.00",
        "per second": "1.00",
        "processor": "2.00",
        "written": "2.00",
    }


def test_the_summary_has_a_line_for_each_topic_and_each_missed_goal(capsys: pytest.CaptureFixture[str]) -> None:
    judged = [Row("set", ratio="2.3x", target="<= 2.1x", met=False), Row("get", ratio="2x", target="<= 2.5x", met=True)]
    show(summary({"set": (Table("Values", judged), [1.5]), "start": (Table("Start", [Row("python")]), [2.0])}))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line][2:] == [
        ["set: Values", "1.5", "1 of 2", "", ""],
        ["- set", "", "", "2.3x", "<= 2.1x"],
        ["start: Start", "2.0", "", "", ""],
    ]
