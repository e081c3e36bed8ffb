"""A writer whose file I/O is recorded, with syncs that fail or kill it: scenes for `test_syncs.py`.

worker_recorded.py SCENE STORE LOG [KEY=VALUE ...]

Each scene notes in the log what was acknowledged, and leaves without closing anything.
"""

import os
import random
import signal
import sys

from io_recorder import Recorder, disk_error

from tenuto import StorageUnavailable, Tenuto, _machine
from tenuto.backends.sqlite import SqliteBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Put

KEY = keys.pack("default", "raw", "s", "repeated")


def repeated_call(agent, how, request):
    """Make the call that a first process was killed in and a second one repeats; return whether it is answered."""
    if how == "append":
        agent.thread("t").append({"role": "user", "content": "second"}, key="turn-2")
    elif how == "enqueue":
        agent.tasks.enqueue("q", {"n": 1}, key="job-1")
    elif how == "commit":
        agent._backend.commit([], [Put(KEY, b"v")], request=bytes.fromhex(request))
    elif how == "set":
        agent.state.set("s", "read", 1)
    else:
        return agent.state.get("s", "read") == 1
    return True


def repeat(recorder, store, how, request, kill="", fail=""):
    if fail:
        fail_once(recorder)
        try:
            Tenuto("w", store).open()
        except StorageUnavailable:
            recorder.note("refused", how)
    agent = Tenuto("w", store).open()

    def die(part):
        if part == "-wal":
            os.kill(os.getpid(), signal.SIGKILL)

    if kill:
        recorder.before_sync = die
    if repeated_call(agent, how, request):
        recorder.note("acknowledged", how)


def fail_once(recorder):
    def fail(part):
        recorder.before_sync = lambda part: None
        raise disk_error()

    recorder.before_sync = fail


def repeat_of_another_durability(recorder, store, request, fail=""):
    fast, full = SqliteBackend(store, durability="process"), SqliteBackend(store)
    fast._sweep_due = full._sweep_due = float("inf")  # a sweep would sync too
    full.commit([], [Put(keys.pack("default", "raw", "s", "first"), b"v")])  # the first one is checkpointed at once
    fast.commit([], [Put(KEY, b"v")], request=bytes.fromhex(request))
    if fail:
        fail_once(recorder)
        try:
            full.commit([], [Put(KEY, b"v")], request=bytes.fromhex(request))
        except StorageUnavailable:
            recorder.note("refused", "commit")
    assert full.commit([], [Put(KEY, b"v")], request=bytes.fromhex(request)).repeated
    recorder.note("acknowledged", "commit")


def write_values(recorder, store, count, durability="full", kill_at="0", close="", accept_loss="", boot=""):
    """Write k0, k1, …; `kill_at` is the number of a sync, counted from the start of opening."""
    if boot == "unknown":
        _machine.boot_id = lambda: bytes(16)
    left = [int(kill_at)]

    def count_down(part):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    recorder.before_sync = count_down
    backend = f"sqlite:///{store}?durability={durability}{'&accept_loss=true' if accept_loss else ''}"
    agent = Tenuto("w", backend).open()
    for number in range(int(count)):
        agent.state.set("s", f"k{number}", number)
        recorder.note("acknowledged", f"k{number}")
    if close:
        agent.close()


def failing_syncs(recorder, store, count, first="0", seed="", who="k", durability="full"):
    """Write values while the first syncs fail, or all of them, or some by chance."""
    rng, every = random.Random(seed), first == "all"
    left = [0 if every else int(first)]

    def fail(part):
        left[0] -= 1
        if every or left[0] >= 0 or (seed and rng.random() < 0.3):
            raise disk_error()

    agent = Tenuto("w", store, durability=durability)
    agent.state.set("s", "begun", 1)  # and nothing is read: a single connection is open
    backend = agent._backend
    backend._sweep_due = float("inf")
    recorder.before_sync = fail
    for number in range(int(count)):
        try:
            agent.state.set("s", f"{who}{number}", "x" * 3_000)
        except StorageUnavailable:
            recorder.note("refused", f"{who}{number}")
        else:
            recorder.note("acknowledged", f"{who}{number}")
        if seed and rng.random() < 0.3:
            backend._wal_pages = 10**6
            try:
                backend.upkeep()
            except StorageUnavailable:
                recorder.note("no checkpoint")


if __name__ == "__main__":
    scene, store, log, *given = sys.argv[1:]
    globals()[scene](Recorder(store, log).install(), store, **dict(pair.split("=", 1) for pair in given))
    os._exit(0)
