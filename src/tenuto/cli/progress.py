"""A progress line on stderr during slow commands; nothing without a terminal."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

import click

_BEFORE, _BETWEEN = 0.5, 0.1
_WIDE = 30


class Progress:
    """Shows the current action, the elapsed time and, if known, the fraction done.

    A background thread draws the line on stderr after half a second and clears it at the end. Quick commands
    therefore show nothing, and the output is the same with and without it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._part: float | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawn = 0
        self._said = ""

    def at(self, done: int, total: int) -> None:
        """Report the progress."""
        self._part = done / total if total else None

    def say(self, text: str) -> None:
        """Report figures to show after the bar."""
        self._said = text

    def __enter__(self) -> Self:
        """Start drawing, if stderr is a terminal."""
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, name="tenuto-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop drawing and clear the line."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._over.wait(_BEFORE):
            return
        while not self._over.wait(_BETWEEN):
            self._show(time.monotonic() - began)
        click.echo("\r" + " " * self._drawn + "\r", err=True, nl=False)

    def _show(self, seconds: float) -> None:
        bar = ""
        if self._part is not None:
            full = round(min(self._part, 1.0) * _WIDE)
            bar = f" [{'█' * full}{'·' * (_WIDE - full)}] {min(self._part, 1.0):4.0%}"
        line = f"{self._what} …{bar} {seconds:.0f} s{f'  {self._said}' if self._said else ''}"
        click.echo("\r" + line.ljust(self._drawn), err=True, nl=False)
        self._drawn = len(line)
