"""Kill a workflow at every boundary and count its effects: a pytest fixture, and a function that needs no pytest.

    from tenuto.testing.crash import crash  # in conftest.py, or in the test

    def test_a_deployment_survives_being_killed_anywhere(crash):
        def deploy():
            with Tenuto("deployer", crash.url) as agent, agent.run("deploy-42") as run:
                run.step("announce", announce, "1.2.3", effect="once", verify=find)   # calls crash.effect("announced")

        report = crash(deploy)
        assert report.ok, report

The workflow first runs without kills in a child process, to find its boundaries: before and after each commit, and
after each effect. Then it runs once per boundary on an empty store: it is killed there with SIGKILL, and called again
in a new process until it ends. Each child is forked, so the workflow may be any function; have no open store and no
threads meanwhile.
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

from tenuto.backends import connect
from tenuto.capabilities.runs.engine import current_step
from tenuto.errors import InDoubt, InvalidInput, Paused
from tenuto.testing._boundaries import Notes, Plan, Watch, continue_file, watch
from tenuto.testing._verdict import Kill, Outcome, Twice, judged

__all__ = ["Crash", "Kill", "Outcome", "Report", "Twice", "crash", "killed_everywhere"]

Workflow = Callable[..., Any]
_ROUNDS: Final = 50
_PAST_ANY_LEASE: Final = 3_600.0


@dataclass(frozen=True)
class Report:
    """The result of killing a workflow at each of its boundaries."""

    plain: Kill
    """The trial without a kill."""
    kills: list[Kill] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether no kill made a difference: no effect twice or missing, equal results, no broken promise."""
        return bool(self.kills) and not self.plain.broken and all(kill.ok for kill in self.kills)

    @property
    def twice(self) -> list[Twice]:
        """Return the effects that happened more often than without kills."""
        return [one for kill in self.kills for one in kill.twice]

    @property
    def never(self) -> list[str]:
        """Return the effects that happened less often than without kills, with the boundary of the kill."""
        return [f"{name!r} did not happen when it was {kill.at}" for kill in self.kills for name in kill.never]

    @property
    def repeated(self) -> list[str]:
        """Return the effects that were repeated and may be, with a record of it."""
        return sorted({name for kill in self.kills for name in kill.repeated})

    @property
    def paused(self) -> list[Kill]:
        """Return the kills after which the run waits for a person to say whether a step happened."""
        return [kill for kill in self.kills if kill.paused]

    @property
    def differences(self) -> list[str]:
        """Return the results that differ from those without kills, and the promises that tenuto broke."""
        found = [f"{one}, undisturbed" for one in self.plain.broken]
        found += [f"{one}, when it was {kill.at}" for kill in self.kills for one in kill.broken]
        found += [f"{kill.difference}, when it was {kill.at}" for kill in self.kills if kill.difference]
        return found

    @property
    def effects(self) -> int:
        """Return the number of effects over all kills."""
        return sum(sum(kill.effects.values()) for kill in self.kills)

    def __str__(self) -> str:
        """Return a line for each kill, then the problems."""
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
            wrong.append("there is no boundary: the workflow made no commit, or ended before the first")
        if wrong:
            bad = [kill for kill in self.kills if not kill.ok] or [self.plain]
            printed = next((kill.output for kill in bad if kill.output), "")
            lines += ["problems:", *(f"  - {one}" for one in wrong)]
            lines += ["output of the first failed trial:", printed[-2_000:]] if printed else []
        return "\n".join([head, *lines])

    __repr__ = __str__


class Crash:
    """Kills a workflow at every boundary. Inside the workflow it gives the URL of the store and records effects."""

    def __init__(self, folder: Path) -> None:
        self._base = folder
        self._trials = itertools.count()
        self._url: str | None = None
        self._notes: Notes | None = None
        self._watch: Watch | None = None
        self.folder = folder
        """A folder for the workflow's files, empty at each trial."""

    # -- for the workflow --------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the URL of the store, which is empty at each trial. Open it in the workflow."""
        if self._url is None:
            raise InvalidInput("There is no store outside a workflow. Read `crash.url` inside the workflow.")
        return self._url

    def effect(self, name: str, *, key: str | None = None, again: bool = False) -> None:
        """Record an effect on the outside world.

        With a `key`, e.g. `tenuto.idempotency_key()`, repeats with the same key count once, because the receiver
        deduplicates them. `again` means that a repeat is harmless.
        """
        if self._notes is None:
            raise InvalidInput("Effects are recorded only in a workflow that crash(…) calls. Call `effect` inside it.")
        inside = current_step.get()
        step = None if inside is None else [inside.run.id, inside.n]
        self._notes.add("effect", effect=name, key=key, again=again, step=step)
        if self._watch is not None:
            self._watch.boundary(f"after the effect {name!r}")

    @property
    def effects(self) -> list[str]:
        """Return the effects of this trial so far, in order, for use in `verify`."""
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
        """Kill a workflow at each of its boundaries; return a report.

        `workflow` is a function or coroutine function of no argument, or of this object. `url` is a store to use
        instead of a SQLite file, with separate tenants, or with `{trial}` in it a store for each trial; `agent` is an existing client, redirected to that store.
        `meanwhile` is called in a separate process whenever the workflow waits for a signal, an answer or a person;
        sleeps pass at once. `world` returns the effects, if the workflow does not call `effect`. With `stopped` each
        process is suspended instead of killed, for longer than its lease, and continues after another one has finished
        its work. `timeout` is per process.
        """
        if (url or "").startswith("volatile:"):
            raise InvalidInput("A volatile store does not survive a kill. Use a file (the default) or a server.")
        trials = _Trials(self, workflow, url, agent, meanwhile, world, stopped, timeout)
        plain, boundaries = trials.once(None, None)
        if plain.outcome.kind == "hung":
            return Report(plain)
        return Report(plain, [trials.once(at, plain)[0] for at in range(boundaries)])


class _Trials:
    """Trials of one workflow, each on an empty store."""

    def __init__(  # noqa: PLR0913 - the options of Crash
        self,
        crash: Crash,
        workflow: Workflow,
        url: str | None,
        agent: Any,
        meanwhile: Workflow | None,
        world: Callable[[], Iterable[str]] | None,
        stopped: bool,  # noqa: FBT001 - an option of Crash
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
        connect(url or "store.db").close()  # load the driver once, not in every child; nothing is opened

    def once(self, at: int | None, plain: Kill | None) -> tuple[Kill, int]:
        """Run the workflow to its end with a kill at a boundary; return the result and the number of boundaries."""
        crash, number = self._crash, next(self._crash._trials)
        crash.folder = crash._base / f"{number:03}" / "work"
        crash.folder.mkdir(parents=True)
        notes = Notes(crash.folder.parent / "notes")
        crash._url = (self._url or str(crash.folder.parent / "store.db")).replace("{trial}", f"{self._unique}-{number}")
        shared = self._url is not None and "{trial}" not in self._url
        self._plan = Plan(None, signal.SIGKILL, 0.0, f".{self._unique}-{number}" if shared else "")
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
        """Call the workflow in one process after another, until it ends or waits for ever."""
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
            outcome = Outcome("hung", f"after {_ROUNDS} calls it had not ended")
        for pid in held:
            continue_file(self._crash._notes).touch()
            os.kill(pid, signal.SIGCONT)
            if self._waited(pid) is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Outcome("hung", "the stopped process did not end after it was continued")
        return outcome

    def _process(self, work: Workflow, plan: Plan) -> tuple[int | None, Outcome | None]:
        """Call a function in a child process; return its id if it is stopped, and its outcome unless it was killed."""
        crash = self._crash
        assert crash._notes is not None
        notes = Notes(crash._notes.path, next(self._processes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child does not use the test runner's threads
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
        """Return whether a stopped process holds the write lock of a SQLite file, which would block all others."""
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
        """Run in the child process."""
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
            except BaseException as error:  # noqa: BLE001 - any error is the outcome
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
    """Kill a workflow of one argument at each of its boundaries; see `Crash.__call__` for the options."""
    with _folder() as folder:
        return Crash(folder)(workflow, **options)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tenuto-crash-") as name:
        yield Path(name)


try:
    from pytest import fixture  # noqa: PT013 - the name alone, which is also the stand-in's
except ImportError:  # `killed_everywhere` needs no pytest

    def fixture(fn: Callable[..., Crash]) -> Callable[..., Crash]:  # type: ignore[no-redef]
        """Return the function; there is no pytest to provide a fixture to."""
        return fn


@fixture
def crash(tmp_path: Path) -> Crash:
    """Provide a `Crash`, which kills a workflow at every boundary."""
    return Crash(tmp_path / "crash")
