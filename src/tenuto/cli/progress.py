"""A line on the terminal while something takes long; off a terminal, nothing."""

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
    """Says what is being done, for how long, and how far it has come where that is known.

    It is drawn by a thread of its own, on stderr, once half a second has passed; when it is over the line is blank
    again. So what is quick says nothing, and what is printed is the same with and without it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._part: float | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawn = 0

    def at(self, done: int, total: int) -> None:
        """Say how far it has come."""
        self._part = done / total if total else None

    def __enter__(self) -> Self:
        """Begin, if somebody is there to see it."""
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, name="tenuto-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the line as it was."""
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
        line = f"{self._what} …{bar} {seconds:.0f} s"
        click.echo("\r" + line.ljust(self._drawn), err=True, nl=False)
        self._drawn = len(line)
