"""Scenes in which a process forks while its threads are at work, each run by a test in a process of its own.

forking_under_load.py SCENE STORE [COUNT]

What is acknowledged to a child, or to the parent, is appended to STORE.acks, a key on each line. A child that is not
answered within a minute is killed by its alarm.
"""

import contextlib
import fcntl
import gc
import itertools
import os
import pathlib
import random
import signal
import sys
import threading
import time
import warnings

from crash_harness import wait_until

from tenuto import StorageUnavailable, Tenuto
from tenuto.backends import _forks
from tenuto.backends.sqlite import SqliteBackend
from tenuto.errors import TenutoError

# From 3.12 on Python warns of what is tried here on purpose.
warnings.filterwarnings("ignore", message=".* multi-threaded, use of fork", category=DeprecationWarning)

WROTE, REFUSED, FAILED = 0, 3, 1
"""How a child ends: all was acknowledged, or refused by a typed error, or something else was raised."""


class Acks:
    """The file of what was acknowledged."""

    def __init__(self, store):
        self._fd = os.open(f"{store}.acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def set(self, agent, key):
        agent.state.set("s", key, 1)
        os.write(self._fd, f"{key}\n".encode())
        assert agent.state.get("s", key) == 1


def forked(work):
    """Run `work` in a forked child; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.alarm(60)
        work()
        status = WROTE
    except TenutoError as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())
        status = REFUSED
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Outliving:
    """A forked child that writes, waits until its parent has closed the client, and writes again."""

    def __init__(self, agent, acks, name="child"):
        ready, self._ready = os.pipe()
        closed, self._closed = os.pipe()

        def work():
            try:
                acks.set(agent, f"{name} early")
            finally:
                os.write(self._ready, b"x")
            os.close(self._closed)  # the parent's end: if the parent dies, the wait is over
            signal.alarm(0)
            os.read(closed, 1)
            signal.alarm(60)
            for number in range(20):
                acks.set(agent, f"{name} late {number}")

        self._pid = forked(work)
        self._is_ready = ready

    def has_written(self):
        os.read(self._is_ready, 1)

    def after_close(self):
        """Tell the child that the parent has closed; return how it ended."""
        os.write(self._closed, b"x")
        return ended(self._pid)


def started(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


# -- one fork, at a bad moment -------------------------------------------------------------------


def during_a_backup(store):
    """A backup whose progress callback takes its time."""
    agent, acks = Tenuto("parent", store), Acks(store)
    for number in range(60):
        agent.state.set("values", f"k{number}", os.urandom(200_000))
    begun, release = threading.Event(), threading.Event()

    def slow(_done, _pages):
        begun.set()
        release.wait()

    (thread,) = started(lambda: agent.store.backup(f"{store}.copy", progress=slow))
    begun.wait()
    child = Outliving(agent, acks)
    child.has_written()
    release.set()
    thread.join()
    agent.close()
    assert child.after_close() == WROTE
    with Tenuto("judge", f"{store}.copy") as judge:
        assert judge.store.check().ok
        assert len(judge.state.keys("values")) == 60


def while_a_commit_waits(store):
    """A commit that waits for the lock file, which another process holds."""
    agent, acks = Tenuto("parent", store), Acks(store)
    acks.set(agent, "before")
    lock = os.open(store + "-lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as another process would
    (thread,) = started(lambda: acks.set(agent, "waited"))
    wait_until(_waits_for_a_lock, what="the waiting")
    child = Outliving(agent, acks)
    fcntl.flock(lock, fcntl.LOCK_UN)
    child.has_written()
    thread.join()
    agent.close()
    assert child.after_close() == WROTE


def _waits_for_a_lock():
    lines = pathlib.Path("/proc/locks").read_text().splitlines()
    return any("->" in line and "FLOCK" in line and f" {os.getpid()} " in line for line in lines)


def inside_a_long_read(store):
    """A thread that stays inside SQLite beyond the deadline: the child is refused, and the parent is not."""
    agent, acks = Tenuto("parent", store).open(), Acks(store)
    acks.set(agent, "before")
    inside, release = threading.Event(), threading.Event()
    (thread,) = started(lambda: agent._backend._readers.ask(_stay, inside, release))
    inside.wait()
    child = forked(lambda: acks.set(agent, "never"))
    assert ended(child) == REFUSED
    release.set()
    thread.join()
    _forks_well(agent, acks)


def _stay(connection, inside, release):
    assert connection.execute("SELECT count(*) FROM records").fetchall()
    inside.set()
    release.wait()


def interrupted_while_forking(store):
    """Control-C while a fork waits for a thread inside SQLite; Python ignores what a fork hook raises."""
    agents = [Tenuto("parent", f"{store}{other}").open() for other in ("", ".other")]
    acks = Acks(store)
    acks.set(agents[0], "before")
    inside, release = threading.Event(), threading.Event()
    threads = started(*[lambda agent=agent: agent._backend._readers.ask(_stay, inside, release) for agent in agents])
    inside.wait()
    ignored = []
    sys.unraisablehook = lambda raised: ignored.append(raised.exc_type)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    os.register_at_fork(before=lambda: timer.ident or timer.start())  # when the fork has begun, and once
    with contextlib.suppress(KeyboardInterrupt):
        assert ended(forked(lambda: acks.set(agents[0], "never"))) == REFUSED
    sys.unraisablehook = sys.__unraisablehook__
    assert ignored == [KeyboardInterrupt]
    release.set()
    for thread in threads:
        thread.join()
    for number, agent in enumerate(agents):
        agent.state.set("s", "parent", number)
    _forks_well(agents[0], acks)


def interrupted_before_the_hooks(store):
    """Control-C at the first line of the fork hooks: no store has come to rest then."""
    agent, acks = Tenuto("parent", store).open(), Acks(store)
    acks.set(agent, "before")
    assert ended(forked(lambda: None)) == WROTE
    inside, release = threading.Event(), threading.Event()
    (thread,) = started(lambda: agent._backend._readers.ask(_stay, inside, release))
    inside.wait()
    each, ignored = _forks._each, []
    sys.unraisablehook = lambda raised: ignored.append(raised.exc_type)

    def interrupted(call, *, again):
        if not again:
            raise KeyboardInterrupt
        each(call, again=again)

    _forks._each = interrupted
    child = Outliving(agent, acks)
    _forks._each = each
    child.has_written()
    release.set()
    thread.join()
    agent.close()
    assert ignored == [KeyboardInterrupt]
    assert child.after_close() == REFUSED


def _forks_well(agent, acks):
    """Fork once more, with no other thread in the store: the child writes, also after the parent has closed."""
    child = Outliving(agent, acks)
    child.has_written()
    agent.close()
    assert child.after_close() == WROTE


# -- many forks ----------------------------------------------------------------------------------


def while_threads_open(store, count):
    agent, acks, over = Tenuto("parent", store), Acks(store), threading.Event()
    acks.set(agent, "before")

    def opens(name):
        for number in itertools.count():
            if over.is_set():
                return
            with Tenuto("opener", f"{store}.{name}{number % 3}") as other:
                other.open()

    threads = started(lambda: opens("a"), lambda: opens("b"))
    _fork_many(int(count), agent, acks)
    over.set()
    for thread in threads:
        thread.join()
    agent.close()


def while_clients_are_made(store, count):
    """Clients are made, and dropped, without a pause: the list of what is told of a fork changes all the time."""
    agent, acks, over = Tenuto("parent", store), Acks(store), threading.Event()
    acks.set(agent, "before")
    ignored = []
    sys.unraisablehook = lambda raised: ignored.append(f"{raised.exc_type.__name__}: {raised.exc_value}")

    def makes():
        while not over.is_set():
            [SqliteBackend(f"{store}.never{number}") for number in range(50)]

    threads = started(makes, makes)
    _fork_many(int(count), agent, acks)
    over.set()
    for thread in threads:
        thread.join()
    assert ignored == []
    agent.close()


def under_all_kinds_of_load(store, count):
    """Threads read, write, open, back up and check; some children outlive their parent's client."""
    agent, acks, over, rng = Tenuto("parent", store), Acks(store), threading.Event(), random.Random(5)
    for number in range(20):
        agent.state.set("values", f"k{number}", os.urandom(20_000))
    problems = []

    def repeatedly(work):
        def loop():
            for number in itertools.count():
                if over.is_set():
                    return
                try:
                    work(number)
                except Exception as error:
                    problems.append(f"{type(error).__name__}: {error}")

        return loop

    def read(number):
        assert len(agent.state.keys("values")) == 20
        assert agent.state.get("values", f"k{number % 20}") is not None

    def open_another(number):
        with Tenuto("opener", f"{store}.other{number % 3}") as other:
            other.state.set("s", "k", number)

    def back_up(number):
        agent.store.backup(f"{store}.copy{number}")
        pathlib.Path(f"{store}.copy{number}").unlink()

    def check(_number):
        assert agent.store.check().ok

    threads = started(
        *map(repeatedly, (read, read, lambda number: acks.set(agent, f"parent {number}"), open_another, back_up, check))
    )
    outliving = []

    def maybe_outlive(number):
        if rng.random() < 0.1 and len(outliving) < 12:
            outliving.append(Outliving(agent, acks, f"outliving {number}"))

    _fork_many(int(count), agent, acks, maybe_outlive)
    for child in outliving:
        child.has_written()
    over.set()
    for thread in threads:
        thread.join()
    agent.close()
    ends = [child.after_close() for child in outliving]
    print(f"{len(outliving)} children outlived their parent's client: {sorted(ends)}; {len(problems)} calls failed")
    assert not problems, problems[0]
    assert set(ends) <= {WROTE, REFUSED}


def _fork_many(count, agent, acks, more=lambda number: None):
    ends, slowest = {}, 0.0
    for number in range(count):

        def work(number=number):
            acks.set(agent, f"child {number}")
            acks.set(agent, f"child {number} again")

        began = time.monotonic()
        pid = forked(work)
        slowest = max(slowest, time.monotonic() - began)
        end = ended(pid)
        ends[end] = ends.get(end, 0) + 1
        more(number)
    print(f"{count} forks; children ended with {ends} (0 wrote, 3 refused); slowest fork {slowest:.2f} s")
    assert set(ends) <= {WROTE, REFUSED}
    assert ends.get(REFUSED, 0) <= count // 10


# -- what is left behind ---------------------------------------------------------------------------


def storm_of_interrupts(store, count):
    """Control-C again and again while a program reads and writes; then it forks."""
    agent, acks, rng = Tenuto("parent", store), Acks(store), random.Random(1)
    acks.set(agent, "before")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = lambda raised: None  # an interrupt inside a finalizer
    interrupts = number = 0
    while interrupts < int(count):
        number += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.002))
            while True:
                agent.state.set("storm", "k", number)
                agent.state.get("storm", "k")
                agent.state.items("storm")
        except KeyboardInterrupt:
            interrupts += 1
        except StorageUnavailable as error:
            if error.outcome != "unknown":
                raise
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.collect()
    print(f"{interrupts} interrupts; {_descriptors()} descriptors")
    assert _descriptors() < 100
    failed = []

    def call():
        try:
            agent.state.set("storm", "k", -1)
            agent.state.items("storm")
        except Exception as error:
            failed.append(error)

    threads = started(*[call] * 20)
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
    _forks_well(agent, acks)


def dropped_clients(store, count):
    Tenuto("first", store).open().close()
    before = _descriptors()
    for number in range(int(count)):
        agent = Tenuto("dropped", store)
        agent.state.set("s", "k", number)
        assert agent.state.get("s", "k") == number
    del agent
    wait_until(lambda: _left() <= before + 5, what="the closing of what was dropped")


def _left():
    # A client whose upkeep is running is in use until that has ended, so one collection may come too early.
    gc.collect()
    return _descriptors()


def _descriptors():
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
