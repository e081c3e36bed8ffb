"""An example of `examples/`, run or killed in a folder of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


class Story:
    """An example, run in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self._script = str(EXAMPLES / f"{name}.py")
        self.folder = folder

    def killed(self, *options: str) -> list[str]:
        return self._run(-signal.SIGKILL, *options)

    def run(self, *options: str) -> list[str]:
        return self._run(0, *options)

    def _run(self, expected: int, *options: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", self._script, *options],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "TENUTO_URL"},
        )
        assert done.returncode == expected, done.stderr
        return done.stdout.splitlines()

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()
