"""Shared by all commands: the store options, JSON output, errors and exit codes."""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from tenuto.backends import connect
from tenuto.client import Tenuto
from tenuto.errors import (
    Blocked,
    Conflict,
    InDoubt,
    InvalidInput,
    MissingDriver,
    NewerFormat,
    NotFound,
    Paused,
    StorageUnavailable,
    TenutoError,
    Waiting,
)
from tenuto.operations.jsonable import jsonable
from tenuto.wrappers.encrypt import key_from_environment

FAILURE, USAGE, NOT_FOUND, CONFLICT, WAITING, UNAVAILABLE, NEWER = 1, 2, 3, 4, 5, 6, 7
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (Waiting, WAITING),
    (Blocked, WAITING),
    (InDoubt, WAITING),
    (StorageUnavailable, UNAVAILABLE),
    (NewerFormat, NEWER),
    (MissingDriver, FAILURE),
    (InvalidInput, USAGE),
)


class Trouble(NamedTuple):
    """An error, for programs."""

    code: int
    """The exit code."""
    type: str
    message: str
    retryable: bool
    """Whether a retry may succeed."""


class Failure(NamedTuple):
    """The --json output on stderr when a command fails."""

    error: Trouble


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILURE)


def refuse(error: click.UsageError) -> None:
    """Print a usage error as JSON and exit."""
    failure = Failure(Trouble(USAGE, "UsageError", error.format_message(), retryable=False))
    click.echo(json.dumps(jsonable(failure)), err=True)
    sys.exit(USAGE)


_CALL = re.compile(r"agent\.(runs|inbox)\.(list|get|retry|cancel)\((?:'([^']*)')?\)(?:\.steps)?")


def in_words(error: BaseException) -> str:
    """Return the message of an error, with advised Python calls replaced by commands."""
    text = _CALL.sub(
        lambda call: f"tenuto {call[1]} {'show' if call[2] == 'get' else call[2]} {call[3] or ''}".strip(), str(error)
    )
    return text.replace("Pass by=, a person's name.", "Pass --by, a person's name.").replace(
        "agent.notify.dead()", "tenuto notify outbox --dead"
    )


def fail(error: BaseException, *, as_json: bool) -> None:
    """Print an error, as text or JSON, and exit."""
    code = exit_code(error)
    if as_json:
        retryable = isinstance(error, StorageUnavailable)
        failure = Failure(Trouble(code, type(error).__name__, in_words(error), retryable))
        click.echo(json.dumps(jsonable(failure)), err=True)
    else:
        click.echo(click.style("error: ", fg="red", bold=True) + in_words(error), err=True)
    sys.exit(code)


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the errors of a command into messages (JSON with --json) and the published exit codes."""

    @functools.wraps(call)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (TenutoError, Paused) as error:
            fail(error, as_json=bool(kwargs.get("as_json")))
        except BrokenPipeError:
            sys.stderr.close()  # the reader has closed the pipe
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(130)

    return inner


def store_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url, --tenant and --json to a command."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON; for a stream, one object a line."),
        click.option("--tenant", default="default", show_default=True, help="Tenant whose data is used."),
        click.option("--url", envvar="TENUTO_URL", help="Store path or URL; default: $TENUTO_URL."),
    ):
        call = option(call)
    return call


def opened(url: str | None, tenant: str, *, create: bool = False) -> Tenuto:
    """Return a client of the store; `NotFound` if its file is missing, unless `create`."""
    backend = connect(url)
    path: Path | None = getattr(backend, "path", None)
    if path is not None and not create and not path.exists():
        raise NotFound(
            f"There is no store at {path.absolute()}, nor in a folder above. Name one with --url or $TENUTO_URL, or create "
            "one here with: tenuto init"
            if url is None
            else f"There is no store at {path.absolute()}. Name another with --url or $TENUTO_URL, or create it with: "
            f"tenuto init --url {url}"
        )
    return Tenuto("command line", backend, tenant=tenant, encryption_key=key_from_environment())


def where(agent: Tenuto) -> str:
    """Return the absolute path of a store that is a file; else what its backend calls its place."""
    path: Path | None = getattr(agent._file, "path", None)
    return str(path.absolute()) if path is not None else str(agent.store.stats().get("place") or "in memory")


def imported(module: str) -> ModuleType:
    """Import a module of the user's program, also from the current folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise click.UsageError(f"{module} cannot be imported: {error}.") from error


def store_exists(url: str | None) -> bool:
    """Return whether there is a store, without creating its file."""
    path: Path | None = getattr(connect(url), "path", None)
    return path is None or path.exists()


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(jsonable(value), ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def _asks() -> bool:
    """Return whether stdin is a terminal, so that a person can answer."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; without a terminal, require --yes."""
    if yes:
        return
    if not _asks():
        raise InvalidInput(f"{question} Nothing was done: without a terminal, confirm with --yes.")
    if not click.confirm(question, err=True):
        click.echo("nothing was done", err=True)
        sys.exit(FAILURE)
