"""Kill a workflow at every boundary, and see what becomes of its effects: a pytest fixture, and the function behind it.

    from tenuto.testing.crash import crash  # in conftest.py, or in the test

    def test_a_deployment_survives_being_killed_anywhere(crash):
        def deploy():
            with Tenuto("deployer", crash.url) as agent, agent.run("deploy-42") as run:
                run.step("announce", announce, "1.2.3", effect="once", verify=find)   # calls crash.effect("announced")

        report = crash(deploy)
        assert report.ok, report

The workflow runs once undisturbed, in a child process, to learn its boundaries: before and after each commit (so
before its intent, before its effect, before its result and after it), and behind each effect. Then it runs once for
each of them, on a fresh store: killed there with SIGKILL, and called again in a new process until it has ended.
Each child is forked, so the workflow may be any function; have no store open and no threads of your own meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import itertools
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tenuto.capabilities.running import current_step
from tenuto.errors import InDoubt, InvalidInput, Paused
from tenuto.testing._boundaries import Notes, Plan, Watch, go_on, watch
from tenuto.testing._verdict import Kill, Outcome, Twice, judged

__all__ = ["Crash", "Kill", "Outcome", "Report", "Twice", "crash", "killed_everywhere"]

Workflow = Callable[..., Any]
_ROUNDS: Final = 50
_PAST_ANY_LEASE: Final = 3_600.0


@dataclass(frozen=True)
class Report:
    """What came of killing a workflow at each of its boundaries."""

    plain: Kill
    """What came of it undisturbed."""
    kills: list[Kill] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether no kill made a difference: nothing twice, nothing missing, the same result, no promise broken."""
        return bool(self.kills) and not self.plain.broken and all(kill.ok for kill in self.kills)

    @property
    def twice(self) -> list[Twice]:
        """Return the effects that happened more often than undisturbed."""
        return [one for kill in self.kills for one in kill.twice]

    @property
    def never(self) -> list[str]:
        """Return the effects that happened less often than undisturbed, and where it was killed then."""
        return [f"{name!r} did not happen when it was {kill.at}" for kill in self.kills for name in kill.never]

    @property
    def repeated(self) -> list[str]:
        """Return the effects that came again and may, with a record of it."""
        return sorted({name for kill in self.kills for name in kill.repeated})

    @property
    def paused(self) -> list[Kill]:
        """Return the kills after which the run waits for somebody to say whether a step happened."""
        return [kill for kill in self.kills if kill.paused]

    @property
    def differences(self) -> list[str]:
        """Return the results that were others than undisturbed, and the promises that tenuto did not keep."""
        found = [f"{one}, undisturbed" for one in self.plain.broken]
        found += [f"{one}, when it was {kill.at}" for kill in self.kills for one in kill.broken]
        found += [f"{kill.difference}, when it was {kill.at}" for kill in self.kills if kill.difference]
        return found

    @property
    def effects(self) -> int:
        """Return how many effects were counted, over all kills."""
        return sum(sum(kill.effects.values()) for kill in self.kills)

    def __str__(self) -> str:
        """Say what happened: a line for each kill, then what is wrong."""
        differ = sum(not kill.ok for kill in self.kills)
        head = (
            f"{len(self.kills)} kills, {self.effects} effects counted: "
            + (f"{differ} made a difference" if differ else "none made a difference")
            + (f", {len(self.paused)} left a question" if self.paused else "")
            + f". Undisturbed it {self.plain.outcome}."
        )
        lines = [f"  {kill}" for kill in self.kills]
        wrong = list(dict.fromkeys([*map(str, self.twice), *self.never, *self.differences]))
        wrong += dict.fromkeys(one.advice for one in self.twice)
        if not self.kills:
            wrong.append("it passed no boundary: it makes no commit, or ended before the first")
        if wrong:
            bad = [kill for kill in self.kills if not kill.ok] or [self.plain]
            printed = next((kill.output for kill in bad if kill.output), "")
            lines += ["what is wrong:", *(f"  - {one}" for one in wrong)]
            lines += ["what its processes printed, the first time:", printed[-2_000:]] if printed else []
        return "\n".join([head, *lines])

    __repr__ = __str__


class Crash:
    """Kills workflows: call it with one. Inside of the workflow it says where the store is, and takes note of effects."""

    def __init__(self, folder: Path) -> None:
        self._base = folder
        self._trials = itertools.count()
        self._url: str | None = None
        self._notes: Notes | None = None
        self._watch: Watch | None = None
        self.folder = folder
        """A folder for the workflow's own files, empty at each trial."""

    # -- for the workflow --------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the URL of the store: an empty one at each trial. Open it in the workflow."""
        if self._url is None:
            raise InvalidInput("There is a store while a workflow runs; ask for its url inside of the workflow.")
        return self._url

    def effect(self, name: str, *, key: str | None = None, again: bool = False) -> None:
        """Take note that something happened in the world outside.

        `key` is what its receiver recognises a repeat by, e.g. `tenuto.idempotency_key()`: with the same one it counts
        once. `again` says that it does no harm to happen again.
        """
        if self._notes is None:
            raise InvalidInput("Effects are taken note of inside of a workflow that is called by crash(…).")
        inside = current_step.get()
        step = None if inside is None else [inside.run.id, inside.n]
        self._notes.add("effect", effect=name, key=key, again=again, step=step)
        if self._watch is not None:
            self._watch.boundary(f"after the effect {name!r}")

    @property
    def effects(self) -> list[str]:
        """Return what has happened so far in this trial, in order: the world, for `verify` to look at."""
        notes = [] if self._notes is None else self._notes.read()
        return [note["effect"] for note in notes if note["what"] == "effect"]

    # -- for the test ------------------------------------------------------------------------------------------

    def __call__(
        self,
        workflow: Workflow,
        *,
        url: str | None = None,
        agent: Any = None,
        meanwhile: Workflow | None = None,
        world: Callable[[], Iterable[str]] | None = None,
        stopped: bool = False,
        timeout: float = 60.0,
    ) -> Report:
        """Kill a workflow at each of its boundaries, and report what became of it.

        It is a function, also a coroutine function, of no argument, or of one: this object. `url` is a store to use
        instead of a SQLite file, under tenants of its own; `agent` a client that was made before, and is led to that
        store. `meanwhile` is called, in a process of its own, whenever the workflow waits for a signal, an answer or
        a verdict; time that it sleeps passes at once. `world` returns the effects that have happened, where the
        workflow does not call `effect`. With `stopped` each process is stopped instead of killed, for longer than
        its lease lives, and goes on when another one has ended its work. `timeout` is for each process.
        """
        if (url or "").startswith("volatile:"):
            raise InvalidInput("A volatile store ends with its process; crash uses a file unless you give a server.")
        trials = _Trials(self, workflow, url, agent, meanwhile, world, stopped, timeout)
        plain, boundaries = trials.once(None, None)
        if plain.outcome.kind == "hung":
            return Report(plain)
        return Report(plain, [trials.once(at, plain)[0] for at in range(boundaries)])


class _Trials:
    """Runs of one workflow, each on a fresh store."""

    def __init__(  # noqa: PLR0913 - what is asked for
        self,
        crash: Crash,
        workflow: Workflow,
        url: str | None,
        agent: Any,
        meanwhile: Workflow | None,
        world: Callable[[], Iterable[str]] | None,
        stopped: bool,  # noqa: FBT001 - as it is asked for
        timeout: float,
    ) -> None:
        self._crash = crash
        self._workflow = workflow
        self._url = url
        self._agent = agent
        self._meanwhile = meanwhile
        self._world = world
        self._stopped = stopped
        self._timeout = timeout
        self._unique = secrets.token_hex(4)

    def once(self, at: int | None, plain: Kill | None) -> tuple[Kill, int]:
        """Let the workflow run to its end, disturbed at a boundary; return what came of it and how many it passed."""
        crash, number = self._crash, next(self._crash._trials)
        crash.folder = crash._base / f"{number:03}" / "work"
        crash.folder.mkdir(parents=True)
        notes = Notes(crash.folder.parent / "notes")
        crash._url = self._url or str(crash.folder.parent / "store.db")
        self._plan = Plan(None, signal.SIGKILL, 0.0, f".{self._unique}-{number}" if self._url else "")
        self._processes = itertools.count()
        crash._notes = notes
        try:
            outcome = self._ended(at)
            noted = notes.read()
            world = None if self._world is None else Counter(self._world())
        finally:
            crash._notes = crash._url = None
        label = next((note["label"] for note in noted if note["what"] == "boundary" and note["here"]), None)
        verb = "stopped" if self._stopped else "killed"
        where = "undisturbed" if at is None else f"{verb} {label}" if label else f"not {verb}: it ended before"
        output = crash.folder.parent / "output"
        said = output.read_text(errors="replace") if output.exists() else ""
        passed = sum(note["what"] == "boundary" for note in noted)
        return judged(where, noted, outcome, plain, world, said), passed

    def _ended(self, at: int | None) -> Outcome:
        """Call the workflow, in one process after the other, until it has ended or waits for ever."""
        assert self._crash._notes is not None
        skew, last, held = 0.0, "", []
        for _ in range(_ROUNDS):
            sign = signal.SIGSTOP if self._stopped else signal.SIGKILL
            pid, outcome = self._process(self._workflow, self._plan._replace(at=at, signal=sign, skew=skew))
            if pid is not None:
                held.append(pid)
                skew += _PAST_ANY_LEASE
            if outcome is None:
                at = None
                continue
            if outcome.kind not in ("waits", "in doubt"):
                break
            first, last = last != outcome.said, outcome.said
            if self._meanwhile is not None and first:
                self._process(self._meanwhile, self._plan._replace(skew=skew))
            elif outcome.until is not None:
                skew = max(skew, outcome.until - time.time() + 0.001)
            else:
                break
        else:
            outcome = Outcome("hung", f"it was called {_ROUNDS} times and had not ended")
        for pid in held:
            go_on(self._crash._notes).touch()
            os.kill(pid, signal.SIGCONT)
            if self._waited(pid) is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Outcome("hung", "the process that had been stopped did not come to its end")
        return outcome

    def _process(self, work: Workflow, plan: Plan) -> tuple[int | None, Outcome | None]:
        """Call something in a process of its own; return how it ended: None if it was killed, its id if it stands still."""
        crash = self._crash
        assert crash._notes is not None
        notes = Notes(crash._notes.path, next(self._processes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner do not matter to the child
            pid = os.fork()
        if pid == 0:
            try:
                self._inside(work, plan, notes)
            finally:
                os._exit(1)
        status = self._waited(pid)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, Outcome("hung", f"it took longer than {self._timeout:g} s")
        if os.WIFSTOPPED(status):
            while self._in_a_commit():
                os.kill(pid, signal.SIGCONT)
                self._waited(pid)
            return pid, None
        for note in reversed(notes.read()):
            if note["what"] == "outcome" and note["process"] == notes._process:
                return None, Outcome(note["kind"], note["text"], note["until"], note["said"])
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == plan.signal and plan.at is not None:
            return None, None
        return None, Outcome("died", f"with status {status}")

    def _in_a_commit(self) -> bool:
        """Tell whether a process that stands still has the write lock of a SQLite file: nobody else could go on."""
        lock = self._crash.folder.parent / "store.db-lock"
        if not lock.exists():
            return False
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _waited(self, pid: int) -> int | None:
        deadline = time.monotonic() + self._timeout
        pause = 0.0005
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if done:
                return status
            time.sleep(pause)
            pause = min(pause * 1.2, 0.02)
        return None

    def _inside(self, work: Workflow, plan: Plan, notes: Notes) -> None:
        """Be the child."""
        crash = self._crash
        with (crash.folder.parent / "output").open("a", buffering=1) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output
            crash._notes = notes
            if work is self._workflow:
                crash._watch = watch(notes, plan, crash.url, self._agent)
            else:
                watch(Notes(Path(os.devnull)), plan, crash.url, self._agent)
            kind, until, said = "returned", None, ""
            try:
                text = repr(_called(work, crash))
            except Paused as pause:
                kind = "in doubt" if isinstance(pause, InDoubt) else "waits"
                text, until = f"{type(pause).__name__} in the run {pause.run!r}", getattr(pause, "until", None)
                said = str(pause)
                traceback.print_exc()
            except BaseException as error:  # noqa: BLE001 - whatever the workflow raises is its outcome
                kind, text = "raised", f"{type(error).__name__}: {error}"
                traceback.print_exc()
            crash._watch = None
            notes.add("outcome", kind=kind, text=text, until=until, said=said)
        os._exit(0)


def _called(work: Workflow, crash: Crash) -> Any:
    given = (crash,) if inspect.signature(work).parameters else ()
    value = work(*given)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def killed_everywhere(workflow: Workflow, **options: Any) -> Report:
    """Kill a workflow, a function of one argument, at each of its boundaries; see `Crash.__call__` for the options."""
    with _folder() as folder:
        return Crash(folder)(workflow, **options)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tenuto-crash-") as name:
        yield Path(name)


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """Give a test what kills workflows at every boundary."""
    return Crash(tmp_path / "crash")
