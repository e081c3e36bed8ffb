"""A process forks while its threads use stores: no hang, no lost commit, and where SQLite is unsafe a typed error."""

import re
from pathlib import Path

import pytest
from crash_harness import run
from support.long import size

from tenuto import Tenuto


def acknowledged_in(scene, path, *arguments, timeout=120):
    """Run a scene; return what was acknowledged in it, all of which must be stored."""
    ended = run("forking_under_load.py", scene, path, *arguments, timeout=timeout)
    print(ended.stdout.strip())
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    acks = Path(f"{path}.acks").read_text().splitlines()
    with Tenuto("judge", path) as judge:
        assert judge.store.check().ok
        lost = set(acks) - set(judge.state.keys("s"))
    assert not lost
    return acks


OUTLIVED = ["child early", *(f"child late {number}" for number in range(20))]


def test_a_fork_during_a_backup(path):
    # given a backup with a slow callback, when the process forks and the parent closes its client
    # then the child writes on, and the copy is whole
    assert acknowledged_in("during_a_backup", path) == OUTLIVED


def test_a_fork_while_a_commit_waits_for_the_lock_file(path):
    # given a commit that waits for another process, when the process forks and the parent closes its client
    acks = acknowledged_in("while_a_commit_waits", path)
    # then both the commit and all that the child wrote are there
    assert sorted(acks) == sorted(["before", "waited", *OUTLIVED])


def test_a_child_that_cannot_use_sqlite_safely_is_told_so(path):
    # given a thread that stays inside SQLite, when the process forks
    acks = acknowledged_in("inside_a_long_read", path)
    # then the child is refused, and a later child is not
    assert acks == ["before", *OUTLIVED]


def test_control_c_during_a_fork(path):
    # given a fork that waits for a thread inside SQLite, when Control-C ends the waiting
    acks = acknowledged_in("interrupted_while_forking", path)
    # then that child is refused, and a later child is not
    assert acks == ["before", *OUTLIVED]


def test_control_c_before_anything_has_come_to_rest(path):
    # given a thread inside SQLite, when the hooks of a second fork are interrupted at once
    acks = acknowledged_in("interrupted_before_the_hooks", path)
    # then the child is refused from its first call on
    assert acks == ["before"]


@pytest.mark.slow
def test_forks_while_threads_open_stores(path):
    acks = acknowledged_in("while_threads_open", path, size(25, 400), timeout=size(120, 900))
    assert len(acks) > size(25, 400)


@pytest.mark.slow
def test_forks_while_clients_are_made_and_dropped(path):
    acks = acknowledged_in("while_clients_are_made", path, size(25, 400), timeout=size(120, 900))
    assert len(acks) > size(25, 400)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_forks_under_all_kinds_of_load(path):
    # given threads that read, write, open, back up and check, when the process forks again and again
    forks = size(20, 1_000)
    acks = acknowledged_in("under_all_kinds_of_load", path, forks, timeout=1_700)
    # then the children were acknowledged what is there, most of them all they asked for
    print(f"{len(acks)} commits acknowledged, all of them stored")
    assert sum(bool(re.fullmatch(r"child \d+ again", key)) for key in acks) >= forks * 0.9


@pytest.mark.slow
def test_a_storm_of_control_c_leaves_nothing_that_delays_a_fork(path):
    # given a program that was interrupted again and again, when it forks
    acks = acknowledged_in("storm_of_interrupts", path, size(250, 20_000), timeout=size(150, 900))
    # then no connection counts as in use: the child writes
    assert acks == ["before", *OUTLIVED]


def test_clients_that_are_dropped_leave_no_descriptors(path):
    ended = run("forking_under_load.py", "dropped_clients", path, 200, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
