"""Success means that a sync has covered it: writers killed inside a sync, syncs that fail, marks that are lowered.

A writer's file I/O is recorded and replayed: a power loss at a moment leaves what was synced until then, and
in these tests nothing else. `test_power_loss.py` leaves other things too.
"""

import copy
import random
import shutil
import signal
import time

import pytest
from crash_harness import beside, run
from disk_image import Disk, by_chance, everything, nothing
from io_recorder import events
from support.long import size
from worker_recorded import KEY

from tenuto import Tenuto, _machine
from tenuto.kernel.transact import new_request

ANOTHER_BOOT = bytes(range(16))


class Machine:
    """A store, what was recorded of its writers, and the disk as power losses leave it."""

    def __init__(self, folder):
        self.store, self.log, self.image = folder / "store.db", folder / "log", folder / "image" / "store.db"
        self.image.parent.mkdir()
        self._before = Disk()

    def runs(self, scene, **given):
        return run(
            "worker_recorded.py", scene, self.store, self.log, *(f"{key}={value}" for key, value in given.items())
        )

    def forget_the_past(self):
        """Take the files as they are for synced, and begin a new record."""
        self._before = Disk.of(self.store)
        self.log.unlink(missing_ok=True)

    def moments(self):
        """Play the record; stop at each acknowledgement with (the disk, what was acknowledged until then)."""
        disk, acknowledged = copy.deepcopy(self._before), []
        for event in events(self.log):
            disk.play(event)
            if event[:2] == ("note", "acknowledged"):
                acknowledged.append(event[2])
                yield disk, acknowledged

    def at_the_end(self):
        """Return the disk after everything that was recorded."""
        disk = copy.deepcopy(self._before)
        for event in events(self.log):
            disk.play(event)
        return disk


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def restarted(monkeypatch):
    """From here on the test runs after another boot than its writers."""
    monkeypatch.setattr(_machine, "boot_id", lambda: ANOTHER_BOOT)


def stored(path, **options):
    with Tenuto("judge", path, **options) as agent:
        assert agent.store.check().ok
        return agent.state.keys("s")


def request_id():
    return new_request(time.time()).hex()


FOUND = {
    "append": lambda agent: agent.thread("t").count() == 1,
    "enqueue": lambda agent: len(agent.tasks.pending("q")) == 1,
    "commit": lambda agent: agent._backend.read([KEY]) != [None],
    "get": lambda agent: agent.state.get("s", "read") == 1,
}


@pytest.mark.parametrize(("how", "fail"), [*((how, "") for how in FOUND), ("append", 1), ("get", 1)])
@pytest.mark.usefixtures("restarted")
def test_a_repeated_call_is_answered_after_a_sync_only(machine, how, fail):
    # given a store, and a writer that is killed inside the sync of its commit
    machine.runs("write_values", count=2)
    machine.forget_the_past()
    request = request_id()
    first = machine.runs("repeat", how="set" if how == "get" else how, request=request, kill=1)
    assert (first.returncode, first.stderr) == (-signal.SIGKILL, "")
    # when another process makes the same call (or reads what was written) and is answered, perhaps after a failed sync
    second = machine.runs("repeat", how=how, request=request, fail=fail)
    assert (second.returncode, second.stderr) == (0, "")
    moments = list(machine.moments())
    # then that answer survives a power loss
    assert len(moments) == 1, "the page cache outlives a killed process"
    moments[0][0].save(machine.image, nothing)
    with Tenuto("judge", machine.image) as agent:
        assert FOUND[how](agent)


@pytest.mark.parametrize("fail", ["", 1])
@pytest.mark.usefixtures("restarted")
def test_a_request_made_without_a_sync_is_confirmed_after_one(machine, fail):
    # given two clients of one store, when the one that syncs repeats a request of the one that does not
    ended = machine.runs("repeat_of_another_durability", request=request_id(), fail=fail)
    assert (ended.returncode, ended.stderr) == (0, "")
    ((disk, _),) = machine.moments()
    # then its answer survives a power loss
    disk.save(machine.image, nothing)
    with Tenuto("judge", machine.image) as agent:
        assert FOUND["commit"](agent)


# -- syncs that fail ---------------------------------------------------------------------------------


def assert_acknowledged_survive(machine):
    """Cut the power after each acknowledged call; return how many there were."""
    count = 0
    for disk, acknowledged in machine.moments():
        disk.save(machine.image, nothing)
        assert set(acknowledged) <= set(stored(machine.image))
        count += 1
    return count


def test_nothing_succeeds_while_every_sync_fails(machine):
    machine.runs("write_values", count=2)
    machine.forget_the_past()
    # when no sync succeeds
    ended = machine.runs("failing_syncs", count=4, first="all")
    # then no call does
    assert (ended.returncode, ended.stderr) == (0, "")
    notes = [event[1] for event in events(machine.log) if event[0] == "note"]
    assert notes == ["refused"] * 4


@pytest.mark.parametrize("first", [1, 2, 3, 4])
@pytest.mark.usefixtures("restarted")
def test_commits_after_failed_syncs_survive_a_power_loss(machine, first):
    machine.runs("write_values", count=2)
    machine.forget_the_past()
    # given some syncs that fail, when the disk works again
    ended = machine.runs("failing_syncs", count=6, first=first)
    assert (ended.returncode, ended.stderr) == (0, "")
    # then what is acknowledged does not rest on pages that the failed syncs have lost
    assert assert_acknowledged_survive(machine) >= 3


@pytest.mark.usefixtures("restarted")
def test_the_next_process_does_not_believe_what_a_failed_sync_left(machine):
    machine.runs("write_values", count=2)
    machine.forget_the_past()
    # given a process whose syncs all failed, when another process of the same boot writes
    machine.runs("failing_syncs", count=2, first="all", who="lost")
    ended = machine.runs("failing_syncs", count=3)
    assert (ended.returncode, ended.stderr) == (0, "")
    # then what is acknowledged to it survives a power loss
    assert assert_acknowledged_survive(machine) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("seed", range(size(2, 60)))
def test_acknowledged_commits_survive_syncs_that_fail_by_chance(machine, seed):
    machine.runs("write_values", count=2)
    machine.forget_the_past()
    # given two processes, one after the other, whose syncs fail now and then
    for who in ("a", "b"):
        ended = machine.runs("failing_syncs", count=12, seed=f"{seed}{who}", who=who)
        assert ended.returncode == 0 or "StorageUnavailable" in ended.stderr, ended.stderr
    # then a power loss takes nothing that was acknowledged
    assert_acknowledged_survive(machine)


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("seed", range(size(2, 40)))
def test_failed_syncs_and_a_power_loss_leave_a_fast_store_whole(machine, seed):
    # given a store at durability="process", which syncs at WAL checkpoints only, and syncs that fail now and then
    ended = machine.runs("failing_syncs", count=25, seed=seed, durability="process")
    assert (ended.returncode, ended.stderr) == (0, "")
    recording, disk, rng = events(machine.log), Disk(), random.Random(seed)
    moments = set(rng.choices(range(len(recording)), k=60))
    # when the power goes at any moment
    for number, event in enumerate(recording):
        disk.play(event)
        if number in moments:
            disk.save(machine.image, rng.choice([nothing, everything, by_chance(rng), by_chance(rng)]))
            # then a prefix of the commits is there, and nothing is damaged
            found = stored(machine.image, durability="process")
            assert set(found) <= {"begun", *(f"k{number}" for number in range(25))}


# -- the mark, where it is lowered -----------------------------------------------------------------


@pytest.mark.usefixtures("restarted")
def test_a_new_store_in_the_place_of_an_old_one_survives_a_power_loss(machine):
    # given a store that was removed, and its lock file that was not
    machine.runs("write_values", count=10, close=1)
    machine.store.unlink()
    machine.forget_the_past()
    # when a new store is begun there
    machine.runs("write_values", count=5)
    # then a power loss is not mistaken for a loss of the old store's commits
    machine.at_the_end().save(machine.image, nothing)
    assert stored(machine.image) == [f"k{number}" for number in range(5)]


@pytest.mark.usefixtures("restarted")
def test_a_restored_backup_survives_a_power_loss(machine, tmp_path):
    # given a store of which an older copy was restored
    machine.runs("write_values", count=4, close=1)
    shutil.copyfile(machine.store, tmp_path / "backup")
    machine.runs("write_values", count=20, close=1)
    shutil.copyfile(tmp_path / "backup", machine.store)
    machine.forget_the_past()
    # when it is opened with accept_loss
    machine.runs("write_values", count=5, accept_loss=1)
    # then a power loss does not bring back the mark of what was given up
    machine.at_the_end().save(machine.image, nothing)
    assert stored(machine.image) == [f"k{number}" for number in range(5)]


@pytest.mark.slow
def test_a_process_killed_while_it_makes_a_store_leaves_one_that_opens(machine, monkeypatch):
    # given the lock file of a store that was removed
    machine.runs("write_values", count=10, close=1)
    old = beside(machine.store, "-lock").read_bytes()
    kills = 0
    while True:
        for part in ("", "-wal", "-shm", "-journal"):
            beside(machine.store, part).unlink(missing_ok=True)
        beside(machine.store, "-lock").write_bytes(old)
        machine.forget_the_past()
        # when the process that begins a new store is killed at its first, second, … sync
        ended = machine.runs("write_values", count=1, kill_at=kills + 1)
        if ended.returncode == 0:
            break
        kills += 1
        # then the store opens: at once, after a power loss that takes all or nothing
        disk = machine.at_the_end()
        assert stored(machine.store) in ([], ["k0"])
        with monkeypatch.context() as patch:
            patch.setattr(_machine, "boot_id", lambda: ANOTHER_BOOT)
            for fate in (nothing, everything):
                disk.save(machine.image, fate)
                assert stored(machine.image) in ([], ["k0"])
    assert kills >= 3


# -- durability="process" --------------------------------------------------------------------------


@pytest.mark.parametrize(("commits", "boot"), [(0, "another"), (3, "another"), (0, "unknown"), (3, "unknown")])
def test_a_power_loss_soon_after_a_fast_store_was_made_is_no_alarm(machine, monkeypatch, commits, boot):
    # given a new store at durability="process", none of it written back but its lock file
    ended = machine.runs("write_values", count=commits, durability="process", boot=boot)
    assert (ended.returncode, ended.stderr) == (0, "")
    machine.at_the_end().save(machine.image, nothing)
    shutil.copyfile(beside(machine.store, "-lock"), beside(machine.image, "-lock"))
    # when it is opened after a power loss
    monkeypatch.setattr(_machine, "boot_id", lambda: bytes(16) if boot == "unknown" else ANOTHER_BOOT)
    # then it opens: losing the newest commits is what this durability allows
    assert set(stored(machine.image, durability="process")) <= {f"k{number}" for number in range(commits)}
