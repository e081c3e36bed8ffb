"""Run the reliability scorecard: `python tests/scorecard.py [--long] [--docs] [pytest arguments…]`.

The short form takes minutes, and keeps its stores in memory where there is one (`support/memory.py`). The long one takes about
an hour and a half on two cores: its soak alone an hour, or TENUTO_SOAK seconds. `--docs` writes the table of the last run
into docs/guarantees.md.
"""

import json
import os
import subprocess
import sys

from support import memory, scorecard

wanted = sys.argv[1:]
flags = {flag for flag in ("--long", "--docs") if flag in wanted}
rest = [one for one in wanted if one not in flags]
code = 0
if flags != {"--docs"}:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "scorecard", "--scorecard", *rest]
    long = "--long" in flags
    env = {**os.environ, "TENUTO_LONG": "1" if long else "0"}
    if not long and (folder := memory.folder()):
        env["TMPDIR"] = str(folder)
    code = subprocess.run(command, env=env, cwd=scorecard.TOP, check=False).returncode
if "--docs" in flags:
    scorecard.write_docs(scorecard.TOP / "docs" / "guarantees.md", json.loads(scorecard.RESULT.read_text()))
sys.exit(code)
