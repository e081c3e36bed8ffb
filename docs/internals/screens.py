"""Pictures of the terminal, made by running the commands: `make screens`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parents[1] / "images"
SOURCE = Path(__file__).parents[2] / "src"
WIDTH = 108
# No web fonts: every reader has a monospaced one.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
SCREENS = {
    "demo": ("tenuto demo", ["demo"]),
    "approval": ("tenuto demo approval", ["demo", "approval"]),
    "help": ("tenuto --help", ["--help"]),
}


def main() -> None:
    """Run each command in an empty folder and draw what it prints."""
    for name, (title, words) in SCREENS.items():
        with tempfile.TemporaryDirectory() as place:
            environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "PYTHONPATH": str(SOURCE)}
            done = subprocess.run(
                [sys.executable, "-m", "tenuto", *words],
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
        console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(Text.from_ansi(done.stdout.strip("\n")))
        console.save_svg(str(IMAGES / f"{name}.svg"), title=title, code_format=FORMAT)
        print(IMAGES / f"{name}.svg")


if __name__ == "__main__":
    main()
