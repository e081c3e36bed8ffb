"""A nursery of writers that meet a fault: each line on stdin, a JSON object, forks one and waits for its end.

    point    where: "write" or "sync" (of any of the store's files), or a named failpoint of a commit
    at       at which arrival there, counted from 1
    armed    "before opening", "after opening", "before upkeep" or "before closing"
    action   "exit" ends the process there; "torn" writes half of it first; "io" and "full" raise
    store, notes, before, commits, checkpoint    where, and what to do there
    planted  a bug: "early mark" stores the mark before COMMIT; "errors ignored" takes a failed commit for a success

A writer commits a pair of records and a line of a stream, over and over; the same number is in all
three. It notes each commit before, and after it was acknowledged; a failed one is committed again with the
same request id.
"""

import json
import os
import sys

import apsw

from tenuto import StorageUnavailable, Tenuto
from tenuto.backends.sqlite import files, schema
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.backends.sqlite.lockfile import LockFile
from tenuto.backends.sqlite.writable import WritableStore
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put
from tenuto.kernel.transact import new_request

LEFT, RIGHT, LINES, FLEETING = (keys.pack("pair", "raw", name) for name in ("left", "right", "lines", "fleeting"))


class Fault:
    """The one fault that a writer meets."""

    def __init__(self, point, at, action):
        self.point, self.left, self.action, self.armed = point, at, action, False
        self.note = print

    def reached(self, point, torn=None):
        if not self.armed or point != self.point:
            return
        self.left -= 1
        if self.left:
            return
        self.armed = False
        self.note("met", point)
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

    for name in ("transact", "_begin", "apply", "sweep"):
        around(Writer, name)
    for name in ("run", "store", "reset", "clear_failed_sync"):
        around(LockFile, name)
    for name in ("_open", "close", "_retire", "checkpoint"):
        around(WritableStore, name)
    around(schema, "prepare")
    around(files, "sync_log")
    store, init = LockFile.store, Writer.__init__

    def half_stored(lock, number, total):
        before = os.pread(lock._fd, 4096, 0)
        store(lock, number, total)
        if fault.armed and fault.point == "half store":
            after = os.pread(lock._fd, 4096, 0)
            changed = [at for at in range(len(after)) if after[at] != before[at]]
            middle = changed[len(changed) // 2]
            os.pwrite(lock._fd, before[middle:], middle)
        fault.reached("half store")

    def hooked(writer, connection, *arguments):
        init(writer, connection, *arguments)
        connection.set_commit_hook(lambda: early_mark(writer) or bool(fault.reached("before COMMIT")))
        connection.set_wal_hook(lambda *_: fault.reached("inside COMMIT") or apsw.SQLITE_OK)

    LockFile.store, Writer.__init__ = half_stored, hooked


def early_mark(_writer):
    """A planted bug may be here: see `plant`."""
    return False


def plant(bug, agent):
    """Let this writer have a bug."""
    global early_mark
    if bug == "early mark":

        def early_mark(writer):
            agent._backend._store.lock.store(*writer.last)
            return False


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
    fault.note = note
    fault.armed = order["armed"] == "before opening"
    agent = Tenuto("faulty", order["store"])
    typed(agent.open)
    plant(order.get("planted"), agent)
    agent._backend._sweep_due = float("inf")  # upkeep comes when the test says so
    if order.get("checkpoint"):  # upkeep has something to sweep then
        typed(lambda: agent.kernel.commit([], [Put(FLEETING, b"x", 1e-6)]))
    for number in range(order.get("before", 0)):
        commit(agent, f"before{number}", note, typed)
    fault.armed = order["armed"] in ("before opening", "after opening")
    for number in range(order["commits"]):
        commit(agent, f"{number}", note, typed, ignored=order.get("planted") == "errors ignored")
    fault.armed = fault.armed or order["armed"] == "before upkeep"
    if order.get("checkpoint"):
        agent._backend._store.wal_pages = 10**6
        typed(agent._backend.upkeep)
        agent._backend._store.wal_pages = 0
        typed(lambda: agent._backend._group.submit(WorkJob(Writer.sweep)))
        commit(agent, "after the checkpoint", note, typed)
    fault.armed = False
    commit(agent, "last", note, typed)
    fault.armed = order["armed"] == "before closing"
    agent.close()
    note("closed")


def commit(agent, value, note, typed, *, ignored=False):
    request = new_request(agent.kernel.now())
    raw = value.encode()
    writes = [Put(LEFT, raw), Put(RIGHT, raw), Append(LINES, raw)]
    note("intent", value)
    try:
        done = agent.kernel.commit([], writes, request=request)
    except StorageUnavailable as error:
        note("error", [type(error).__name__, error.outcome])
        if ignored:
            note("ack", [value, [], False])
            return
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
