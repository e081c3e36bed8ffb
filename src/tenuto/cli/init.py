"""`tenuto init`: create a store in this folder. Git ignores the folder of a new default store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from tenuto.backends import DEFAULT, default_path
from tenuto.cli.shared import guarded, opened, show_json, store_options


class Prepared(NamedTuple):
    """The --json output."""

    done: list[str]
    """What was created, or would be."""
    dry_run: bool


@click.command("init")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@store_options
@guarded
def command(url: str | None, tenant: str, *, as_json: bool, dry_run: bool) -> None:
    """Create the store; leave an existing one unchanged. Safe to repeat."""
    path, above = Path(DEFAULT).absolute(), default_path().absolute()
    done = [] if url is None and path.exists() else [f"store {url or path}"]
    if not dry_run:
        with opened(url or str(path), tenant, create=True):
            pass
    if as_json:
        show_json(Prepared(done, dry_run))
        return
    click.echo("\n".join(done) if done else f"nothing to do: the store is {path}", err=True)
    if url is None and done and above != path:
        click.echo(f"In this folder it replaces {above}, which was used here so far.", err=True)
