"""`tenuto worker` and `tenuto runs recover`: going on with durable runs, whose code is the user's."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from typing import Any, NamedTuple

import click

from tenuto.aio import AsyncTenuto
from tenuto.cli.render import table
from tenuto.cli.shared import guarded, show_json
from tenuto.client import Tenuto


class Became(NamedTuple):
    """What --json says of a run that was gone on with."""

    id: str
    became: str


def _found(agent: str) -> Tenuto | AsyncTenuto:
    """Import the client that somebody's module has."""
    where, _, name = agent.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(where), name or "agent")
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"{agent} cannot be imported: {error}. Give it as MODULE:AGENT.") from error
    if not isinstance(found, Tenuto | AsyncTenuto):
        raise click.UsageError(f"{agent} is a {type(found).__name__}, not a Tenuto or AsyncTenuto.")
    return found


@click.command("worker")
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--concurrency", default=4, show_default=True, help="How many runs to go on with at once.")
@click.option("--poll", default=0.25, show_default=True, help="Seconds between two looks for runs.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for steps in flight to end when told to stop.")
@guarded
def command(agent: str, concurrency: int, poll: float, grace: float) -> None:
    """Go on with durable runs that are queued, interrupted or due, until SIGTERM or Ctrl-C.

    MODULE:AGENT is where your Tenuto or AsyncTenuto is, e.g. `app.main:agent`; importing the module registers its
    durable functions.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    found = _found(agent)
    options: Any = {"concurrency": concurrency, "poll": poll, "grace": grace, "on_signal": True}
    if isinstance(found, Tenuto):
        with found:
            found.runs.work(**options)
    else:
        asyncio.run(_work(found, options))


async def _work(agent: AsyncTenuto, options: dict[str, Any]) -> None:
    async with agent:
        await agent.runs.work(**options)


@click.command("recover")
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def recover(agent: str, *, as_json: bool) -> None:
    """Go on, now and here, with registered runs that were interrupted or are due; say what became of each."""
    found = _found(agent)
    if isinstance(found, Tenuto):
        with found:
            became = found.runs.recover()
    else:
        became = asyncio.run(_recover(found))
    rows = [Became(run, what) for run, what in sorted(became.items())]
    if as_json:
        show_json(rows)
    elif rows:
        click.echo("\n".join(table(rows, ("id", "became"))))
    else:
        click.echo("nothing was interrupted or due", err=True)


async def _recover(agent: AsyncTenuto) -> dict[str, str]:
    async with agent:
        return await agent.runs.recover()
