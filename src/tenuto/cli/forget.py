"""`tenuto forget`: remove everything of a user."""

from __future__ import annotations

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import confirm, guarded, opened, show_json, store_options


@click.command("forget")
@click.option("--user", required=True, help="The user whose data is removed.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_options
@guarded
def command(user: str, url: str | None, tenant: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove everything of a user from every capability, and print a signed receipt.

    Rows of others that contain the user's id are listed and not changed. An interrupted call is run again.
    """
    with opened(url, tenant) as agent:
        if not dry_run:
            confirm(f"Forget everything of the user {user!r}? This cannot be undone.", yes=yes)
        with Progress(f"forgetting {user}"):
            done = agent.forget_user(user, dry_run=dry_run)
    if as_json:
        show_json(done)
        return
    click.echo("would remove:" if dry_run else "removed:")
    for name in ("memories", "runs", "threads", "workflows", "tasks", "questions", "checkpoints", "records", "entries"):
        click.echo(f"  {name:<12} {getattr(done, name):,}")
    click.echo(f"  {'archived':<12} {done.archived:,} objects")
    for place in done.left_in_archive:
        click.echo(f"  not removed from the archive: {place}", err=True)
    for place in done.mentions:
        click.echo(f"  contains the id, not changed: {place}", err=True)
    if not dry_run:
        if done.key_destroyed:
            click.echo("the user's encryption key is destroyed")
        click.echo(f"signature {done.signature}")
