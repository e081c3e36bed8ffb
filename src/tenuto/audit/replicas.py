"""Replicas: real child processes that hold the target, so that what is shared, survives and races is seen, not assumed.

Each is started fresh (a fork server that has imported tenuto, but not the user's module), calls the factory, and then does
what the audit asks over a pipe. `kill` ends it with SIGKILL, as the system does when memory runs out.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenuto.audit.subjects import Subject, TenutoSubject, is_conflict, subject_of
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, TenutoError

_START: Final = 60.0
_PATIENCE: Final = 60.0
"""Seconds for one request to a replica."""
_PRELOAD: Final = ("tenuto.audit.acts", "tenuto.backends.sqlite.backend")


class Target(NamedTuple):
    """What is audited: a store by URL, or what a factory returns."""

    url: str | None = None
    tenant: str = "default"
    factory: str | None = None
    """MODULE:FACTORY."""
    preload: tuple[str, ...] = ()
    """Modules of libraries that a replica imports before it forks."""

    @property
    def name(self) -> str:
        """Return what a report calls it; no password."""
        if self.factory is not None:
            return self.factory
        scheme, found, rest = str(self.url).partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}" if found else str(self.url)

    def opened(self) -> Subject:
        """Return a new subject in this process."""
        if self.factory is None:
            return TenutoSubject(Tenuto("audit", self.url, tenant=self.tenant), self.url)
        return subject_of(_made(self.factory))


def _made(spec: str) -> Any:
    name, colon, path = spec.partition(":")
    if not (name and colon and path):
        raise InvalidInput(f"A target is MODULE:FACTORY, for example my_agent.memory:make; not {spec!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"{name} cannot be imported: {error}. Start the audit in the folder of your program."
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"{name} has no {path!r}. Name the function that returns your state manager.")
        found = getattr(found, part)
    return found() if callable(found) and not isinstance(found, Tenuto) else found


class _Place(NamedTuple):
    """What a child has of its parent as it is now; the fork server has it from its start."""

    folder: str
    path: list[str]
    environ: dict[str, str]

    @classmethod
    def now(cls) -> _Place:
        return cls(str(Path.cwd()), list(sys.path), dict(os.environ))

    def take(self) -> None:
        os.chdir(self.folder)
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environ)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's program: multiprocessing would run its module again in each child, an unguarded script included."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Refused(Exception):
    """A request that raised in a replica."""

    def __init__(self, kind: str, text: str, *, conflict: bool) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind, self.text = kind, text
        self.conflict = conflict


class Gone(Exception):
    """A replica ended, or did not answer in time."""


class Replica:
    """One process with the target."""

    def __init__(self, target: Target) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOAD, *target.preload])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(target, theirs, _Place.now()), daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()
        self._receive(_START)

    def __call__(self, act: str, *args: Any, patience: float = _PATIENCE) -> Any:
        """Do an act in the replica and return its result."""
        self.begin(act, *args)
        return self.end(patience)

    def begin(self, act: str, *args: Any) -> None:
        """Begin an act; several replicas then act at the same time."""
        try:
            self._pipe.send((act, args))
        except OSError as error:
            raise Gone("the process ended") from error

    def end(self, patience: float = _PATIENCE) -> Any:
        """Return the result of the act that was begun."""
        return self._receive(patience)

    def news(self, patience: float) -> Any:
        """Return the next thing that an act without an end has reported, or None."""
        try:
            return self._pipe.recv() if self._pipe.poll(patience) else None
        except (EOFError, OSError):
            return None

    def _receive(self, patience: float) -> Any:
        try:
            if not self._pipe.poll(patience):
                raise Gone(f"no answer within {patience:g} s")
            is_fine, found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Gone("the process ended") from error
        if is_fine:
            return found
        raise Refused(*found[:2], conflict=found[2])

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._process.kill()
        self._process.join(10)

    def stop(self) -> None:
        """Let the process end as programs do, closing what it has open; kill it if it does not."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self.kill()
        self._pipe.close()


def _serve(target: Target, pipe: Connection, place: _Place) -> None:
    """Run a replica: open the target and do what is asked, until told to end."""
    from tenuto.audit import acts  # noqa: PLC0415 - it imports this package

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place.take()
    subject: Any = _answered(pipe, target.opened, quiet=True)
    while subject is not None:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        if asked is None:
            with suppress(Exception):
                subject.close()
            return
        act, args = asked
        call: Callable[..., Any] = getattr(acts, act)
        _answered(pipe, functools.partial(call, subject, pipe, *args))


def _answered(pipe: Connection, call: Callable[[], Any], *, quiet: bool = False) -> Any:
    try:
        found = call()
    except Exception as error:  # noqa: BLE001 - it is the audit's evidence
        pipe.send((False, (type(error).__name__, str(error)[:300], is_conflict(error))))
        return None
    pipe.send((True, None if quiet else found))
    return found


@contextmanager
def replicas(target: Target, count: int) -> Iterator[list[Replica]]:
    """Start several replicas, and end them."""
    started: list[Replica] = []
    try:
        for _ in range(count):
            started.append(Replica(target))  # noqa: PERF401 - those that were started are ended if one fails
        yield started
    finally:
        for one in started:
            one.stop()


__all__ = ["Gone", "Refused", "Replica", "Target", "TenutoError", "replicas"]
