"""Record the commits and step calls of a child process, and kill it at a chosen boundary.

`watch` is called once in a child process, before the workflow. From then on every commit and every call of a step's
function is recorded in a file as one line of JSON. A boundary is right before and right after each commit, and after
each effect. Lease renewals depend on the clock, not on the workflow, and are not boundaries. The file needs no fsync:
only the process dies, not the machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from tenuto import client
from tenuto.backends import connect
from tenuto.capabilities.runs import open_steps, step
from tenuto.capabilities.runs.log import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DOUBT,
    EMITTED,
    ERROR,
    FAILED,
    HALTED,
    INTENT,
    QUEUED,
    RESULT,
    RESUMED,
    SIGNALLED,
    STARTED,
    TEXT,
    WAITS,
)
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import AnyCheck, Append, Commit, Write
from tenuto.kernel.work import Call, Work
from tenuto.wrappers.encrypt import encrypted
from tenuto.wrappers.tenant import Tenant

Note = dict[str, Any]
_OF_RUNS: Final = {
    STARTED: "the start of the run {run!r}",
    RESUMED: "the resumption of the run {run!r}",
    QUEUED: "the queueing of the run {run!r}",
    COMPLETED: "the end of the run {run!r}",
    FAILED: "the failure of the run {run!r}",
    CANCELLED: "the cancellation of the run {run!r}",
    SIGNALLED: "a signal to the run {run!r}",
}
_OF_STEPS: Final = {
    INTENT: "the intent of {name}",
    AGAIN: "the repeat of {name}",
    RESULT: "the result of {name}",
    ERROR: "the error of {name}",
    DOUBT: "the question about {name}",
    HALTED: "the pause of {name}",
    WAITS: "the start of {name}",
    EMITTED: "a value that {name} emits",
}


class Notes:
    """The file in which processes record what they do, in order."""

    def __init__(self, path: Path, process: int = 0) -> None:
        self.path = path
        self._process = process

    def add(self, what: str, **more: Any) -> None:
        """Append a note in one write."""
        line = json.dumps({"what": what, "process": self._process, **more}) + "\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def read(self) -> list[Note]:
        """Return all notes."""
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


def continue_file(notes: Notes) -> Path:
    """Return the file whose existence lets a stopped process continue to its end."""
    return notes.path.with_name("continue")


class Skewed:
    """The machine's clock, ahead by some seconds, so that a workflow's sleeps pass at once."""

    def __init__(self, by: float) -> None:
        self._by = by
        self._real = SystemClock()

    def time(self) -> float:
        """Return the time."""
        return self._real.time() + self._by

    def sleep(self, seconds: float) -> None:
        """Wait in this thread."""
        self._real.sleep(seconds)


class Plan(NamedTuple):
    """When and how a process is killed."""

    at: int | None
    """The boundary, counted from 0 over all processes of the workflow; None: never."""
    signal: int
    """SIGKILL, or SIGSTOP."""
    skew: float
    """Seconds by which the store's clock is ahead."""
    tenant: str
    """A suffix for each tenant's name, so that trials do not see each other's data."""


class Watch:
    """Counts the boundaries and kills the process at the chosen one."""

    def __init__(self, notes: Notes, plan: Plan) -> None:
        self.notes = notes
        self._plan = plan
        self._lock = threading.Lock()
        self._passed = sum(note["what"] == "boundary" for note in notes.read())
        self._names: dict[tuple[str, int], str] = {}

    def boundary(self, label: str) -> None:
        """Pass a boundary, or kill the process there."""
        with self._lock:
            here = self._passed == self._plan.at
            self._passed += 1
            self.notes.add("boundary", label=label, here=here)
            if here:
                self._end()

    def _end(self) -> None:
        here = True
        while here:
            os.kill(os.getpid(), self._plan.signal)
            here = not continue_file(self.notes).exists()
            time.sleep(0.001)  # continued for a moment, because another thread was inside a commit

    # -- commits -----------------------------------------------------------------------------------------------

    def commit(
        self, original: Any, tenant: Tenant, checks: Sequence[AnyCheck], writes: Sequence[Write], **more: Any
    ) -> Commit:
        """Commit, between two boundaries."""
        named = [keys.unpack(write[0]) for write in writes]
        if all(name[-1] == "beat" for name in named):
            return original(tenant, checks, writes, **more)  # type: ignore[no-any-return]
        lines = [
            (str(name[0]), codec.decode(write[1])[2:5])
            for name, write in zip(named, writes, strict=True)
            if isinstance(write, Append) and name[1:] == ("run",)
        ]
        noted = [self._note(run, kind, n, data) for run, (kind, n, data) in lines]
        labels = [one["label"] for one in noted] or [f"a write to {_called(named[0])}"]
        label = " and ".join(dict.fromkeys(labels))
        self.boundary(f"before {label}")
        done: Commit = original(tenant, checks, writes, **more)
        if not done.repeated:
            for one in noted:
                self.notes.add("line", **one)
        self.boundary(f"after {label}")
        return done

    def _note(self, run: str, kind: int, n: int, data: Any) -> Note:
        note: Note = {"run": run, "kind": kind, "n": n}
        if kind == INTENT:
            self._name(run, n, *data[:3])
        elif kind in (AGAIN, RESULT, ERROR, WAITS) and data[0] is not None:
            self._name(run, n, *data[0][:3])
        if kind == AGAIN:
            note |= {"attempt": data[1], "why": data[2]}
        elif kind == RESULT:
            note["text"] = bool(data[1] & TEXT)
        name = self._names.get((run, n), f"number {n} of {run!r}")
        note["label"] = (_OF_RUNS.get(kind) or _OF_STEPS[kind]).format(run=run, name=name)
        return note

    def _name(self, run: str, n: int, kind: str, name: str, key: str | None) -> None:
        more = "" if key is None else f" {key!r}"
        self._names[run, n] = f"{name!r}{more}" if kind in ("step", "map") else f"run.{kind}"

    # -- calls -------------------------------------------------------------------------------------------------

    def call(self, attempts: Any, call: Call) -> Call:
        """Return a call whose start and end are recorded."""
        run, step = attempts._run, attempts._step
        self._name(run.id, attempts._n, step.kind, step.name, step.key)
        about = {
            "run": run.id,
            "n": attempts._n,
            "attempt": attempts.made,
            "key": attempts._key,
            "effect": step.effect,
            "name": self._names[run.id, attempts._n],
        }
        return call._replace(around=lambda: _Noted(self.notes, call.around(), about))

    def carried_out(self, attempts: Any, work: Work[Any]) -> Work[Any]:
        """Run a step and record that its result was returned to the caller; not for the items of a map."""
        value = yield from work
        if attempts._step.kind != "map":
            self.notes.add("returned", run=attempts._run.id, n=attempts._n)
        return value


class _Noted:
    """The context of a step's function; records its start and end."""

    def __init__(self, notes: Notes, inner: AbstractContextManager[object], about: Note) -> None:
        self._notes = notes
        self._inner = inner
        self._about = about

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._about = {**self._about, "flow": list(open_steps.here())}
        self._notes.add("begin", **self._about)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._notes.add("end", **self._about, raised=None if kind is None else kind.__name__)
        self._inner.__exit__(kind, error, trace)


def watch(notes: Notes, plan: Plan, url: str, agent: Any) -> Watch:
    """Watch this process from now on; redirect `agent`, if given, to the store at `url`."""
    watched = Watch(notes, plan)
    commit, call, begin = Tenant.commit, step._Attempts._call, Tenant.__init__
    go = step._Attempts.go
    clock = Skewed(plan.skew)

    def opened(where: Any, **options: Any) -> Any:
        return connect(where, **{**options, "clock": options.get("clock") or clock})

    def confined(self: Tenant, backend: Any, tenant: str, unread: Any = None) -> None:
        begin(self, backend, tenant + plan.tenant, unread)

    def watched_commit(self: Tenant, checks: Any, writes: Any, *, request: bytes | None = None) -> Commit:
        return watched.commit(commit, self, checks, writes, request=request)

    client.connect = opened  # type: ignore[assignment,attr-defined]
    Tenant.__init__ = confined  # type: ignore[method-assign]
    Tenant.commit = watched_commit  # type: ignore[method-assign]
    step._Attempts.go = lambda self: watched.carried_out(self, go(self))  # type: ignore[method-assign]
    step._Attempts._call = lambda self: watched.call(self, call(self))  # type: ignore[method-assign]
    if agent is not None:
        own = getattr(agent, "_sync", agent)
        own._backend = own.kernel._backend = encrypted(opened(url), own._encryption)
        begin(own.kernel, own._backend, own.tenant + plan.tenant)
    return watched


def _called(name: tuple[Any, ...]) -> str:
    return "/".join(part.hex()[:8] if isinstance(part, bytes) else str(part) for part in name)
