"""`tenuto worker` and `tenuto runs recover`: import the user's module, execute its durable runs and its tasks."""

from __future__ import annotations

import asyncio
import logging
import signal as signals
import sys
import threading
from typing import Any, NamedTuple

import click

from tenuto.aio import AsyncTenuto
from tenuto.cli.render import table
from tenuto.cli.shared import guarded, imported, show_json
from tenuto.client import Tenuto


class Became(NamedTuple):
    """The --json output: a run and its new status."""

    id: str
    became: str


def _found(agent: str) -> Tenuto | AsyncTenuto:
    """Import the client from the user's module."""
    where, _, name = agent.partition(":")
    try:
        found = getattr(imported(where), name or "agent")
    except AttributeError as error:
        raise click.UsageError(f"{agent} cannot be imported: {error}. Give it as MODULE:AGENT.") from error
    if not isinstance(found, Tenuto | AsyncTenuto):
        raise click.UsageError(f"{agent} is a {type(found).__name__}, not a Tenuto or AsyncTenuto.")
    return found


@click.command("worker")
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--concurrency", default=4, show_default=True, help="Maximum number of concurrent runs.")
@click.option("--poll", default=0.25, show_default=True, help="Seconds between polls for runs.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds that running steps get to finish after a stop.")
@click.option("--queue", "queues", multiple=True, metavar="NAME=HANDLER", help="Also execute the tasks of this queue.")
@guarded
def command(agent: str, concurrency: int, poll: float, grace: float, queues: tuple[str, ...]) -> None:
    """Resume durable runs that are queued, interrupted or due, until SIGTERM or Ctrl-C; escalate and notify too.

    MODULE:AGENT names your Tenuto or AsyncTenuto, e.g. `app.main:agent`; importing the module registers its
    durable functions. HANDLER is a function of the same module, called with each task of the queue NAME.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    found = _found(agent)
    handlers = [_handler(agent, one) for one in queues]
    stop = threading.Event()  # one for all workers: a signal stops them together
    options: Any = {"concurrency": concurrency, "poll": poll, "grace": grace, "stop": stop}
    for number in (signals.SIGTERM, signals.SIGINT):
        signals.signal(number, lambda *_: stop.set())
    if isinstance(found, Tenuto):
        with found:
            _work(found, handlers, options)
    else:
        asyncio.run(_work_async(found, handlers, options))


def _handler(agent: str, given: str) -> tuple[str, Any]:
    """Return a queue's name and its handler, from NAME=HANDLER."""
    queue, _, name = given.partition("=")
    handler = getattr(sys.modules[agent.partition(":")[0]], name, None)
    if not queue or not callable(handler):
        raise click.UsageError(f"--queue {given} names no function of the module. Give it as NAME=HANDLER.")
    return queue, handler


def _work(agent: Tenuto, handlers: list[tuple[str, Any]], options: dict[str, Any]) -> None:
    others = [threading.Thread(target=agent.tasks.work, args=one, kwargs=options) for one in handlers]
    for thread in others:
        thread.start()
    try:
        agent.runs.work(**options)
    finally:
        options["stop"].set()
        for thread in others:
            thread.join()


async def _work_async(agent: AsyncTenuto, handlers: list[tuple[str, Any]], options: dict[str, Any]) -> None:
    async with agent:
        await asyncio.gather(agent.runs.work(**options), *(agent.tasks.work(*one, **options) for one in handlers))


@click.command("recover")
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def recover(agent: str, *, as_json: bool) -> None:
    """Resume the registered runs that are interrupted or due, in this process; print the new status of each."""
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
        click.echo("no run was interrupted or due", err=True)


async def _recover(agent: AsyncTenuto) -> dict[str, str]:
    async with agent:
        return await agent.runs.recover()
