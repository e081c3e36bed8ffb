"""Run a command of tenuto that is killed with -9 at its nth boundary: before and after each change that it makes.

killed_at_call.py NUMBER WORDS … prints the number of boundaries if it was not killed.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tenuto.backends.sqlite import backup
from tenuto.backends.sqlite.backend import SqliteBackend
from tenuto.capabilities.archive.places import Folder
from tenuto.capabilities.store import lines
from tenuto.cli import main

number = int(sys.argv[1])
passed = itertools.count(1)
last = 0


def boundary() -> None:
    global last
    last = next(passed)
    if last == number:
        os.kill(os.getpid(), signal.SIGKILL)


def bracket(owner: Any, *names: str) -> None:
    for name in names:
        call = getattr(owner, name)

        def inner(*args: Any, _call: Any = call, **kwargs: Any) -> Any:
            boundary()
            found = _call(*args, **kwargs)
            boundary()
            return found

        setattr(owner, name, inner)


bracket(SqliteBackend, "commit", "load", "trim")
bracket(Folder, "put", "delete")
bracket(os, "fsync", "link")
bracket(Path, "replace")
bracket(backup, "_step")
bracket(lines, "line_of")
try:
    main(sys.argv[2:])
finally:
    print(f"boundaries {last}", file=sys.stderr)
