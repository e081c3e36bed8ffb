"""The demo: it dies and carries on, also when somebody else kills it."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from tenuto.cli import group

ROOT = Path(__file__).parents[2]


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TENUTO_URL": str(place / "tenuto.db")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "says"),
    [
        (
            "demo",
            ["killed: no cleanup", "resuming demo at write (2 steps reused, 2.", "✓ search", "2 attempts, 1 in doubt"],
        ),
        ("review", ["resuming review at comment [file-31.py] (30 steps reused)", "50 comments, 50 different ones"]),
        ("deploy", ["resuming deploy-42 at release (2 steps reused, 1.", "released 1 time(s)", "verified"]),
        ("approval", ["waits for an answer", "finance", "paying 4200"]),
        ("replicas", ["is mine", "count   600"]),
    ],
)
def test_a_scene_is_played_to_its_end(scene: str, says: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenuto", "demo", scene, "--keep", str(tmp_path / "kept")],
        capture_output=True, text=True, check=False, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for text in says:
        assert text in done.stdout
    assert (tmp_path / "kept" / f"{scene}.py").exists()


@pytest.mark.slow
def test_what_is_kept_goes_on_where_the_demo_ended(tmp_path: Path) -> None:
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    given.pop("TENUTO_URL", None)
    place = tmp_path / "kept"

    def run(*words: str, cwd: Path = place) -> str:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=given, check=True)
        return done.stdout + done.stderr

    assert f"cd {place} && python demo.py" in run("-m", "tenuto", "demo", "--keep", str(place), cwd=tmp_path)
    again = run("demo.py")
    assert again.startswith("replaying demo (3 steps reused")
    assert "searching" not in again
    assert "completed" in run("-m", "tenuto", "runs", "list")


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert CliRunner().invoke(group, ["demo", "--keep", str(tmp_path)]).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_the_demo_killed_at_any_moment_completes_and_does_what_is_finished_once(tmp_path: Path) -> None:
    script = (ROOT / "src/tenuto/cli/scenes/demo.py").read_text()
    script = script.replace("time.sleep(1.2)", "time.sleep(0.02)").replace("time.sleep(1.5)", "time.sleep(0.05)")
    chance = random.Random(7)
    for number in range(20):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "demo.py").write_text(script)
        for attempt in range(30):
            process = subprocess.Popen(
                [sys.executable, "demo.py"],
                cwd=place,
                env=environment(place),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if attempt < 3:
                try:
                    process.wait(chance.uniform(0.05, 0.5))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                break
        else:
            pytest.fail("it did not complete")
        effects = Counter((place / "effects.txt").read_text().split())
        from tenuto import Tenuto

        with Tenuto("judge", place / "tenuto.db") as agent:
            steps = {step.name: step for step in agent.runs.get("demo").steps}
        for name, effect in (("search", "searched"), ("read", "read"), ("write", "wrote")):
            assert 1 <= effects[effect] <= 1 + steps[name].repeated_in_doubt  # twice only where the record says so
