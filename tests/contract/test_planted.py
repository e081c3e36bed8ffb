"""A suite that cannot fail proves nothing: each planted bug must turn it red."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.long import size

PLANTED = Path(__file__).with_name("planted.py")
BUGS = list(re.findall(r"^class (\w+)\(VolatileBackend\)", PLANTED.read_text(), re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("bug", size(BUGS[::3], BUGS))
@pytest.mark.scorecard(9, planted=True)
def test_the_suite_finds_the_planted_bug(bug: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(PLANTED),
        "-qx",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path}/t",
    ]

    ran = subprocess.run(
        command, env={**os.environ, "PLANTED": bug}, capture_output=True, text=True, timeout=120, check=False
    )

    assert ran.returncode == 1, ran.stdout[-2000:]
    print(bug, re.findall(r"^FAILED .*", ran.stdout, re.MULTILINE))
