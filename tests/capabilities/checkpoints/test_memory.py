"""A checkpoint of 200 MB works within 2.5 times its size in memory."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORK = """
import resource, sys
from tenuto import Tenuto

def peak():
    try:
        with open("/proc/self/status") as status:  # getrusage would tell of the parent's peak too
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

what, shape, path = sys.argv[1:]
agent = Tenuto("memory", path)
agent.open()
before = peak()
if what == "create":
    if shape == "large":
        state = {"pages": [{"n": n, "text": chr(97 + n % 26) * 1_000_000 + str(n)} for n in range(200)]}
    else:
        state = {"rows": [bytes([n % 251]) * 20_000 + b"%d" % n for n in range(10_000)]}
    size = agent.checkpoint.create("big", state).size
else:
    state = agent.checkpoint.restore("big")
    size = agent.checkpoint.get("big").size
    rows = state["pages"] if shape == "large" else state["rows"]
    assert len(rows) == (200 if shape == "large" else 10_000)
print((peak() - before) / size, size)
"""


@pytest.mark.parametrize("shape", ["large", "small"])
def test_two_hundred_megabytes_take_at_most_two_and_a_half_times_that(tmp_path: Path, shape: str) -> None:
    for what in ("create", "restore"):
        done = subprocess.run(
            [sys.executable, "-c", WORK, what, shape, str(tmp_path / "store.db")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ratio, size = map(float, done.stdout.split())
        print(f"{what} of {size / 1e6:.0f} MB in {shape} parts: {ratio:.2f} times its size")
        assert size > 199e6
        assert ratio <= 2.5
