"""`tenuto import`: import data of other libraries. Existing data is never overwritten."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import click

from tenuto.cli.import_conversations import json_file, openai_sessions
from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, imported, opened, store_options
from tenuto.kernel.work import perform


class Imported(NamedTuple):
    """The --json output: one line per thread."""

    thread: str
    checkpoints: int
    writes: int
    new: int


@click.group("import")
def command() -> None:
    """Import data of other libraries."""


command.add_command(json_file)
command.add_command(openai_sessions)


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
