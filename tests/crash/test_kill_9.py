"""Four processes write to one SQLite file and are killed at random moments, again and again."""

import json
import os
import random
import signal
import time
from typing import NamedTuple

import pytest
from crash_harness import Child, wait_until
from support.long import size

from tenuto import Tenuto

KILLS = size(80, 3_000)
SCOPES = {"single": ["a", "b"], "grown": ["n"], "pair": ["left", "right"]}


class Verdict(NamedTuple):
    acknowledged: int
    lost: list
    phantom: list
    torn: list
    gaps: list

    @property
    def clean(self):
        return not (self.lost or self.phantom or self.torn or self.gaps)


def judge(folder, agent):
    """Compare what the writers noted with what is stored: the one function that all tests here use."""
    history = {
        scope: {key: agent.state.history(scope, key, limit=10**9)[::-1] for key in keys}
        for scope, keys in SCOPES.items()
    }
    stored = {
        (scope, key, _plain(entry.value)): entry.version
        for scope, keys in history.items()
        for key, entries in keys.items()
        for entry in entries
    }
    intended, acknowledged, lost = set(), 0, []
    for file in folder.glob("*.notes"):
        lines = file.read_text().splitlines(keepends=True)
        for kind, note in (json.loads(line) for line in lines if line.endswith("\n")):
            for key, value in note["values"].items():
                what = (note["scope"], key, value)
                if kind == "intent":
                    intended.add(what)
                    continue
                acknowledged += 1
                if what not in stored or note["version"] not in (None, stored[what]):
                    lost.append(what)
    gaps = [
        (scope, key)
        for scope, keys in history.items()
        for key, entries in keys.items()
        if [entry.version for entry in entries] != list(range(1, len(entries) + 1))
        or (entries and agent.state.get(scope, key) != entries[-1].value)
    ]
    torn = [
        (left.value, right.value)
        for left, right in zip(history["pair"]["left"], history["pair"]["right"], strict=False)
        if left.value != right.value
    ]
    if len(history["pair"]["left"]) != len(history["pair"]["right"]):
        torn.append("one side has more versions than the other")
    return Verdict(acknowledged, lost, sorted(stored.keys() - intended), torn, gaps)


def _plain(value):
    return value[1] if isinstance(value, list) else value


def kill_writers(path, folder, mode, kills, *, self_inflicted=False):
    """Keep four writers going until so many have been killed; return what they complained about."""
    chance = random.Random(9)
    folder.mkdir()
    with Child("worker_writes.py", path, folder, mode) as nursery:
        living: list[int] = []
        for number in range(kills):
            while len(living) < 4:
                nursery.tell(f"w{number}.{len(living)}")
                living.append(int(nursery.says()))
            if self_inflicted:
                wait_until(lambda living=living: any(_gone(pid) for pid in living))
                living = [pid for pid in living if not _gone(pid)]
                continue
            time.sleep(chance.expovariate(1 / 0.03))  # the random moment is the point
            victim = living.pop(chance.randrange(4))
            os.kill(victim, signal.SIGKILL)
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(_gone(pid) for pid in living))
        return nursery.ends()[1]


def _gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(size(180, 1_800))
@pytest.mark.scorecard(1)
def test_every_acknowledged_write_survives_kill_9(path, tmp_path, figures):
    # given four processes that write to one file, when they are killed again and again
    began = time.monotonic()
    complaints = kill_writers(path, tmp_path / "notes", "honest", KILLS)
    # then nothing that was acknowledged is lost, nothing else is there, and nobody met a lock
    with Tenuto("judge", path) as agent:
        verdict = judge(tmp_path / "notes", agent)
        report = agent.store.check()
    print(f"{time.monotonic() - began:.1f} s; {verdict}")
    figures(
        kills=KILLS,
        acknowledged=verdict.acknowledged,
        lost=len(verdict.lost),
        phantom=len(verdict.phantom),
        torn=len(verdict.torn),
        wrong=len(verdict.gaps),
    )
    assert complaints == ""
    assert verdict.acknowledged > KILLS
    assert verdict.clean, verdict
    assert report.ok, report.findings


@pytest.mark.scorecard(1, planted=True)
def test_a_writer_that_acknowledges_before_it_commits_is_found_out(path, tmp_path):
    # given writers with that bug, when they die between the two
    kill_writers(path, tmp_path / "notes", "early", 8, self_inflicted=True)
    # then the same judgement that finds nothing above finds the loss
    with Tenuto("judge", path) as agent:
        verdict = judge(tmp_path / "notes", agent)
    print(f"planted bug: {len(verdict.lost)} of {verdict.acknowledged} acknowledged writes found lost")
    assert verdict.lost
    assert not verdict.phantom
