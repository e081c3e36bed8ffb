"""`tenuto compact`: give free space in a SQLite store back to the disk."""

from __future__ import annotations

from typing import NamedTuple

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options


class Compacted(NamedTuple):
    """The --json output."""

    freed: int
    """By how many bytes the file shrank."""
    bytes: int
    """The size of the file."""


@click.command("compact")
@store_options
@guarded
def command(url: str | None, tenant: str, *, as_json: bool) -> None:
    """Rewrite a SQLite store without its free pages, so that the file shrinks. Commits wait meanwhile; reads do not.

    It needs as much free disk as the compacted file, twice. A crash changes nothing.
    """
    with opened(url, tenant) as agent, Progress("compacting"):
        freed = agent.store.compact()
        done = Compacted(freed, agent.store.stats()["bytes"])
    show_json(done) if as_json else click.echo(f"{done.freed:,} bytes freed, {done.bytes:,} left")
