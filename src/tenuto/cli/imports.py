"""`tenuto import`: what people have stored elsewhere, brought into a store. What is there already is left as it is."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import click

from tenuto.errors import MissingDriver, NotFound, TenutoError


@click.group("import")
def import_() -> None:
    """Bring in what other libraries have stored."""


@import_.command()
@click.argument("source")
@click.option("--url", envvar="TENUTO_URL", help="The store to bring it into; $TENUTO_URL, or .tenuto/tenuto.db here.")
@click.option("--thread", "threads", multiple=True, help="Only this thread; may be given several times.")
@click.option("--allow", "allowed", multiple=True, metavar="MODULE:CLASS", help="A type of your own that states hold.")
@click.option("--tenant", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON, a line for each thread.")
def langgraph(
    source: str,
    url: str | None,
    threads: tuple[str, ...],
    allowed: tuple[str, ...],
    tenant: str,
    as_json: bool,  # noqa: FBT001 - click's way
) -> None:
    """Bring in the threads of SOURCE: the file of a SqliteSaver, or the URL of a PostgresSaver's database.

    Every checkpoint is compared with the source at the end. An import that was cut off is done again and goes on.
    The source is only read.
    """
    try:
        from tenuto.adapters import _langgraph_import as importing  # noqa: PLC0415 - LangGraph takes a second
        from tenuto.adapters import langgraph as adapter  # noqa: PLC0415
    except MissingDriver as error:
        raise click.ClickException(str(error)) from error
    from tenuto.client import Tenuto  # noqa: PLC0415
    from tenuto.kernel.transact import drive  # noqa: PLC0415

    try:
        with Tenuto("import", url, tenant=tenant) as agent, importing.opened(source) as found:
            saver = adapter.TenutoSaver(agent, allow=[_class(name) for name in allowed])
            for thread in threads or found.threads():
                done = drive(importing.bring(saver._graphs, found, thread), agent.clock)
                click.echo(json.dumps(done._asdict()) if as_json else _told(done))
    except NotFound as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(3)
    except TenutoError as error:
        raise click.ClickException(str(error)) from error


def _told(done: Any) -> str:
    return f"{done.thread}: {done.checkpoints} checkpoints ({done.new} new) and {done.writes} writes, as in the source"


def _class(name: str) -> type[Any]:
    where, _, cls = name.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(where), cls)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"{name} cannot be imported: {error}. Give it as MODULE:CLASS.") from error
    return found  # type: ignore[no-any-return]
