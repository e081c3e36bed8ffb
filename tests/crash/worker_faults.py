"""A nursery of writers that meet a fault: each line on stdin, a JSON object, forks one and waits for its end.

    point    where: "write" or "sync" (of any of the store's files), or a named failpoint of a commit
    at       at which arrival there, counted from 1
    armed    "before opening" or "after opening"
    action   "exit" ends the process there; "torn" writes half of it first; "io" and "full" raise
    store, notes, before, commits, checkpoint, quiet    where, and what to do there

A writer commits a pair of records and a line of a stream, over and over; the same number is in all
three. It notes each commit before, and after it was acknowledged; a failed one is committed again with the
same request id.
"""

import json
import os
import sys

import apsw

from tenuto import StorageUnavailable, Tenuto
from tenuto.backends import sqlite
from tenuto.backends._lockfile import LockFile
from tenuto.backends._sqlite_writes import WorkJob, Writer
from tenuto.backends.sqlite import SqliteBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put
from tenuto.kernel.transact import new_request

LEFT, RIGHT, LINES = (keys.pack("pair", "raw", name) for name in ("left", "right", "lines"))


class Fault:
    """The one fault that a writer meets."""

    def __init__(self, point, at, action):
        self.point, self.left, self.action, self.armed = point, at, action, False

    def reached(self, point, torn=None):
        if not self.armed or point != self.point:
            return
        self.left -= 1
        if self.left:
            return
        self.armed = False
        if self.action == "torn" and torn is not None:
            torn()
        if self.action in ("exit", "torn"):
            os._exit(42)
        raise apsw.IOError("injected") if self.action == "io" else apsw.FullError("injected")


fault = Fault("", 0, "")


class FaultyFile(apsw.VFSFile):
    def __init__(self, name, flags):
        super().__init__("unix", name, flags)

    def xWrite(self, data, offset):
        half = lambda: super(FaultyFile, self).xWrite(bytes(data)[: len(data) // 2], offset)
        fault.reached("write", half)
        super().xWrite(data, offset)

    def xSync(self, flags):
        fault.reached("sync")
        super().xSync(flags)


class FaultyVFS(apsw.VFS):
    def __init__(self):
        super().__init__("faulty", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return FaultyFile(name, flags)


def install_failpoints():
    """Make every step of a commit a point at which the fault may lie."""

    def around(owner, name):
        original = getattr(owner, name)

        def wrapped(*arguments, **options):
            fault.reached(f"before {name}")
            result = original(*arguments, **options)
            fault.reached(f"after {name}")
            return result

        setattr(owner, name, wrapped)

    for name in ("add", "_decided", "begin", "write", "sweep"):
        around(Writer, name)
    for name in ("run", "committing", "store", "start_over"):
        around(LockFile, name)
    around(sqlite, "prepare")
    around(sqlite, "checkpoint")
    store, connect = LockFile.store, SqliteBackend._connect

    def half_stored(lock, word):
        before = lock._shared[:]
        store(lock, word)
        if fault.armed and fault.point == "half store":
            after = lock._shared[:]
            changed = [at for at in range(len(after)) if after[at] != before[at]]
            middle = changed[len(changed) // 2]
            lock._shared[middle:] = before[middle:]
        fault.reached("half store")

    def hooked(backend, *, writing=False):
        connection = connect(backend, writing=writing)
        if writing:
            connection.set_commit_hook(lambda: bool(fault.reached("before COMMIT")))
            connection.set_wal_hook(lambda *_: fault.reached("inside COMMIT") or apsw.SQLITE_OK)
        return connection

    LockFile.store, SqliteBackend._connect = half_stored, hooked


def work(order):
    fd = os.open(order["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind, what=None):
        os.write(fd, (json.dumps([kind, what]) + "\n").encode())

    def typed(call):
        """Call until it succeeds; an error that is not tenuto's ends the process."""
        while True:
            try:
                return call()
            except StorageUnavailable as error:
                note("error", [type(error).__name__, error.outcome])

    global fault
    fault = Fault(order["point"], order["at"], order["action"])
    if order.get("no note"):
        LockFile.committing = lambda _lock: None  # a planted bug: see test_failpoints.py
    fault.armed = order["armed"] == "before opening"
    agent = Tenuto("faulty", order["store"])
    typed(agent.open)
    if not order.get("quiet"):
        agent._backend._sweep_due = float("inf")  # upkeep comes when the test says so
    for number in range(order.get("before", 0)):
        commit(agent, f"before{number}", note, typed)
    fault.armed = True
    for number in range(order["commits"]):
        commit(agent, f"{number}", note, typed)
    if order.get("checkpoint"):
        agent._backend._wal_pages = 10**6
        typed(agent._backend.upkeep)
        agent._backend._wal_pages = 0
        typed(lambda: agent._backend._group.submit(WorkJob(Writer.sweep)))
        commit(agent, "after the checkpoint", note, typed)
    fault.armed = False
    commit(agent, "last", note, typed)
    agent.close()
    note("closed")


def commit(agent, value, note, typed):
    request = new_request(agent.kernel.now())
    raw = value.encode()
    writes = [Put(LEFT, raw), Put(RIGHT, raw), Append(LINES, raw)]
    note("intent", value)
    done = typed(lambda: agent.kernel.commit([], writes, request=request))
    note("ack", [value, done.versions, done.repeated])


def main():
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                work(json.loads(line))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    vfs = FaultyVFS()
    install_failpoints()
    main()
