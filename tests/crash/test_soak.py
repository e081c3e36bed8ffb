"""An hour of everything: steady workers stay as small as they were while others are killed beside them."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from crash_harness import beside
from support.long import size

from tenuto import Tenuto

SECONDS = size(12, int(os.environ.get("TENUTO_SOAK", "3600")))
"""An hour in the long form, or as many seconds as TENUTO_SOAK says."""
WORKER = Path(__file__).with_name("worker_soak.py")


class Steady:
    """A worker that is left alone, and the samples that it prints."""

    def __init__(self, path, name, seconds, *bug):
        command = [sys.executable, str(WORKER), str(path), str(seconds), name, *bug]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.samples, self.done = [], 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            told = json.loads(line)
            self.done = told.get("ended", self.done)
            if "rss" in told:
                self.samples.append(told)

    def ends(self):
        self._reader.join()
        with self.process.stdout, self.process.stderr:
            assert (self.process.wait(), self.process.stderr.read()) == (0, "")

    def grown(self, what):
        """Return by how much a figure grew from the second quarter to the last one."""
        told = [sample[what] for sample in self.samples]
        quarter = len(told) // 4
        return statistics.median(told[-quarter:]) - statistics.median(told[quarter : 2 * quarter])


@pytest.mark.slow
@pytest.mark.scorecard(21, planted=True)
def test_a_worker_that_leaves_files_open_is_found_out(path):
    worker = Steady(path, "leaky", 4, "leaky")
    worker.ends()
    print(f"planted bug: {worker.grown('fds')} more files open")
    assert worker.grown("fds") > 4


@pytest.mark.slow
@pytest.mark.scorecard(21)
@pytest.mark.timeout(size(180, 7_200))
def test_everything_at_once_for_a_long_time_stays_flat(path, figures):
    chance, kills, largest = random.Random(1), 0, 0
    Tenuto("first", path).open().close()
    steady = [Steady(path, f"steady{n}", SECONDS) for n in range(2)]
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        victim = subprocess.Popen(
            [sys.executable, str(WORKER), str(path), "3600", f"victim{kills}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.5, 2.0))  # the random moment is the point
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        kills += 1
        log = beside(path, "-wal")
        largest = max(largest, log.stat().st_size if log.exists() else 0)
    for one in steady:
        one.ends()
    with Tenuto("judge", path) as agent:
        assert agent.store.check().ok
    figures(
        seconds=SECONDS,
        kills=kills,
        calls=sum(one.done for one in steady),
        largest_log_kb=largest // 1024,
        largest_growth_of_memory_kb=max(one.grown("rss") for one in steady) // 1024,
        largest_growth_of_descriptors=max(one.grown("fds") for one in steady),
        largest_growth_of_threads=max(one.grown("threads") for one in steady),
        file_kb=path.stat().st_size // 1024,
    )
    assert largest < 64 * 2**20
    for one in steady:
        assert one.grown("rss") < size(24, 16) * 2**20
        assert one.grown("fds") <= 4
        assert one.grown("threads") <= 2
