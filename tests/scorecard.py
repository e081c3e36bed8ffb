"""Run the reliability scorecard: `python tests/scorecard.py [--long] [--docs] [pytest arguments…]`.

The short form takes minutes, the long one about half an hour on two cores. `--docs` writes the table of the last run
into docs/guarantees.md.
"""

import json
import os
import subprocess
import sys

from support import scorecard

wanted = sys.argv[1:]
flags = {flag for flag in ("--long", "--docs") if flag in wanted}
rest = [one for one in wanted if one not in flags]
code = 0
if flags != {"--docs"}:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "scorecard", "--scorecard", *rest]
    long = "1" if "--long" in flags else "0"
    code = subprocess.run(command, env={**os.environ, "TENUTO_LONG": long}, cwd=scorecard.TOP, check=False).returncode
if "--docs" in flags:
    scorecard.write_docs(scorecard.TOP / "docs" / "guarantees.md", json.loads(scorecard.RESULT.read_text()))
sys.exit(code)
