"""One schema of a Postgres database: `PostgresBackend`, and `migration_sql` to run DDL by hand."""

from tenuto.errors import MissingDriver

try:
    from tenuto.backends.postgres.backend import PostgresBackend
    from tenuto.backends.postgres.schema import migration_sql
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("psycopg", "psycopg_binary"):
        raise
    raise MissingDriver("The Postgres driver is not installed. Run: pip install tenuto[postgres]") from error

__all__ = ["PostgresBackend", "migration_sql"]
