"""Run a script and kill it with -9 right before or right after its n-th commit: `killed_at_commit.py 2 after script.py …`."""

import os
import runpy
import signal
import sys
from typing import Any

from tenuto.backends.sqlite.backend import SqliteBackend


def main() -> None:
    wanted, when, script, *arguments = sys.argv[1:]
    commit, count = SqliteBackend.commit, 0

    def counted(self: Any, *given: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == int(wanted) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = commit(self, *given, **options)
        if count == int(wanted):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    SqliteBackend.commit = counted  # type: ignore[method-assign]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


main()
