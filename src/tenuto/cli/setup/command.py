"""The command `tenuto setup`."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tenuto.cli.setup.files import BACKUP, Planned, Status, added, removed, write
from tenuto.cli.setup.hosts import HOSTS
from tenuto.cli.shared import guarded, show_json
from tenuto.servers.mcp.place import place_of, root_of

_WILL = {
    "created": "would create", "changed": "would change", "restored": "would restore", "removed": "would remove",
    "unchanged": "nothing to do:",
}  # fmt: skip
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Changed(NamedTuple):
    """A file in the --json output."""

    file: str
    status: Status
    backup: str | None
    """The copy of the earlier file."""
    diff: str


class SetUp(NamedTuple):
    """The --json output."""

    host: str
    files: list[Changed]
    dry_run: bool
    store: str
    """Where the server stores when it is started here."""


@click.command("setup")
@click.argument("host", type=click.Choice(list(HOSTS)))
@click.option(
    "--hooks",
    is_flag=True,
    help="Also add session hooks: the digest at the start, notes before compaction and at the end.",
)
@click.option(
    "--project", "scope", flag_value="project", help="Write the files of this project (default in a git repository)."
)
@click.option("--user", "scope", flag_value="user", help="Write the files of this user, for all projects.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--remove", is_flag=True, help="Take the server and the hooks out again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(
    host: str,
    scope: str | None,
    *,
    hooks: bool,
    dry_run: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Add the MCP server, and with --hooks session hooks, to a coding agent.

    HOST is claude, codex, cursor, vscode or gemini. Comments, order and other servers stay; each changed file is copied first, to
    the same name with .before-tenuto. Safe to repeat.
    """
    root = root_of(Path.cwd())
    project = None if scope == "user" or (scope is None and root is None) else root or Path.cwd()
    planned = removed(host, project) if remove else added(host, project, hooks=hooks)
    if not dry_run:
        write(planned)
    store = place_of().url
    files = [Changed(str(one.path), one.status, _backup(one), _diff(one)) for one in planned]
    if as_json:
        show_json(SetUp(host, files, dry_run, store))
        return
    _show(planned, dry_run=dry_run)
    if remove:
        return
    click.echo(f"It stores in {store}", err=True)
    if importlib.util.find_spec("mcp") is None:
        click.echo('The server needs the SDK, which is missing: pip install "tenuto[mcp]"', err=True)
    if dry_run:
        click.echo("Nothing was changed. Run it without --dry-run to write this.", err=True)
    elif any(one.status != "unchanged" for one in planned):
        click.echo(HOSTS[host].then, err=True)
        if not hooks:
            click.echo(
                f"Agents seldom call a tool unasked: tenuto setup {host} --hooks tells them at the start.", err=True
            )


def _backup(one: Planned) -> str | None:
    return str(one.path) + BACKUP if one.status == "changed" else None


def _diff(one: Planned) -> str:
    before, after = [(raw or b"").decode(errors="replace").splitlines() for raw in (one.before, one.after)]
    lines = difflib.unified_diff(before, after, lineterm="", n=2)
    return "\n".join(list(lines)[2:])


def _show(planned: Sequence[Planned], *, dry_run: bool) -> None:
    for one in planned:
        word = _WILL[one.status] if dry_run or one.status == "unchanged" else one.status
        note = f"  (earlier file: {one.path.name}{BACKUP})" if one.status == "changed" and not dry_run else ""
        click.echo(click.style(f"{word} {_short(one.path)}", bold=True) + note)
        if dry_run:
            for line in _diff(one).splitlines():
                click.echo("  " + click.style(line, fg=_COLOURS.get(line[:1])))


def _short(path: Path) -> str:
    for base, shown in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return shown + str(path.relative_to(base))
    return str(path)
