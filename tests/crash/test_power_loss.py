"""Power losses at any moment of a store's life, with any part of what was not synced on the disk.

The file I/O of a writer is recorded. Each image is what the disk may hold after a prefix of it, opened as after another
boot. At "full" everything that was acknowledged is there; at "process" it is a prefix of the commits. Never is
there a wrong value, and never is a plain power loss called damage.
"""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from crash_harness import run
from disk_image import Disk, by_chance, everything, nothing
from io_recorder import events
from support.long import size
from support.memory import MEMORY
from worker_power import LEFT, LINES, RIGHT, fleeting, value

from tenuto import Damaged, _machine
from tenuto.backends.sqlite import SqliteBackend
from tenuto.errors import TenutoError
from tenuto.kernel.contract import Put
from tenuto.testing import HeldClock

IMAGES = {"full": size(3_000, 100_000), "process": size(250, 10_000)}
PARTS = size(2, 10)
"""Of the images at "full", so that they are made concurrently."""
IMAGES_OF_A_RECORDING = size(500, 1_000)
"""Of each life that is recorded, and of which every second has two processes."""


@pytest.fixture
def place():
    """A folder in memory where there is one, also in the long form: the judge's own syncs need not reach a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _another_boot(monkeypatch):
    monkeypatch.setattr(_machine, "boot_id", lambda: bytes(range(16)))


def recorded(place, durability, seed, bug=""):
    store, log = place / "store.db", place / f"log{seed}"
    for file in place.glob("store.db*"):
        file.unlink()
    ended = run("worker_power.py", store, log, durability, seed, bug)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return events(log)


def images(place, recording, rng, count):
    """Make images of power losses at random moments; for each give (its path, acknowledged, begun)."""
    # The interesting moments are those between two events of one commit, not those of long values.
    moments = sorted(rng.choices(range(1, len(recording) + 1), k=count))
    disk, at, acknowledged, begun = Disk(), 0, 0, 0
    image = place / "image.db"
    for moment in moments:
        for event in recording[at:moment]:
            disk.play(event)
            if event[:2] == ("note", "acknowledged"):
                acknowledged = event[2]
            elif event[:2] == ("note", "begun"):
                begun = event[2]
        at = moment
        disk.save(image, rng.choice([nothing, everything, *[by_chance(rng)] * 6]))
        yield image, acknowledged, begun


def verdict(image, durability, acknowledged, begun):
    """Open an image, and go on writing; return what became of the commits."""
    backend = SqliteBackend(image, durability=durability, clock=HeldClock(1_900_000_000.0))
    try:
        left, right = backend.read([LEFT, RIGHT])
        lines = backend.entries(LINES, limit=10_000)
        findings = backend.check()
        backend.commit([], [Put(fleeting(0), b"after")])
    except Damaged:
        return "false alarm"
    except TenutoError as error:
        return type(error).__name__
    finally:
        backend.close()
    if findings:
        return "corrupt"
    last = len(lines)
    if [entry.value for entry in lines] != [value(number) for number in range(1, last + 1)] or last > begun:
        return "wrong value"
    if [record and record.value for record in (left, right)] != [value(last) if last else None] * 2:
        return "wrong value"
    return "good" if last >= acknowledged else "behind"


def judged(place, durability, count, *, part=0, bug=""):
    found = Counter()
    recordings = -(-count // IMAGES_OF_A_RECORDING)
    for seed in range(part * recordings, (part + 1) * recordings):
        recording = recorded(place, durability, seed, bug)
        for image in images(place, recording, random.Random(seed), min(count, IMAGES_OF_A_RECORDING)):
            found[verdict(image[0], durability, *image[1:])] += 1
    return found


def others(found):
    """Return the outcomes that have no place in the table: typed errors, and what `check` found."""
    return {
        what: count for what, count in found.items() if what not in {"good", "behind", "wrong value", "false alarm"}
    }


@pytest.mark.slow
@pytest.mark.scorecard(4)
@pytest.mark.timeout(size(600, 7_200))
@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_loss_takes_nothing_that_was_acknowledged(place, figures, part):
    found = judged(place, "full", IMAGES["full"] // PARTS, part=part)
    figures(images=found.total(), lost=found["behind"], wrong=found["wrong value"], false_alarms=found["false alarm"])
    assert not others(found)
    assert found["good"] >= IMAGES["full"] // PARTS


@pytest.mark.slow
@pytest.mark.scorecard(4)
@pytest.mark.timeout(size(180, 3_000))
def test_a_power_loss_leaves_a_prefix_of_what_was_not_synced(place, figures):
    found = judged(place, "process", IMAGES["process"])
    figures(
        images_at_process=found.total(),
        prefixes_at_process=found["behind"],
        wrong=found["wrong value"],
        false_alarms=found["false alarm"],
    )
    assert not others(found)
    assert found["behind"]


@pytest.mark.slow
@pytest.mark.scorecard(4, planted=True)
@pytest.mark.parametrize("bug", ["commits are not synced", "the mark comes before the sync"])
def test_a_planted_bug_is_found(place, bug):
    found = judged(place, "full", 60, bug=bug)
    print(f"{bug}: {dict(found)}")
    assert set(found) & {"behind", "false alarm"}
