"""`tenuto backup`: copy the store to a file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options


class Copied(NamedTuple):
    """The --json output."""

    path: str
    bytes: int


@click.command("backup")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@store_options
@guarded
def command(path: Path, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Copy a consistent snapshot of the store to PATH while it is in use. The file is a store; open it with --url PATH."""
    with opened(url, tenant) as agent, Progress(f"copying to {path.name}") as progress:
        size = agent.store.backup(path, progress=progress.at)
    if as_json:
        show_json(Copied(str(path), size))
