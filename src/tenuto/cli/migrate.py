"""`tenuto migrate`: create or upgrade the schema of a Postgres store."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from tenuto.backends import connect
from tenuto.cli.shared import FAILURE, guarded, show_json


class Lacking(NamedTuple):
    """The --json output: the migrations that are not applied."""

    missing: list[str]


class Statements(NamedTuple):
    """The --json output with --sql."""

    sql: str


@click.command("migrate")
@click.option("--url", envvar="TENUTO_URL", required=True, help="URL of the Postgres store; default: $TENUTO_URL.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL for a role that may run DDL, and change nothing.")
@click.option("--role", help="With --sql: also grant this role the rights of a client.")
@click.option("--check", is_flag=True, help="List missing migrations, exit 1 if there are any, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(url: str, as_sql: bool, role: str | None, check: bool, as_json: bool) -> None:  # noqa: FBT001 - click's way
    """Create or upgrade the schema of a Postgres store. Other stores migrate when they are opened."""
    backend = connect(url)
    if not hasattr(backend, "migrate_check"):
        raise click.UsageError("This is not a Postgres store. Other stores migrate when they are opened.")
    from tenuto.backends.postgres.schema import migration_sql  # noqa: PLC0415 - imports the driver

    if as_sql:
        sql = migration_sql(backend.schema, role=role)  # type: ignore[attr-defined]
        show_json(Statements(sql)) if as_json else click.echo(sql, nl=False)
    elif check:
        missing = backend.migrate_check()
        show_json(Lacking(missing)) if as_json else click.echo("\n".join(missing) or "nothing is missing")
        sys.exit(FAILURE if missing else 0)
    else:
        backend.migrate()  # type: ignore[attr-defined]
        if as_json:
            show_json(Lacking([]))
