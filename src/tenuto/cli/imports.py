"""`tenuto import`: what people have stored elsewhere, brought into a store. What is there already is left as it is."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, NamedTuple

import click

from tenuto.cli.import_conversations import json_file, openai_sessions
from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, store_options
from tenuto.kernel.transact import drive


class Imported(NamedTuple):
    """What --json says of a thread, in a line."""

    thread: str
    checkpoints: int
    writes: int
    new: int


@click.group("import")
def command() -> None:
    """Bring in what other libraries have stored."""


command.add_command(json_file)
command.add_command(openai_sessions)


@command.command()
@click.argument("source")
@click.option("--thread", "threads", multiple=True, help="Only this thread; may be given several times.")
@click.option("--allow", "allowed", multiple=True, metavar="MODULE:CLASS", help="A type of your own that states hold.")
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
    """Bring in the threads of SOURCE: the file of a SqliteSaver, or the URL of a PostgresSaver's database.

    Every checkpoint is compared with the source at the end. An import that was cut off is done again and goes on.
    The source is only read.
    """
    from tenuto.adapters import langgraph as adapter  # noqa: PLC0415 - it takes a second

    with adapter.reading(source) as found, opened(url, tenant, create=True) as agent:
        saver = adapter.TenutoSaver(agent, allow=[_class(name) for name in allowed])
        for thread in threads or found.threads():
            with Progress(f"bringing in {thread}"):
                done = drive(saver.bringing(found, thread), agent.clock)
            if as_json:
                click.echo(json.dumps(Imported(**done._asdict())._asdict(), ensure_ascii=False))
            else:
                told = f"{done.checkpoints} checkpoints ({done.new} new) and {done.writes} writes, as in the source"
                click.echo(f"{done.thread}: {told}")


def _class(name: str) -> type[Any]:
    where, _, cls = name.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(where), cls)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"{name} cannot be imported: {error}. Give it as MODULE:CLASS.") from error
    return found  # type: ignore[no-any-return]
