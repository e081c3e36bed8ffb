"""A contender in a process of its own, so that its processor time and its bytes are its own.

The process runs one module of `bench`, reads orders from standard input and answers on standard output, a line of
JSON each. Whatever else it prints goes to its log. `source` is the checkout whose tenuto it imports; the code that
measures is always this one's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


class Child:
    """The side that gives the orders."""

    def __init__(self, module: str, *arguments: str, log: Path, source: Path = HERE) -> None:
        self._log = log
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=HERE,
                env={**kept, "PYTHONPATH": str(source / "src")},
            )
        imported = Path(self.answer())
        if not imported.is_relative_to(source / "src"):
            self.end()
            raise RuntimeError(f"the child imported {imported}, not the tenuto of {source}")

    def order(self, verb: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended: {self._log.read_text()[-2_000:]}")
        return json.loads(line)

    def ask(self, verb: str, *arguments: Any) -> Any:
        self.order(verb, *arguments)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Answers:
    """The side that is asked. Make it before anything prints: it takes standard output for itself."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def give(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._out, flush=True)

    def serve(self, verbs: Callable[[str], Callable[..., Any]]) -> None:
        """Say which tenuto this is, then obey until the input ends."""
        import tenuto

        self.give(str(Path(tenuto.__file__).resolve()))
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            self.give(verbs(verb)(*arguments))
