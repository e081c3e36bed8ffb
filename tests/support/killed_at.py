"""Run a script that is killed with -9 at its nth boundary: before and after each commit and each call of a command.

killed_at.py NUMBER SCRIPT [ARGUMENTS]
"""

import itertools
import os
import runpy
import signal
import subprocess
import sys
from typing import Any

from tenuto.wrappers.tenant import Tenant

number = int(sys.argv[1])
passed = itertools.count(1)


def boundary() -> None:
    if next(passed) == number:
        os.kill(os.getpid(), signal.SIGKILL)


def bracketed(call: Any) -> Any:
    def inner(*args: Any, **kwargs: Any) -> Any:
        boundary()
        found = call(*args, **kwargs)
        boundary()
        return found

    return inner


Tenant.commit = bracketed(Tenant.commit)  # type: ignore[method-assign]
subprocess.run = bracketed(subprocess.run)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
