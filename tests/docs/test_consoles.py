"""What a page shows of a terminal is what a terminal shows: its commands are run, in order, and their output compared.

A block marked `<!-- file: trip.py -->` is written to that file. In a block of kind console each line that begins with
`$ ` is a command, run by a shell in an empty folder, and what follows it is what it prints. A line that is only `…`
stands for lines left out. Numbers, times, ids and the lengths of bars differ from run to run and are not compared. A
command fails only if `$ echo $?` stands right behind it.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PART = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def parts(page: Path) -> list[tuple[str, str, str]]:
    """Return what is to be written and what is to be run, in the page's order."""
    found = [(one["file"] or "", one["kind"], one["text"]) for one in PART.finditer(page.read_text())]
    return [one for one in found if one[0] or one[1] == "console"]


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return each command of a block, and what it shows."""
    found: list[tuple[str, list[str]]] = []
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def alike(line: str) -> str:
    """Return what must be the same in each run of a line."""
    line = re.sub(r"\b[0-9a-f]{16}\b", "ID", line)
    line = re.sub(r"/\S*(/\.tenuto/)", r"FOLDER\1", line)
    line = re.sub(r"[█·]+", "", line)
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,]*(\.\d+)?( [KMG]B| bytes)?", "#", line)).strip()


def shown(expected: list[str], actual: list[str]) -> str | None:
    """Return what is shown and not printed, or printed and not shown."""
    wanted, got = [alike(line) for line in expected], [alike(line) for line in actual]
    groups = [list(lines) for gap, lines in itertools.groupby(wanted, lambda line: line == "…") if not gap]
    at = 0
    for lines in groups:
        here = next((n for n in range(at, len(got) + 1) if got[n : n + len(lines)] == lines), None)
        if here is None or (here > at and at == 0 and wanted[:1] != ["…"]):
            return f"shown: {lines}\nprinted: {got[at:]}"
        at = here + len(lines)
    return None if at == len(got) or wanted[-1:] == ["…"] else f"not shown: {got[at:]}"


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `python` and `tenuto` are the ones that are tested."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in (("python", []), ("tenuto", ["-m", "tenuto"])):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
        (tools / name).chmod(0o755)
    kept = {key: os.environ[key] for key in ("HOME", "TMPDIR", "LANG") if key in os.environ}
    return {
        **kept,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.timeout(900)  # a page may start forty processes
@pytest.mark.parametrize("page", [p for p in PAGES if "```console" in p.read_text()], ids=lambda p: p.stem)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path, shell: dict[str, str]) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name, kind, text in parts(page):
        if name:
            (place / name).write_text(text)
        if kind != "console":
            continue
        code = 0
        block = commands(text)
        for number, (command, expected) in enumerate(block):
            if command == "echo $?":
                assert [str(code)] == expected
                continue
            done = subprocess.run(
                ["sh", "-c", command], cwd=place, env=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=False, timeout=180,
            )  # fmt: skip
            code = done.returncode
            allowed = number + 1 < len(block) and block[number + 1][0] == "echo $?"
            assert code == 0 or allowed, f"$ {command}\n{done.stdout}"
            wrong = shown(expected, done.stdout.rstrip("\n").split("\n") if done.stdout else [])
            assert wrong is None, f"$ {command}\n{wrong}\n{done.stdout}"
