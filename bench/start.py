"""What it takes to begin: `import tenuto`, `tenuto --version`, and what `pip install tenuto` brings (P13)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.measure import Row, Table, folder, take_turns

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
    packages, wheels, sizes = _installed()
    total = sum(sizes.values())
    rows += [
        Row(f"pip install tenuto: {packages} packages", target=f"<= {PACKAGES}", met=packages <= PACKAGES),
        Row(
            f"pip install tenuto: {total:.1f} MB on disk",
            target=f"<= {MEGABYTES} MB",
            met=total <= MEGABYTES,
            detail={"downloaded": wheels, **sizes},
        ),
    ]
    listed = ", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items() if size >= 0.1)
    return Table(
        "Start: fresh processes, and what is installed",
        rows,
        [
            "Times are of the whole process, the interpreter's own start included.",
            (
                f"Installed by pip into an empty folder, as `du` counts it, with the bytecode that pip compiles: {listed}. "
                f"The wheels have {wheels:.1f} MB together."
            ),
        ],
    )


def _installed() -> tuple[int, float, dict[str, float]]:
    """Install tenuto as anybody would: how many packages, how many MB in wheels, how many MB each takes on disk."""
    pip, root = (sys.executable, "-m", "pip", "--quiet"), Path(__file__).parent.parent
    with folder() as path:
        _run(*pip, "wheel", "--wheel-dir", str(path / "wheels"), str(root))
        wheels = list((path / "wheels").iterdir())
        _run(*pip, "install", "--no-deps", "--target", str(path / "here"), *map(str, wheels))
        sizes = {
            part.name: sum(file.stat().st_blocks * 512 for file in [part, *part.rglob("*")]) / 2**20
            for part in sorted((path / "here").iterdir())
        }
        return len(wheels), sum(wheel.stat().st_size for wheel in wheels) / 2**20, sizes


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
