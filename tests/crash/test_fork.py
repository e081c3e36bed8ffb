"""One client before a fork, in the parent and in the child after it."""

import os
import signal
import time

import pytest
from crash_harness import Child, run

from tenuto import Tenuto


def stored(path):
    with Tenuto("judge", path) as agent:
        keys = agent.state.keys("s")
        assert agent.store.check().ok
    return keys


def named(**counts):
    return sorted(f"{who}{number:03}" for who, count in counts.items() for number in range(count))


def test_parent_and_child_go_on_writing_with_the_same_client(path):
    # given a client that has written, when the process forks and both go on at the same time
    ended = run("forking.py", "both_go_on", path)
    # then the writes of both are there
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stored(path) == named(before=5, parent=100, child=100)


def test_what_a_child_writes_after_its_parent_closed_the_client_is_kept(path):
    # given a forked child that uses the client, when the parent closes its own and the child goes on
    ended = run("forking.py", "parent_closes_first", path)
    # then all that was acknowledged to the child is there
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stored(path) == named(before=5, early=5, late=5)


def test_a_child_that_ends_like_any_program_takes_nothing_with_it(path):
    # given a forked child that used the client, when it exits and the parent goes on and is then killed
    ended = run("forking.py", "child_leaves_like_a_program", path)
    # then the writes of both are there
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, "")
    assert stored(path) == named(before=5, child=5, parent=5)


@pytest.mark.slow
def test_a_fork_in_the_middle_of_another_threads_commit_blocks_nobody(path):
    # given a thread that commits without a pause, when the process forks again and again
    ended = run("forking.py", "while_a_thread_commits", path)
    # then each child writes at once, and the thread goes on
    print(ended.stdout.strip())
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_a_fork_while_other_threads_read_is_quick_and_loses_nothing(path):
    # given threads that read without a pause, when the process forks again and again
    ended = run("forking.py", "while_threads_read", path, timeout=100)
    # then each fork is quick, each child writes at once, and the last one also after its parent has closed
    print(ended.stdout.strip())
    keys = stored(path)
    assert (ended.returncode, ended.stderr) == (0, "")
    children = {f"child{number:02}.": 2 for number in range(10)}
    assert keys == named(before=1, early=5, late=5, **children)


def test_a_parent_that_dies_with_the_lock_does_not_leave_it_to_its_child(path):
    # given a parent that is killed while it holds the write lock, when a child of its lives on
    with Child("forking.py", "parent_dies_with_the_lock", path) as parent:
        child = int(parent.says())
        parent.process.wait(20)
        try:
            # then another process can write
            began = time.monotonic()
            with Tenuto("other", f"sqlite:///{path}?timeout=3") as agent:
                agent.state.set("s", "other", 1)
            print(f"the lock was free after {time.monotonic() - began:.3f} s")
        finally:
            os.kill(child, signal.SIGKILL)
    assert stored(path) == ["before000", "other"]
