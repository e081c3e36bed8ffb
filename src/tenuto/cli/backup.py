"""`tenuto backup`: copy the store to a file, once or on a schedule."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import FAILURE, guarded, opened, show_json, store_options
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import seconds

_PREFIX: Final = "tenuto-"
_ABANDONED: Final = 3_600.0
"""Seconds after the last write to a partial file until it counts as left by a killed backup."""


class Copied(NamedTuple):
    """The --json output."""

    path: str
    bytes: int
    verified: bool | None
    """Whether the backup was opened, checked and compared; None if that was not asked for."""
    removed: list[str]
    """Older backups that were removed."""


@click.command("backup")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--every", help="Make a backup in the folder PATH this often, for example 1h, until stopped.")
@click.option(
    "--keep", type=click.IntRange(1), help="How many backups stay in the folder PATH; older ones are removed."
)
@click.option("--verify", is_flag=True, help="Open each backup, check it, and compare it with the store.")
@store_options
@guarded
def command(
    path: Path,
    every: str | None,
    keep: int | None,
    url: str | None,
    tenant: str,
    *,
    verify: bool,
    as_json: bool,
) -> None:
    """Copy a consistent snapshot of the store to PATH while it is in use. The file is a store; open it with --url PATH.

    With --every or --keep, PATH is a folder, and each file in it is named by its time. A backup that was interrupted leaves
    nothing under its name. For Postgres and Redis it is an export of the tenant; `tenuto restore` takes both.
    """
    pause = None if every is None else seconds(every, "every")
    in_folder = every is not None or keep is not None
    if in_folder and path.is_file():
        raise InvalidInput(f"{path} is a file. With --every or --keep, name a folder.")
    with opened(url, tenant) as agent:
        while True:
            began = time.monotonic()
            _once(agent, path, keep, in_folder=in_folder, verify=verify, as_json=as_json)
            if pause is None:
                return
            time.sleep(max(0.0, pause - (time.monotonic() - began)))


def _once(agent: Tenuto, path: Path, keep: int | None, *, in_folder: bool, verify: bool, as_json: bool) -> None:
    target = path
    if in_folder:
        path.mkdir(parents=True, exist_ok=True)
        _remove_partial(path)
        kind = ".jsonl" if _is_server(agent) else ".db"
        target = path / f"{_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}{kind}"
    with Progress(f"copying to {target.name}") as progress:
        if not _is_server(agent):
            size = agent.store.backup(target, progress=progress.at)
        else:
            size = agent.store.export(target, progress=progress.at).bytes
    wrong = _wrong(agent, target) if verify else []
    removed: list[str] = []
    if keep is not None and not wrong:  # a bad backup never displaces a good one
        older = sorted(
            one for one in path.iterdir() if one.name.startswith(_PREFIX) and one.suffix in (".db", ".jsonl")
        )
        for one in older[:-keep]:
            one.unlink()
            _lock(one).unlink(missing_ok=True)
            removed.append(str(one))
    if as_json:
        show_json(Copied(str(target), size, not wrong if verify else None, removed))
    elif in_folder or verify:
        click.echo(f"{target}: {size:,} bytes{', verified' if verify and not wrong else ''}")
    if wrong:
        for line in wrong:
            click.echo(f"{target}: {line}", err=True)
        sys.exit(FAILURE)


def _remove_partial(folder: Path) -> None:
    """Remove what killed backups left; a backup that another process is making is written to all the time."""
    for one in folder.glob(f"{_PREFIX}*.partial*"):
        with contextlib.suppress(FileNotFoundError):
            if one.stat().st_mtime < time.time() - _ABANDONED:
                one.unlink()


def _is_server(agent: Tenuto) -> bool:
    return agent._file is None and agent.store.stats()["backend"] in ("postgres", "redis", "remote")


def _lock(path: Path) -> Path:
    """Return the lock file that opening a store leaves next to it."""
    return path.with_name(path.name + "-lock")


def _wrong(agent: Tenuto, target: Path) -> list[str]:
    """Return what is wrong with a backup. What was written since it was made is not."""
    is_export = target.suffix == ".jsonl"
    with Tenuto("verify", "volatile:" if is_export else target, tenant=agent.tenant) as copy:
        if is_export:
            copy.store.import_(target)  # raises if it is damaged
        found = [f"{one.kind}: {one.detail}" for one in copy.store.check().findings]
        # A row that both have with the same version must be the same.
        unequal = (one for one in copy.store.compare(agent.store, limit=10_000) if one.kind == "different")
        return found + [
            f"{one.key} differs: {one.detail}"
            for one in unequal
            if "version" not in one.detail and "forgotten" not in one.detail
        ]
