"""`tenuto spool`: look at the file in which commits were kept while the store was away, replay it, discard conflicts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from tenuto.backends import connect
from tenuto.cli.render import table
from tenuto.cli.shared import FAILURE, confirm, guarded, show_json
from tenuto.errors import NotFound, StorageUnavailable
from tenuto.kernel import keys
from tenuto.wrappers.spool import Spool, SpoolConflict

_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_URL = click.option("--url", envvar="TENUTO_URL", help="Store path or URL; default: $TENUTO_URL.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Kept(NamedTuple):
    """What a spool file holds."""

    pending: int
    conflicts: list[Rejected]


class Rejected(NamedTuple):
    """A kept commit that the store rejected."""

    number: int
    at: float
    reason: str
    keys: list[str]


class Discarded(NamedTuple):
    """A conflict that was removed from the file."""

    number: int


@click.group("spool", no_args_is_help=True)
def command() -> None:
    """The file that keeps commits while the store is away: show, replay, discard. No other process may have it open."""


@contextlib.contextmanager
def _opened(file: Path, url: str | None) -> Iterator[Spool]:
    spool = Spool(connect(url), file, retry=1e6)
    try:
        yield spool
    finally:
        spool.close()


def _rejected(one: SpoolConflict) -> Rejected:
    return Rejected(one.number, one.at, one.reason, ["/".join(map(str, keys.unpack(key))) for key in one.keys])


@command.command("show")
@_FILE
@_URL
@_JSON
@guarded
def show(file: Path, url: str | None, *, as_json: bool) -> None:
    """Show how many commits a file keeps, and its conflicts. Nothing is sent.

    FILE is the spool. It exits 1 if there are conflicts.
    """
    with _opened(file, url) as spool:
        kept = Kept(spool.pending, [_rejected(one) for one in spool.conflicts()])
    _print(kept, as_json=as_json)
    if kept.conflicts:
        raise SystemExit(FAILURE)


def _print(kept: Kept, *, as_json: bool) -> None:
    if as_json:
        show_json(kept)
        return
    click.echo(f"{kept.pending} kept, {len(kept.conflicts)} conflicts")
    if kept.conflicts:
        click.echo("\n".join(table(kept.conflicts, ("number", "at", "keys", "reason"))))


@command.command("replay")
@_FILE
@_URL
@_JSON
@guarded
def replay(file: Path, url: str | None, *, as_json: bool) -> None:
    """Apply the commits that a file keeps, in order. Killed at any point, run it again.

    FILE is the spool. It exits 1 if a commit is a conflict, and 6 if the store is away.
    """
    with _opened(file, url) as spool:
        done = spool.replay()
    if as_json:
        show_json(done)
    else:
        click.echo(f"{done.applied} applied, {done.conflicts} conflicts, {done.pending} still kept")
    if done.pending:
        raise StorageUnavailable(f"The store is away. {done.pending} commits stay in {file}; run it again.")
    if done.conflicts:
        raise SystemExit(FAILURE)


@command.command("discard")
@_FILE
@click.argument("number", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_URL
@_JSON
@guarded
def discard(file: Path, number: int, url: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove one conflict from a file. What it would have written is lost.

    FILE is the spool, NUMBER the number of the conflict.
    """
    confirm(f"Discard the conflict {number}? What it would have written is lost.", yes=yes)
    with _opened(file, url) as spool:
        if not spool.discard(number):
            raise NotFound(f"{file} has no conflict {number}. See: tenuto spool show {file}")
    result: Any = Discarded(number)
    show_json(result) if as_json else click.echo(f"conflict {number} is discarded")
