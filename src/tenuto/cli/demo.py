"""`tenuto demo`: write a script that crashes and resumes, and run it in the terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tenuto.backends import DEFAULT
from tenuto.cli.shared import FAILURE, guarded

KILLED = 137
_SCENES = {
    "demo": "An agent of three steps is killed in the third.",
    "review": "50 files reviewed, killed at the 31st: no comment twice.",
    "deploy": "Tests and build are not repeated; the release happens once.",
    "approval": "An agent asks, exits, and resumes with the answer.",
    "replicas": "Three processes on one file: no update lost, one leader.",
}


class Stage:
    """A folder and a terminal in which a scene runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._environment = {**os.environ, "TENUTO_URL": str(place / DEFAULT), "PYTHONUNBUFFERED": "1"}
        if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
            self._environment["FORCE_COLOR"] = "1"

    def say(self, text: str) -> None:
        """Print a comment."""
        click.echo("\n" + click.style(f"# {text}", dim=True))

    def run(self, *words: str, expect: int = 0, **more: str) -> None:
        """Print a command as a user would type it, run it, and print its output."""
        click.echo(click.style("$ " + " ".join(words), bold=True))
        real = {"python": [sys.executable], "tenuto": [sys.executable, "-m", "tenuto"]}[words[0]] + list(words[1:])
        with subprocess.Popen(  # noqa: S603 - our own scripts
            real,
            cwd=self.place,
            env={**self._environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:  # line by line: the script is slow
                click.echo(_lit(line.rstrip("\n")))
        if process.returncode != expect:
            click.echo(click.style(f"exit code {process.returncode}, expected {expect}", fg="red"), err=True)
            sys.exit(FAILURE)

    def together(self, script: str, count: int) -> None:
        """Run several processes of a script concurrently."""
        click.echo(
            click.style(
                f"$ for n in {' '.join(map(str, range(1, count + 1)))}; do python {script} $n & done; wait", bold=True
            )
        )
        begun = [
            subprocess.Popen([sys.executable, script, str(n)], cwd=self.place, env=self._environment)  # noqa: S603
            for n in range(1, count + 1)
        ]
        codes = [process.wait() for process in begun]
        if any(codes):
            sys.exit(FAILURE)


def _lit(line: str) -> str:
    """Colour the lines about the crash and the resumption."""
    word = line.split(maxsplit=1)[0] if line.strip() else ""
    colour = {"killed:": "red", "killed": "red", "resuming": "green"}.get(word)
    return click.style(line, fg=colour, bold=True) if colour else line


def _demo(stage: Stage) -> None:
    stage.say("An agent of three steps. It will be killed in the middle of the third.")
    stage.run("python", "demo.py", expect=KILLED)
    stage.say("Run it again: the same command, nothing else.")
    stage.run("python", "demo.py")
    stage.say("The recorded run:")
    stage.run("tenuto", "runs", "show", "demo")


def _review(stage: Stage) -> None:
    stage.say("50 files to review; killed while it posts the comment on the 31st.")
    stage.run("python", "review.py", expect=KILLED)
    stage.say("Run it again: before posting, verify checks whether comment 31 is there.")
    stage.run("python", "review.py")


def _deploy(stage: Stage) -> None:
    stage.say("Tests, build, release; killed after the release, before the result was recorded.")
    stage.run("python", "deploy.py", expect=KILLED)
    stage.say("Run it again: tests and build are reused, and verify finds the release.")
    stage.run("python", "deploy.py", SECOND="1")
    stage.run("tenuto", "runs", "show", "deploy-42")


def _approval(stage: Stage) -> None:
    stage.say("The agent asks and exits: no process waits.")
    stage.run("python", "approval.py")
    stage.say("Later, perhaps tomorrow, a person opens the inbox.")
    stage.run("tenuto", "inbox", "list")
    stage.run("tenuto", "inbox", "answer", "invoice-881", "yes", "--by", "ann")
    stage.say("The agent resumes.")
    stage.run("python", "approval.py")


def _replicas(stage: Stage) -> None:
    stage.say("Three processes on one file, each adding 200 to one counter; then one of them writes the report.")
    stage.together("replicas.py", 3)
    stage.run("tenuto", "state", "list", "shared")


_PLAYS: dict[str, Callable[[Stage], None]] = {
    "demo": _demo,
    "review": _review,
    "deploy": _deploy,
    "approval": _approval,
    "replicas": _replicas,
}


def _again(scene: str) -> str:
    return f"tenuto demo {'' if scene == 'demo' else scene + ' '}--keep DIR"


@click.command(
    "demo", help="Kill an agent and watch it resume.\n\n\b\n" + "\n".join(f"{n:9} {t}" for n, t in _SCENES.items())
)
@click.argument("scene", type=click.Choice(list(_SCENES)), default="demo")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep script and store in this folder.")
@guarded
def command(scene: str, keep: Path | None) -> None:
    """Run a scene."""
    script = (Path(__file__).parent / "scenes" / f"{scene}.py").read_text()
    place = keep.resolve() if keep is not None else Path(tempfile.mkdtemp(prefix="tenuto-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise click.UsageError(f"{place} is not empty. Give an empty folder with --keep.")
    (place / f"{scene}.py").write_text(script)
    stage = Stage(place)
    try:
        _PLAYS[scene](stage)
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)
    if keep is not None:
        click.echo(
            f"\nThe script and its store are in {keep}. To continue there: cd {keep} && python {scene}.py", err=True
        )
    else:
        click.echo("\n" + click.style(f"To read and change the script: {_again(scene)}", dim=True))
