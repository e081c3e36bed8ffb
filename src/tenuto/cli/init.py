"""`tenuto init`: a store in this folder, and git told to leave it out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from tenuto.backends import DEFAULT
from tenuto.cli.shared import guarded, opened, show_json, store_options


class Prepared(NamedTuple):
    """What --json says of it."""

    done: list[str]
    """What was made, or would be."""
    dry_run: bool


@click.command("init")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@store_options
@guarded
def command(url: str | None, tenant: str, *, as_json: bool, dry_run: bool) -> None:
    """Create the store, or leave the one that is there as it is; add .tenuto/ to .gitignore. Safe to do again."""
    path = Path(DEFAULT)
    done: list[str] = []
    fresh = url is None and not path.exists()
    if fresh or url is not None:
        done.append(f"store {url or path}")
    ignore = Path(".gitignore")
    lines = ignore.read_text().splitlines() if ignore.exists() else []
    ignored = any(line.strip().rstrip("/") == ".tenuto" for line in lines)
    if url is None and not ignored and (Path(".git").exists() or ignore.exists()):
        done.append(".tenuto/ in .gitignore")
        if not dry_run:
            ignore.write_text("\n".join([*lines, ".tenuto/"]) + "\n")
    if not dry_run:
        with opened(url, tenant, create=True):
            pass
    if as_json:
        show_json(Prepared(done, dry_run))
    else:
        click.echo("\n".join(done) if done else "everything is there already", err=True)
