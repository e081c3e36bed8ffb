"""What operators see of runs: who executes one, since when and where; lists that end, and say what they left out."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenuto import NotFound, Tenuto
from tenuto.capabilities.runs import dollars
from tenuto.cli import group
from tenuto.testing import HeldClock


def tenuto(*words: str, url: Path) -> Result:
    return CliRunner().invoke(group, [*words, "--url", str(url)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_a_running_run_names_its_holder_and_its_step(path: Path) -> None:
    with Tenuto("shop", path) as agent:

        def ask() -> str:
            found = agent.runs.get("r")
            assert found.holder is not None
            assert (found.holder.writer, found.holder.pid) == ("shop", os.getpid())
            assert found.holder.machine
            assert found.holder.since.tzinfo is not None
            return tenuto("runs", "show", "r", url=path).stdout

        with agent.run("r") as run:
            shown = run.step("ask", ask)
        assert f"held by shop (process {os.getpid()} on " in shown
        assert "in the step ask since 20" in shown
        assert agent.runs.get("r").holder is None


def test_doctor_finds_a_run_that_hangs_in_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hung() -> list[str]:
        found = json.loads(tenuto("doctor", "--json", url=path).stdout)
        return [one["what"] for one in found if one["about"] == "hung"]

    with Tenuto("shop", path) as agent, agent.run("r") as run:
        assert run.step("quick", hung) == []
        monkeypatch.setattr("tenuto.cli.examinations.HUNG", -1.0)
        assert run.step("wait", hung) == ["1 run is in a step that hangs: r in wait"]
        assert hung() == [], "between two steps"


def test_runs_are_listed_newest_first_whole_and_with_what_is_left_out(path: Path) -> None:
    clock = HeldClock()
    name = "a-rather-long-id-" * 5
    with Tenuto("shop", path, clock=clock) as agent:
        order = agent.durable(name="order")(_order)
        for n in (3, 1, 2):
            order.start(f"{name}{n}")
            clock.advance(60)
        with agent.run("plain"):
            clock.advance(1)
    listed = tenuto("runs", "list", "--limit", "2", url=path)
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["plain", f"{name}2"]
    assert listed.stderr == f"… 2 more: --after {name}2, or a larger --limit\n"
    rest = json.loads(tenuto("runs", "list", "--after", f"{name}2", "--json", url=path).stdout)
    assert [one["id"] for one in rest] == [f"{name}1", f"{name}3"]
    assert set(rest[0]) >= {"created_at", "updated_at"}
    only = json.loads(tenuto("runs", "list", "--function", "order", "--json", url=path).stdout)
    assert [one["id"] for one in only] == [f"{name}{n}" for n in (2, 1, 3)]
    assert tenuto("runs", "list", "--after", "none", url=path).exit_code == 3
    assert tenuto("runs", "list", "--limit", "0", url=path).exit_code == 2


def _order(run: object) -> None:
    """A durable function that never runs here."""


def test_runs_are_listed_since_a_time(path: Path) -> None:
    with Tenuto("shop", path) as agent, agent.run("new"):
        pass
    assert "new" in tenuto("runs", "list", "--since", "1h", url=path).stdout
    assert tenuto("runs", "list", "--since", "soon", url=path).exit_code == 2


@pytest.mark.parametrize(
    ("cost", "shown"), [(1.5, "$1.50"), (0.01, "$0.01"), (0.00042, "$0.00042"), (0.001, "$0.001"), (3e-7, "$0.0000003")]
)
def test_a_cost_below_a_cent_is_shown(cost: float, shown: str) -> None:
    assert dollars(cost) == shown


def test_watching_an_unknown_run_is_not_found(path: Path) -> None:
    with Tenuto("shop", path) as agent:
        with pytest.raises(NotFound):
            next(iter(agent.runs.watch("none")))
        agent.state.set("s", "k", 1)
    assert tenuto("runs", "watch", "none", url=path).exit_code == 3


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_lock_file_has_the_permissions_of_the_store(path: Path, mode: int) -> None:
    for _ in range(2):
        with Tenuto("shop", path) as agent:
            agent.state.set("s", "k", 1)
        path.chmod(mode)
    with Tenuto("shop", path) as agent:
        agent.state.set("s", "k", 2)
        files = [path, path.with_name(path.name + "-lock"), path.with_name(path.name + "-wal")]
        assert {oct(one.stat().st_mode & 0o777) for one in files} == {oct(mode)}
