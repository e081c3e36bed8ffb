"""`tenuto archive`: move what is old to a folder or a bucket, and list what is there."""

from __future__ import annotations

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options
from tenuto.errors import InvalidInput

_KINDS = ("threads", "runs", "checkpoints")


@click.command("archive")
@click.option("--older-than", help="Archive what has not changed for this long, for example 90d.")
@click.option("--to", envvar="TENUTO_ARCHIVE", help="A folder or s3://bucket/prefix; default: $TENUTO_ARCHIVE.")
@click.option("--only", type=click.Choice(_KINDS), multiple=True, help="Archive only this kind; may be repeated.")
@click.option("--list", "lists", is_flag=True, help="List what is archived, and archive nothing.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@store_options
@guarded
def command(  # noqa: PLR0913 - the options of an archive
    older_than: str | None,
    to: str | None,
    only: tuple[str, ...],
    url: str | None,
    tenant: str,
    *,
    lists: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move old threads, finished runs and checkpoints to a folder or an S3 bucket, encrypted if the store is.

    Reading one brings it back; listings and newest lines stay in the store. Each copy is read back and verified before anything
    is removed. An interrupted call is run again.
    """
    if not lists and older_than is None:
        raise InvalidInput("Say what is old, for example --older-than 90d. Nothing was archived.")
    with opened(url, tenant) as agent:
        if lists or older_than is None:
            parts = agent.store.archived()
            if as_json:
                show_json(parts)
                return
            for one in parts:
                click.echo(
                    f"{one.kind:<10} {one.name}  {one.first} to {one.last}  {one.state}  {one.bytes:,} bytes  {one.place}"
                )
            return
        with Progress("archiving"):
            done = agent.store.archive(older_than, to, kinds=only or _KINDS, dry_run=dry_run)
    if as_json:
        show_json(done)
        return
    click.echo("would archive:" if dry_run else f"archived to {done.place}:")
    for name in _KINDS:
        click.echo(f"  {name:<12} {getattr(done, name):,}")
    if not dry_run:
        click.echo(
            f"{done.objects:,} objects, {done.bytes:,} bytes; {done.removed:,} objects of deleted things removed"
        )
