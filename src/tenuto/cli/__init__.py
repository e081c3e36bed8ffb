"""The `tenuto` command. So far it tells its version, prepares a Postgres store, and is a worker."""

from __future__ import annotations

import sys
from typing import Any

import click

from tenuto import __version__
from tenuto.errors import TenutoError


@click.group()
@click.version_option(__version__, prog_name="tenuto")
def main() -> None:
    """Durable state for AI agents."""


@main.command()
@click.option("--url", envvar="TENUTO_URL", required=True, help="The Postgres store; $TENUTO_URL if not given.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL for somebody who may run it, and change nothing.")
@click.option("--role", help="With --sql: also grant this role what a client needs.")
@click.option("--check", is_flag=True, help="Tell what is missing, exit 1 if anything is, and change nothing.")
def migrate(url: str, as_sql: bool, role: str | None, check: bool) -> None:  # noqa: FBT001 - click's way
    """Create or upgrade the schema of a Postgres store. Other stores do it when they are opened."""
    from tenuto.backends import connect  # noqa: PLC0415 - `tenuto --version` needs none of it

    try:
        backend = connect(url)
        if not hasattr(backend, "migrate_check"):
            raise click.UsageError("Only a Postgres store is migrated by a command; others when they are opened.")
        from tenuto.backends._postgres_schema import migration_sql  # noqa: PLC0415

        if as_sql:
            click.echo(migration_sql(backend.schema, role=role), nl=False)  # type: ignore[attr-defined]
        elif check:
            missing = backend.migrate_check()
            click.echo("\n".join(missing) or "nothing is missing")
            sys.exit(bool(missing))
        else:
            backend.migrate()  # type: ignore[attr-defined]
    except TenutoError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--concurrency", default=4, show_default=True, help="How many runs to go on with at once.")
@click.option("--poll", default=0.25, show_default=True, help="Seconds between two looks for runs.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for steps in flight to end when told to stop.")
def worker(agent: str, concurrency: int, poll: float, grace: float) -> None:
    """Go on with durable runs that are queued, interrupted or due, until SIGTERM or Ctrl-C.

    MODULE:AGENT is where your Tenuto or AsyncTenuto is, e.g. `app.main:agent`; importing the module registers its
    durable functions.
    """
    import asyncio  # noqa: PLC0415 - `tenuto --version` needs none of it
    import importlib  # noqa: PLC0415
    import logging  # noqa: PLC0415

    from tenuto.aio import AsyncTenuto  # noqa: PLC0415
    from tenuto.client import Tenuto  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    where, _, name = agent.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(where), name or "agent")
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"{agent} cannot be imported: {error}. Give it as MODULE:AGENT.") from error
    if not isinstance(found, Tenuto | AsyncTenuto):
        raise click.UsageError(f"{agent} is a {type(found).__name__}, not a Tenuto or AsyncTenuto.")
    try:
        if isinstance(found, Tenuto):
            with found:
                found.runs.work(concurrency=concurrency, poll=poll, grace=grace, on_signal=True)
        else:
            asyncio.run(_work(found, concurrency, poll, grace))
    except TenutoError as error:
        raise click.ClickException(str(error)) from error


async def _work(agent: Any, concurrency: int, poll: float, grace: float) -> None:
    async with agent:
        await agent.runs.work(concurrency=concurrency, poll=poll, grace=grace, on_signal=True)
