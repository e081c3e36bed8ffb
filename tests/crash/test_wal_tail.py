"""The end of the write-ahead log is missing: the store says so, and loses nothing more by being opened."""

import logging
import shutil

import pytest
from crash_harness import beside, copy_store, flip, run

from tenuto import Damaged, Tenuto
from tenuto.backends.sqlite.lockfile import LockFile

COMMITS = 20
FRAME = 4_096 + 24

_WRITE_AND_DIE = """
import os, sys
from tenuto import Tenuto
agent = Tenuto("writer", sys.argv[1], durability=sys.argv[4]).open()
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    agent.state.set("s", f"k{number:02}", number)
os.kill(os.getpid(), 9)
"""


def killed_writer(path, *, first=0, durability="full"):
    """Make a store whose newest commits are in the log only, since its writer was killed."""
    run(path, first, COMMITS, durability, code=_WRITE_AND_DIE)
    assert beside(path, "-wal").stat().st_size > 32 + FRAME


def checkpointed(path):
    """Make a store of which the first half is in the file, and the rest in the log."""
    with Tenuto("writer", path) as agent:
        for number in range(COMMITS // 2):
            agent.state.set("s", f"k{number:02}", number)
    killed_writer(path, first=COMMITS // 2)


def is_prefix(items):
    return items == {f"k{number:02}": number for number in range(len(items))}


def cut(log, count):
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - count)


def commits_of(path):
    copy = path.with_name("whole.db")
    copy_store(path, copy)
    with Tenuto("reader", copy) as agent:
        return agent.store.stats()["commits"]


@pytest.mark.parametrize("count", [1, FRAME, 3 * FRAME + 17, 10 * FRAME])
def test_a_log_cut_short_is_refused_and_what_is_left_is_a_committed_prefix(path, count):
    # given a store whose log lost its end
    checkpointed(path)
    made = commits_of(path)
    cut(beside(path, "-wal"), count)
    # when it is opened, then it is refused and the loss is numbered, also the second time
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"commit {made} was made: \d+ are lost") as refused:
            Tenuto("reader", path).open()
    lost = int(str(refused.value).partition("was made: ")[2].split()[0])
    # and who accepts the loss goes on from a committed prefix
    with Tenuto("reader", f"sqlite:///{path}?accept_loss=true") as agent:
        assert agent.store.stats()["commits"] == made - lost
        assert is_prefix(agent.state.items("s"))
        assert agent.store.check().ok
        agent.state.set("s", "more", 1)
    with Tenuto("reader", path) as agent:
        assert agent.state.get("s", "more") == 1


def test_a_missing_log_is_refused_with_the_number_of_lost_commits(path):
    # given a store whose second half was in the log only, when the log is gone
    checkpointed(path)
    made = commits_of(path)
    beside(path, "-wal").unlink()
    beside(path, "-shm").unlink()
    # then opening says how many commits went with it
    with pytest.raises(Damaged, match=rf"commit {made} was made: \d+ are lost"):
        Tenuto("reader", path).open()
    with Tenuto("reader", f"sqlite:///{path}?accept_loss=true") as agent:
        items = agent.state.items("s")
        assert is_prefix(items)
        assert len(items) == COMMITS // 2 + 1  # with the first commit the file says that it is in use


def test_a_missing_log_that_held_nearly_everything_is_refused_with_the_number_of_lost_commits(path):
    # given a young store, nearly all of it still in the log, when the log is gone
    killed_writer(path)
    made = commits_of(path)
    beside(path, "-wal").unlink()
    beside(path, "-shm").unlink()
    # then the loss is numbered here too, and no other store is begun in its place
    with pytest.raises(Damaged, match=rf"commit {made} was made: {made - 1} are lost"):
        Tenuto("reader", path).open()


@pytest.mark.parametrize("young", [True, False])
def test_refusing_a_damaged_log_leaves_every_byte_where_it_was(path, young):
    # given a log with one wrong bit in its header: the rest of it could still be read by an expert
    if young:
        killed_writer(path)
    else:
        checkpointed(path)
    log = beside(path, "-wal")
    flip(log, 8 * 20)
    before = (path.read_bytes(), log.read_bytes())
    # when the store is opened and refused, then the file and the log are as they were
    with pytest.raises(Damaged):
        Tenuto("reader", path).open()
    assert log.exists(), "opening a damaged store removed its log"
    assert (path.read_bytes(), log.read_bytes()) == before


def mark_ahead(path, by, **changes):
    """Let the mark say that more commits were made than the file holds."""
    lock = LockFile(beside(path, "-lock"))
    mark = lock.load()
    lock.run(lambda: lock.reset(mark._replace(number=mark.number + by, **changes)), 5)
    lock.close()


@pytest.fixture
def closed(path):
    with Tenuto("writer", path, durability="process") as agent:
        agent.state.set("s", "k00", 0)
    return path


def test_a_loss_with_the_machine_is_accepted_where_durability_is_for_the_process_only(closed, caplog):
    # given a mark of an earlier boot that is ahead, written without syncing
    mark_ahead(closed, 3, full=False, boot=bytes(16))
    # when the store is opened, then it opens, and the loss is in the log of the program
    with caplog.at_level(logging.WARNING, "tenuto.sqlite"):
        with Tenuto("reader", closed, durability="process") as agent:
            assert agent.state.items("s") == {"k00": 0}
            agent.state.set("s", "k01", 1)
            assert agent.store.check().ok
    assert "lost its last 3 commits with the machine" in caplog.text
    # and it is said once
    caplog.clear()
    with Tenuto("reader", closed, durability="process") as agent:
        assert is_prefix(agent.state.items("s"))
    assert caplog.text == ""


@pytest.mark.parametrize("changes", [{"full": True, "boot": bytes(16)}, {"full": False}])
def test_any_other_loss_is_refused(closed, changes):
    # given a mark that is ahead although everything was synced, or although the machine never went down
    mark_ahead(closed, 3, **changes)
    # when the store is opened, then it is refused
    with pytest.raises(Damaged, match="3 are lost"):
        Tenuto("reader", closed).open()


def test_an_older_copy_of_the_file_in_its_place_is_refused(path):
    # given a backup of the bare file, made before more was committed
    with Tenuto("writer", path) as agent:
        agent.state.set("s", "k00", 0)
    shutil.copyfile(path, path.with_name("old.db"))
    with Tenuto("writer", path) as agent:
        agent.state.set("s", "k01", 1)
    # when it is put in the place of the file, then opening says what is missing
    shutil.copyfile(path.with_name("old.db"), path)
    with pytest.raises(Damaged, match=r"\d+ are lost"):
        Tenuto("reader", path).open()
