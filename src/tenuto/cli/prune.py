"""`tenuto prune`: remove what is old."""

from __future__ import annotations

import click

from tenuto.capabilities.checkpoints import Retention
from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options
from tenuto.errors import InvalidInput


@click.command("prune")
@click.option("--keep", help="How long everything stays, for example 30d.")
@click.option("--journals", help="How long the history of state stays.")
@click.option("--runs", help="How long finished runs stay.")
@click.option("--tasks", help="How long ended tasks stay.")
@click.option("--checkpoints", help="How long checkpoints stay; the newest always stays.")
@click.option("--threads", help="How long the contents of expired and deleted threads stay.")
@click.option("--scope", help="Only the journal of this scope.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@store_options
@guarded
def command(  # noqa: PLR0913 - one option for each kind
    keep: str | None,
    journals: str | None,
    runs: str | None,
    tasks: str | None,
    checkpoints: str | None,
    threads: str | None,
    scope: str | None,
    url: str | None,
    tenant: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove what is older than --keep, or than the option of its kind. What stays verifies; values of state always stay.

    Removed are journal entries, finished runs, ended tasks, checkpoints, and contents of expired threads, in small commits
    concurrent with other work. An interrupted call is run again.
    """
    older = checkpoints or keep
    rule = Retention(
        keep_last=1 if older else None,
        older_than=older,
        journals=journals or keep,
        runs=runs or keep,
        tasks=tasks or keep,
        threads=threads or keep,
    )
    if rule == Retention():
        raise InvalidInput("Say what to keep, for example --keep 30d. Nothing was removed.")
    with opened(url, tenant) as agent, Progress("pruning"):
        done = agent.store.prune(retention=rule, scope=scope, dry_run=dry_run)
    if as_json:
        show_json(done)
        return
    click.echo("would remove:" if dry_run else "removed:")
    for name, count in done._asdict().items():
        click.echo(f"  {name:<12} {count:,}{' entries' if name == 'journals' else ''}")
