"""`tenuto copy`: copy a tenant from one store to another, and compare them."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import FAILURE, guarded, opened, show_json


class Copied(NamedTuple):
    """The --json output."""

    records: int
    streams: int
    entries: int
    new: int
    digest: str
    equal: bool
    """Whether both stores were equal afterwards."""


@click.command("copy")
@click.argument("source")
@click.argument("target")
@click.option("--tenant", default="default", show_default=True, help="Tenant that is copied.")
@click.option("--to-tenant", help="Tenant of the target; default: the same.")
@click.option("--dry-run", is_flag=True, help="Only show what the source holds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(source: str, target: str, tenant: str, to_tenant: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Copy everything of a tenant from the store SOURCE to the store TARGET, then compare them; exit 1 if they differ.

    SOURCE is only read. What TARGET has already is skipped, so an interrupted copy is run again. Stop the writers first:
    what they write meanwhile may be missing, and is then reported.
    """
    with opened(source, tenant) as old:
        if dry_run:
            held = old.store.summary()
            show_json(held) if as_json else click.echo(f"{held.records:,} records and {held.entries:,} entries")
            return
        with opened(target, to_tenant or tenant, create=True) as new:
            with Progress(f"copying to {target}") as progress:
                done = new.store.copy_from(old.store, progress=progress.at)
            with Progress("comparing") as progress:
                unequal = new.store.compare(old.store, progress=progress.at)
    if as_json:
        show_json(Copied(*done, equal=not unequal))
    else:
        counts = (
            f"{done.records:,} records and {done.entries:,} entries of {done.streams:,} streams, {done.new:,} rows new"
        )
        click.echo(f"{counts}: {'equal to the source' if not unequal else 'NOT equal to the source'}")
        for one in unequal:
            click.echo(f"{one.kind} {one.key}: {one.detail}", err=True)
    if unequal:
        sys.exit(FAILURE)
