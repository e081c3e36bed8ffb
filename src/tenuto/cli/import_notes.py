"""`tenuto import mcp-memory`, `claude-progress` and `notes`: import what agents noted elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

import click

from tenuto.capabilities.memory import Kind
from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options

_USER = click.option("--user", help="Whose memories; without it, those of the whole tenant.")


class Document(NamedTuple):
    """The --json output of claude-progress."""

    name: str
    items: int
    done: int
    next_action: str | None


@click.command("mcp-memory")
@click.argument("source", type=click.Path(path_type=Path))
@_USER
@store_options
@guarded
def mcp_memory(source: Path, user: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Import SOURCE, the JSONL graph of the reference MCP memory server: each observation and relation becomes a memory.

    A line that cannot be read is skipped and reported. Statements that are known already are not stored twice.
    """
    from tenuto.adapters._notes import memory_graph  # noqa: PLC0415 - only when it is called

    with opened(url, tenant, create=True) as agent, Progress(f"importing {source.name}"):
        done = memory_graph(agent, source, user=user)
    if as_json:
        show_json(done)
        return
    click.echo(f"{source}: {done.memories} memories ({done.new} new)")
    for one in done.skipped:
        click.echo(f"skipped line {one.line}: {one.why}", err=True)


@click.command("claude-progress")
@click.argument("place", default=".", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the progress document; default: that of the folder.")
@store_options
@guarded
def claude_progress(place: Path, name: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Import claude-progress.txt and feature_list.json of the folder PLACE, or one file, as a progress document.

    The text stays whole, features become items, and what the notes name as next becomes the next action.
    """
    from tenuto.adapters import _notes  # noqa: PLC0415 - only when it is called

    with opened(url, tenant, create=True) as agent:
        found = _notes.claude_progress(agent, place, name)
    done = len(found.items) - len(found.open)
    if as_json:
        show_json(Document(found.name, len(found.items), done, found.next_action))
    else:
        then = f"; next: {found.next_action}" if found.next_action else ""
        click.echo(f"{found.name}: {done} of {len(found.items)} items done{then}")


@click.command("notes")
@click.argument("files", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(get_args(Kind)), default="fact", show_default=True, help="Kind of memories.")
@_USER
@store_options
@guarded
def notes(files: tuple[str, ...], kind: Kind, user: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Import FILES of notes such as CLAUDE.md or AGENTS.md as memories, one for each heading.

    Import them again after editing: it replaces what changed.
    """
    with opened(url, tenant, create=True) as agent:
        done = agent.memory.load(list(files), kind=kind, user=user)
    if as_json:
        show_json(done)
    else:
        click.echo(f"{done.added} memories added, {done.unchanged} unchanged, {done.removed} removed")
