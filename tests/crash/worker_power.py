"""A writer whose whole life is recorded: it opens, commits, checkpoints, sweeps, closes and opens again.

worker_power.py STORE LOG DURABILITY SEED [BUG]

With an odd seed a second process has the store open too and makes every other commit or so: the two take turns, so
that what both of them write has one order.

Commit n puts n into two records and appends it to a stream, with values of several sizes; it is noted before (begun)
and after (acknowledged). BUG plants a mistake that the test must find.
"""

import os
import random
import subprocess
import sys

from io_recorder import Recorder

from tenuto.backends.sqlite import SqliteBackend, connections, writable
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

LEFT, RIGHT, LINES = (keys.pack("pair", "raw", name) for name in ("left", "right", "lines"))
SIZES = (10, 200, 3_000, 9_000, 40_000)
LIVES = 5
"""How many times the writer opens the store."""
COMMITS = 12
"""How many commits it makes each time."""


def value(number):
    """Return the value of a commit, by which it is known: its number and so many bytes that follow from it."""
    return number.to_bytes(8, "big") + random.Random(number).randbytes(SIZES[number % len(SIZES)])


def fleeting(number):
    return keys.pack("pair", "raw", "fleeting", number)


def plant(bug):
    """Make a mistake in the backend."""
    if bug == "commits are not synced":
        connect = connections.connect
        connections.connect = lambda path, flags, *, full, timeout: connect(path, flags, full=False, timeout=timeout)
    elif bug == "the mark comes before the sync":
        transact = Writer.transact

        def early(writer, batch, noted):
            add = writer._add_commit

            def added(*arguments):
                add(*arguments)
                noted(*writer.last)

            writer._add_commit = added
            return transact(writer, batch, noted)

        Writer.transact = early
    else:
        assert not bug, bug


def commit(recorder, client, clock, number):
    recorder.note("begun", number)
    raw = value(number)
    writes = [Put(LEFT, raw), Put(RIGHT, raw), Append(LINES, raw), Put(fleeting(number), b"x", ttl=30.0)]
    client.commit([], writes, request=new_request(clock.time()))
    recorder.note("acknowledged", number)


class Peer:
    """A second process that has the store open, and commits when it is told to."""

    def __init__(self, store, log, durability, seed, bug):
        command = [sys.executable, __file__, store, log, durability, f"peer of {seed}", bug]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def commit(self, number, time):
        self._process.stdin.write(f"{number} {time!r}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{number}\n"

    def kill(self):
        self._process.kill()
        self._process.wait()


def serve(recorder, store, durability):
    """Be the second process."""
    clock = HeldClock()
    client = SqliteBackend(store, durability=durability, clock=clock)
    for line in sys.stdin:
        number, time = line.split()
        clock.advance(float(time) - clock.time())
        commit(recorder, client, clock, int(number))
        print(number, flush=True)


def live(recorder, store, durability, rng, clock, number, peer):
    """Open, write, leave (by closing or not); return the number of the last commit."""
    client = SqliteBackend(store, durability=durability, clock=clock)
    client.open()
    for _ in range(COMMITS):
        number += 1
        if peer and rng.random() < 0.5:
            peer.commit(number, clock.time())
        else:
            commit(recorder, client, clock, number)
        clock.advance(rng.choice([1, 40, 4_000]))
        if rng.random() < 0.15:
            client._store.wal_pages = 10**6
            client.upkeep()  # a WAL checkpoint, and a sweep if it is due
        if rng.random() < 0.15:
            client._group.submit(WorkJob(Writer.sweep))
    if rng.random() < 0.7:
        client.close()
    return number


def main(store, log, durability, seed, bug=""):
    recorder, rng, clock = Recorder(store, log).install(), random.Random(seed), HeldClock()
    writable.CHECKPOINT_PAGES = 30  # so that the log starts over often
    plant(bug)
    if seed.startswith("peer"):
        serve(recorder, store, durability)
        return
    number = 0
    for _ in range(LIVES):
        peer = Peer(store, log, durability, seed, bug) if int(seed) % 2 else None
        number = live(recorder, store, durability, rng, clock, number, peer)
        if peer:
            peer.kill()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
