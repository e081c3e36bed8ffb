"""The `tenuto` command. So far it tells its version and prepares a Postgres store."""

from __future__ import annotations

import sys

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
