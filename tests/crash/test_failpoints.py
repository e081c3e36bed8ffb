"""The process ends at each step of a commit: the store is before it or after it, never between."""

import json

import pytest
from crash_harness import Child, copy_store
from fault_judge import LEFT, LINES, RIGHT, problems, read_notes
from support.long import size

from tenuto import Damaged, Tenuto
from tenuto.backends.sqlite.commit import Writer
from tenuto.kernel.contract import Append, Put

STEPS = [
    *("before run", "before transact", "before _begin", "after _begin", "before apply", "after apply"),
    *("before COMMIT", "inside COMMIT"),
    *("before store", "half store", "after store", "after transact", "after run"),
]
DONE = STEPS.index("inside COMMIT")
OPENING = [
    *("before run", "before _open", "before sync_log", "after sync_log", "after clear_failed_sync"),
    *("before prepare", "before COMMIT", "after prepare", "before reset", "after reset", "after _open"),
]
UPKEEP = ["before checkpoint", "after checkpoint", "before sweep", "after sweep", "before COMMIT", "after store"]
CLOSING = ["before close", "before _retire", "after _retire", "after close"]


@pytest.fixture(scope="module")
def nursery():
    with Child("worker_faults.py") as child:
        yield child
        complaints = child.ends()[1]
        assert complaints == ""


@pytest.fixture
def die(nursery, path, tmp_path):
    """Run a writer that dies at a point; return what it noted, or None if it never got there."""

    def run(point, *, at=1, armed="after opening", action="exit", store=path, **order):
        notes = tmp_path / f"{store.name}.notes"
        order = {"point": point, "at": at, "armed": armed, "action": action, "commits": 3, **order}
        nursery.tell(json.dumps({**order, "store": str(store), "notes": str(notes)}))
        ended = int(nursery.says())
        assert ended in (0, 42), (ended, nursery.process.poll())
        return read_notes(notes) if ended == 42 else None

    return run


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.scorecard(2)
def test_a_commit_that_ends_at_any_step_happened_or_did_not(die, path, step, at, figures):
    # given a store, when its writer dies at a step of a commit
    notes = die(step, at=at, before=2)
    assert notes is not None
    # then that commit is there if SQLite had made it, and otherwise not, and everything else stands
    with Tenuto("judge", path) as agent:
        there = len(agent.kernel.entries(LINES)) == len(notes.intended)
    assert there == (STEPS.index(step) >= DONE)
    figures(deaths=1, wrong=len(problems(path, notes)))


def warmed(path):
    """A client in this process that has the newest rows in its cache and stored the newest mark."""
    peer = Tenuto("peer", path)
    for value in (b"peer0", b"peer1"):
        peer.kernel.commit([], [Put(LEFT, value), Put(RIGHT, value), Append(LINES, value)])
    return peer


def versions_after(peer):
    return peer.kernel.commit([], [Put(LEFT, b"peer2"), Put(RIGHT, b"peer2"), Append(LINES, b"peer2")]).versions


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.scorecard(2)
def test_another_process_that_was_open_all_the_time_goes_on_correctly(die, path, step, figures):
    # given another process with the newest rows in its cache
    peer = warmed(path)
    peer._backend._sweep_due = float("inf")
    # when a writer dies at a step of its first commit
    notes = die(step)
    # then the other goes on from what was committed, not from its cache
    happened = STEPS.index(step) >= DONE
    assert versions_after(peer) == (3 + happened,) * 3
    peer.close()
    figures(deaths=1, wrong=len(problems(path, notes, others=("peer0", "peer1", "peer2"))))


@pytest.mark.parametrize("planted", [None, "early mark"])
@pytest.mark.scorecard(2, planted=True)
def test_a_mark_that_is_stored_before_the_commit_is_found_out(die, path, planted):
    # given, or not, the planted bug: the mark names a commit that is not made yet
    notes = die("before COMMIT", planted=planted)
    assert notes is not None
    # when its writer dies between the two, then with the bug a loss is told that never was
    try:
        found = problems(path, notes)
    except Damaged as error:
        found = [str(error)]
    print(f"{planted or 'as it is'}: {found}")
    assert bool(found) == bool(planted)


@pytest.mark.scorecard(2, planted=True)
def test_a_writer_that_believes_its_cache_although_another_wrote_is_found_out(die, path, monkeypatch):
    # given the planted bug: the last commit of the store is not compared with the writer's own
    peer = warmed(path)
    die("after store")
    monkeypatch.setattr(Writer, "_begin", lambda writer: writer.connection.execute("BEGIN IMMEDIATE"))
    # when the other process commits, then it does not go on from what the dead one has written
    try:
        versions = versions_after(peer)
    except Damaged as error:
        versions = str(error)
    monkeypatch.undo()
    peer.close()
    print(f"planted bug: the next commit gave {versions} instead of (4, 4, 4)")
    assert versions != (4, 4, 4)


@pytest.mark.parametrize("step", OPENING)
@pytest.mark.scorecard(2)
def test_a_store_whose_making_ended_at_any_step_can_be_opened(die, path, step, figures):
    notes = die(step, armed="before opening")
    assert notes is not None
    figures(deaths=1, wrong=len(problems(path, notes)))


@pytest.mark.parametrize("step", UPKEEP)
@pytest.mark.scorecard(2)
def test_upkeep_that_ends_at_any_step_loses_nothing(die, path, step, figures):
    notes = die(step, armed="before upkeep", checkpoint=True)
    assert notes is not None
    assert len(notes.acknowledged) == len(notes.intended)
    figures(deaths=1, wrong=len(problems(path, notes)))


@pytest.mark.parametrize("step", CLOSING)
@pytest.mark.scorecard(2)
def test_closing_that_ends_at_any_step_loses_nothing(die, path, step, figures):
    notes = die(step, armed="before closing")
    assert notes is not None
    assert len(notes.acknowledged) == len(notes.intended)
    # a copy of all its files, and what is in the place itself
    copy = path.with_name("copy.db")
    copy_store(path, copy)
    figures(deaths=1, wrong=len(problems(path, notes) + problems(copy, notes)))


@pytest.mark.slow
@pytest.mark.timeout(size(180, 1_800))
@pytest.mark.parametrize(
    ("point", "action", "armed"),
    [
        ("write", "exit", "before opening"),
        ("write", "torn", "before opening"),
        ("sync", "exit", "before opening"),
        ("write", "torn", "after opening"),
        ("write", "exit", "after opening"),
        ("sync", "exit", "after opening"),
        ("write", "torn", "before closing"),
        ("sync", "exit", "before closing"),
    ],
)
@pytest.mark.scorecard(2)
def test_the_process_may_end_at_any_write_or_sync(die, path, point, action, armed, figures):
    # given a writer that makes a store, commits, moves its log into the file and sweeps
    found, deaths, at = [], 0, 1
    # when it dies at its first, second, … write or sync
    while True:
        store = path.with_name(f"{at}.db")
        notes = die(point, at=at, armed=armed, action=action, checkpoint=True, store=store)
        if notes is None:
            break
        deaths += 1
        copy = path.with_name(f"{at}.copy.db")
        copy_store(store, copy)
        # then the store, and a copy of its files, are before or after each commit
        found += [(at, problem) for place in (store, copy) for problem in problems(place, notes)]
        at += 1 if deaths < size(24, 10**6) else size(4, 1)
    print(f"exit at each {point} ({action}, armed {armed})", found[:5])
    figures(deaths=deaths, wrong=len(found))
    assert deaths > 3
