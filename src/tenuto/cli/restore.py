"""`tenuto restore`: restore a backup into a new store."""

from __future__ import annotations

from pathlib import Path

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, show_json
from tenuto.client import Tenuto


@click.command("restore")
@click.argument("backup", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("target")
@click.option("--tenant", default="default", show_default=True, help="Tenant that is compared and, row by row, copied.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(backup: Path, target: str, tenant: str, *, as_json: bool) -> None:
    """Restore BACKUP, which `tenuto backup` or `tenuto export` made, into the new store TARGET, and verify both.

    Nothing that exists is overwritten. An interrupted call is run again.
    """
    with Progress(f"restoring to {target}"):
        made = Tenuto.restore(backup, target, tenant=tenant)
    if as_json:
        show_json(made)
    else:
        click.echo(f"{made.records:,} records and {made.entries:,} entries, equal to the backup; digest {made.digest}")
