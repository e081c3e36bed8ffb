"""`tenuto import`: import an export of tenuto, or data of other libraries. Existing data is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click

from tenuto.cli.import_conversations import json_file, openai_sessions
from tenuto.cli.import_notes import claude_progress, mcp_memory, notes
from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, imported, opened, show_json, store_options
from tenuto.kernel.work import perform


class Imported(NamedTuple):
    """The --json output: one line per thread."""

    thread: str
    checkpoints: int
    writes: int
    new: int


class _Sources(click.Group):
    """The sources; a file in place of one is an export of tenuto."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and Path(args[0]).is_file():
            args = ["export", *args]
        return super().resolve_command(ctx, args)


@click.group("import", cls=_Sources)
def command() -> None:
    """Import an export (`tenuto import FILE`), or data of other libraries."""


@command.command("export")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only verify the file.")
@store_options
@guarded
def exported(path: Path, url: str | None, tenant: str, *, dry_run: bool, as_json: bool) -> None:
    """Import PATH, which `tenuto export` wrote, into the tenant, whatever tenant and store it came from.

    The file is verified first. What is there already is skipped, so an interrupted import is run again.
    """
    with opened(url, tenant, create=True) as agent, Progress(f"importing {path.name}") as progress:
        done = agent.store.import_(path, dry_run=dry_run, progress=progress.at)
    if as_json:
        show_json(done)
    else:
        counts = f"{done.records:,} records and {done.entries:,} entries of {done.streams:,} streams"
        click.echo(f"{counts}{', verified' if dry_run else f', {done.new:,} rows new'}; digest {done.digest}")


for _one in (claude_progress, json_file, mcp_memory, notes, openai_sessions):
    command.add_command(_one)


@command.command()
@click.argument("source")
@click.option("--thread", "threads", multiple=True, help="Only this thread; may be repeated.")
@click.option("--allow", "allowed", multiple=True, metavar="MODULE:CLASS", help="Allow a type; may be repeated.")
@store_options
@guarded
def langgraph(
    source: str,
    threads: tuple[str, ...],
    allowed: tuple[str, ...],
    url: str | None,
    tenant: str,
    as_json: bool,  # noqa: FBT001 - click's way
) -> None:
    """Import the threads of SOURCE: the file of a SqliteSaver, or the URL of a PostgresSaver's database.

    At the end every checkpoint is compared with the source. An interrupted import resumes when it is run again.
    The source is only read.
    """
    from tenuto.adapters.langgraph import TenutoSaver, importer  # noqa: PLC0415 - slow import

    with importer.opened(source) as found, opened(url, tenant, create=True) as agent:
        saver = TenutoSaver(agent, allow=[_class(name) for name in allowed])
        for thread in threads or found.threads():
            with Progress(f"importing {thread}"):
                done = perform(saver._bringing(found, thread), agent.clock)
            if as_json:
                click.echo(json.dumps(Imported(**done._asdict())._asdict(), ensure_ascii=False))
            else:
                counts = f"{done.checkpoints} checkpoints ({done.new} new) and {done.writes} writes"
                click.echo(f"{done.thread}: {counts}, equal to the source")


def _class(name: str) -> type[Any]:
    where, _, cls = name.partition(":")
    try:
        found = getattr(imported(where), cls)
    except AttributeError as error:
        raise click.UsageError(f"{name} cannot be imported: {error}. Give it as MODULE:CLASS.") from error
    return found  # type: ignore[no-any-return]
