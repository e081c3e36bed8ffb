"""Scenes with a fork in them, each run by a test of `test_fork.py` in a process of its own.

forking.py SCENE STORE
"""

import fcntl
import os
import signal
import sys
import threading
import time
import warnings

from crash_harness import wait_until

from tenuto import Tenuto
from tenuto.backends.sqlite.commit import Writer

# From 3.12 on Python warns of what is tried here on purpose.
warnings.filterwarnings("ignore", message=".* multi-threaded, use of fork", category=DeprecationWarning)


def forked(work):
    """Run `work` in a forked child that leaves without the interpreter's farewell; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def write_many(agent, who, count):
    for number in range(count):
        agent.state.set("s", f"{who}{number:03}", number)
        assert agent.state.get("s", f"{who}{number:03}") == number


def both_go_on(store):
    agent = Tenuto("parent", store)
    write_many(agent, "before", 5)
    pid = forked(lambda: write_many(agent, "child", 100))
    write_many(agent, "parent", 100)
    assert os.waitpid(pid, 0)[1] == 0
    assert agent.store.check().ok
    agent.close()


def parent_closes_first(store):
    agent = Tenuto("parent", store)
    write_many(agent, "before", 5)
    closed, close = os.pipe()

    def child():
        write_many(agent, "early", 5)
        os.close(close)  # the parent's end: if it dies, the wait is over
        os.read(closed, 1)
        write_many(agent, "late", 5)

    pid = forked(child)
    wait_until(lambda: agent.state.get("s", "early004") is not None, what="the child's writing")
    agent.close()
    os.write(close, b"x")
    assert os.waitpid(pid, 0)[1] == 0


def child_leaves_like_a_program(store):
    agent = Tenuto("parent", store)
    write_many(agent, "before", 5)
    pid = os.fork()
    if pid == 0:
        write_many(agent, "child", 5)
        sys.exit(0)  # the interpreter's farewell lets go of everything, the inherited connections too
    os.waitpid(pid, 0)
    write_many(agent, "parent", 5)
    assert agent.store.check().ok
    os.kill(os.getpid(), signal.SIGKILL)


def while_a_thread_commits(store):
    agent = Tenuto("parent", f"sqlite:///{store}?timeout=5")
    write_many(agent, "before", 1)
    done = threading.Event()
    failed = []

    def commit():
        number = 0
        while not done.is_set():
            try:
                agent.state.set("loop", "n", number)
            except Exception as error:
                failed.append(error)
            number += 1

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    slowest, bad = 0.0, 0
    for number in range(40):
        began = time.monotonic()
        pid = forked(lambda: write_many(agent, f"child{number:02}.", 2))  # noqa: B023
        bad += os.waitpid(pid, 0)[1] != 0
        slowest = max(slowest, time.monotonic() - began)
        if bad:
            break
    done.set()
    thread.join()
    print(
        f"fork under load: {number + 1} forks, {bad} children and {len(failed)} commits failed, slowest {slowest:.2f} s"
    )
    assert not failed, failed[0]
    assert not bad
    assert agent.store.check().ok
    agent.close()


def while_threads_read(store):
    agent = Tenuto("parent", store)
    write_many(agent, "before", 1)
    done = threading.Event()
    failed = []

    def read():
        while not done.is_set():
            try:
                assert agent.state.get("s", "before000") == 0
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    slowest, bad = 0.0, 0
    for number in range(10):
        began = time.monotonic()
        pid = forked(lambda: write_many(agent, f"child{number:02}.", 2))  # noqa: B023
        slowest = max(slowest, time.monotonic() - began)
        bad += os.waitpid(pid, 0)[1] != 0
        if slowest > 5:
            break
    # the last child goes on after the parent has closed, with what it took along from the middle of reads
    closed, close = os.pipe()

    def outlive():
        write_many(agent, "early", 5)
        os.close(close)  # the parent's end: if it dies, the wait is over
        os.read(closed, 1)
        write_many(agent, "late", 5)

    pid = forked(outlive)
    wait_until(lambda: agent.state.get("s", "early004") is not None, what="the child's writing")
    done.set()
    for thread in threads:
        thread.join()
    agent.close()
    os.write(close, b"x")
    bad += os.waitpid(pid, 0)[1] != 0
    print(
        f"fork under reading: {number + 2} forks, {bad} children and {len(failed)} reads failed, slowest fork {slowest:.2f} s"
    )
    assert not failed, failed[0]
    assert not bad
    assert slowest < 5


def parent_dies_with_the_lock(store):
    """The parent is killed while it holds the write lock, taken after waiting for it; a forked child lives on."""
    agent = Tenuto("parent", store)
    write_many(agent, "before", 1)
    lock = os.open(store + "-lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as another process would
    apply = Writer.apply

    def fork_and_die(writer, job):
        apply(writer, job)
        pid = forked(signal.pause)
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    Writer.apply = fork_and_die
    threading.Timer(0.2, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
    agent.state.set("s", "never", 1)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
