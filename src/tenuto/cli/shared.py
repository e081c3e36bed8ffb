"""What every command shares: which store, how it prints, and how it ends."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from tenuto.backends import connect
from tenuto.client import Tenuto
from tenuto.errors import (
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
from tenuto.servers.jsonable import jsonable

FAILURE, USAGE, NOT_FOUND, CONFLICT, WAITING, UNAVAILABLE, NEWER = 1, 2, 3, 4, 5, 6, 7
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (Waiting, WAITING),
    (InDoubt, WAITING),
    (StorageUnavailable, UNAVAILABLE),
    (NewerFormat, NEWER),
    (MissingDriver, FAILURE),
    (InvalidInput, USAGE),
)


class Trouble(NamedTuple):
    """What went wrong, for programs."""

    code: int
    """The exit code."""
    type: str
    message: str
    retryable: bool
    """Whether the same again may succeed."""


class Failure(NamedTuple):
    """What a command with --json says on stderr when it fails."""

    error: Trouble


def exit_code(error: BaseException) -> int:
    """Return how a command ends that met this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILURE)


def refuse(error: click.UsageError) -> None:
    """Say, as JSON, how a command was used wrongly, and end."""
    told = Failure(Trouble(USAGE, "UsageError", error.format_message(), retryable=False))
    click.echo(json.dumps(jsonable(told)), err=True)
    sys.exit(USAGE)


_CALL = re.compile(r"agent\.(runs|inbox)\.(list|get|retry|cancel)\((?:'([^']*)')?\)(?:\.steps)?")


def in_words(error: BaseException) -> str:
    """Return what an error says, with the commands that do what it advises instead of the calls."""
    return _CALL.sub(
        lambda call: f"tenuto {call[1]} {'show' if call[2] == 'get' else call[2]} {call[3] or ''}".strip(), str(error)
    )


def fail(error: BaseException, *, as_json: bool) -> None:
    """Say what went wrong, in one sentence or as JSON, and end."""
    code = exit_code(error)
    if as_json:
        retryable = isinstance(error, StorageUnavailable)
        told = Failure(Trouble(code, type(error).__name__, in_words(error), retryable))
        click.echo(json.dumps(jsonable(told)), err=True)
    else:
        click.echo(click.style("error: ", fg="red", bold=True) + in_words(error), err=True)
    sys.exit(code)


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """End a command with the published exit codes; its errors are sentences, and JSON where JSON is wanted."""

    @functools.wraps(call)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (TenutoError, Paused) as error:
            fail(error, as_json=bool(kwargs.get("as_json")))
        except BrokenPipeError:
            sys.stderr.close()  # whoever read has read enough
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(130)

    return inner


def store_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --url, --tenant and --json."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON; a stream as one object a line."),
        click.option("--tenant", default="default", show_default=True, help="Whose part of the store."),
        click.option("--url", envvar="TENUTO_URL", help="The store: a path or a URL. $TENUTO_URL if not given."),
    ):
        call = option(call)
    return call


def opened(url: str | None, tenant: str, *, create: bool = False) -> Tenuto:
    """Return a client of the store; one in a file that is not there is not made by looking into it."""
    backend = connect(url)
    path: Path | None = getattr(backend, "path", None)
    if path is not None and not create and not path.exists():
        raise NotFound(
            f"There is no store at {path}. Say which with --url or $TENUTO_URL, or make one here with: tenuto init"
        )
    return Tenuto("command line", backend, tenant=tenant)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(jsonable(value), ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def _asks() -> bool:
    """Tell whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; off a terminal, --yes says so."""
    if yes:
        return
    if not _asks():
        raise InvalidInput(f"{question} Nothing was done: off a terminal, say so with --yes.")
    if not click.confirm(question, err=True):
        click.echo("nothing was done", err=True)
        sys.exit(FAILURE)
