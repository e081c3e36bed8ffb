"""What it takes to begin: `import tenuto`, `tenuto --version`, and what `pip install tenuto` brings (P13)."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import tenuto
from bench.measure import Row, Table, take_turns

IMPORT, VERSION = 0.120, 0.150
PACKAGES, MEGABYTES = 5, 15


def run(*, quick: bool) -> Table:
    python = sys.executable
    command = str(Path(python).with_name("tenuto"))
    found = take_turns(
        {
            "python -c pass": lambda _: _run(python, "-c", "pass"),
            "python -c 'import tenuto'": lambda _: _run(python, "-c", "import tenuto"),
            "tenuto --version": lambda _: _run(command, "--version"),
        },
        rounds=5 if quick else 15,
        calls=1,
        warmup=1,
    )
    rows = [samples.row(what) for what, samples in found.items()]
    for row, samples in zip(rows, found.values(), strict=True):
        row.p99, row.worst = None, samples.quantile(1)
        row.ratio = str(samples.against(found["python -c pass"]))
    for row, limit in ((rows[1], IMPORT), (rows[2], VERSION)):
        row.target, row.met = f"<= {limit * 1000:.0f} ms", row.p50 <= limit
    sizes = {name: _megabytes(package) for name, package in sorted(_needed("tenuto").items())}
    rows += [
        Row(f"pip install tenuto: {len(sizes)} packages", target=f"<= {PACKAGES}", met=len(sizes) <= PACKAGES),
        Row(
            f"pip install tenuto: {sum(sizes.values()):.1f} MB installed",
            target=f"<= {MEGABYTES} MB",
            met=sum(sizes.values()) <= MEGABYTES,
            detail=sizes,
        ),
    ]
    listed = ", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items())
    return Table(
        "Start: fresh processes, and what is installed",
        rows,
        ["Times are of the whole process, the interpreter's own start included.", f"Packages: {listed}."],
    )


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _needed(name: str) -> dict[str, Distribution]:
    """Return a package and all that it requires here, without extras, by name."""
    found: dict[str, Distribution] = {}
    wanted = [name]
    while wanted:
        package = distribution(wanted.pop())
        if package.name in found:
            continue
        found[package.name] = package
        for line in package.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    return found


def _megabytes(package: Distribution) -> float:
    if package.name == "tenuto":  # installed for editing: its own files are elsewhere
        paths = list(Path(tenuto.__file__).parent.rglob("*.py*"))
    else:
        paths = [Path(package.locate_file(file)) for file in package.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
