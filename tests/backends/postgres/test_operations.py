"""Roles, migrations, two versions on one database, damage, and PgBouncer in between."""

import threading
from typing import Any

import psycopg
import pytest
from support import pg_server

from tenuto.backends.postgres import PostgresBackend, migration_sql
from tenuto.backends.postgres import schema as schema_of
from tenuto.errors import Damaged, InvalidInput, NewerFormat, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Put
from tenuto.testing import HeldClock

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))


@pytest.fixture
def plain_role(server: Any, schema: str) -> Any:
    role = "plain_" + schema
    server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    yield role
    server.execute(f"DROP OWNED BY {role}")
    server.execute(f"DROP ROLE {role}")


def test_a_role_without_the_right_is_told_what_to_have_run_and_then_works(
    server: Any, schema: str, plain_role: str
) -> None:
    server.execute("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
    url = pg_server.with_options(server.url, user=plain_role, password="plain", schema=schema)
    store = PostgresBackend(url)
    assert store.migrate_check()
    with pytest.raises(StorageUnavailable, match="migrate --sql"):
        store.open()
    server.execute(migration_sql(schema, role=plain_role))
    assert store.migrate_check() == []
    assert store.commit([Check(A, 0)], [Put(A, b"v", 5.0), Append(LOG, b"e")]).versions == (1, 1)
    store.commit([], [Delete(A)])
    store.sweep()
    assert store.check() == []
    assert store.stats()["records"] == 0
    store.close()


def test_printed_sql_and_migrating_make_the_same(server: Any, schema: str) -> None:
    def described(name: str) -> list[Any]:
        columns = server.execute(
            "SELECT table_name, column_name, data_type, is_nullable, collation_name, column_default "
            f"FROM information_schema.columns WHERE table_schema = '{name}' ORDER BY 1, ordinal_position"
        )
        indexes = server.execute(f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{name}' ORDER BY 1")
        functions = server.execute(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace "
            f"WHERE nspname = '{name}' ORDER BY 1"
        )
        return [[str(row).replace(name, "S") for row in rows] for rows in (columns, indexes, functions)]

    other = pg_server.new_schema()
    store = pg_server.backend(server, schema)
    store.open()
    store.migrate()
    server.execute(migration_sql(other))
    try:
        assert described(schema) == described(other)
    finally:
        server.execute(f'DROP SCHEMA "{other}" CASCADE')
        store.close()


def test_many_who_open_a_new_store_at_once_migrate_it_once(server: Any, schema: str) -> None:
    stores = [pg_server.backend(server, schema) for _ in range(6)]
    threads = [threading.Thread(target=store.open) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.read([A]) for store in stores] == [[None]] * 6
    assert server.execute(f'SELECT number FROM "{schema}".migrations') == [(n + 1,) for n in range(schema_of.known())]
    for store in stores:
        store.close()


def test_two_versions_of_the_library_share_a_database_until_the_newer_forbids_it(
    server: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pg_server.backend(server, schema)
    old.commit([], [Put(A, b"old")])
    number = schema_of.known() + 1
    expand = schema_of.Migration(number, "expand", "ALTER TABLE {schema}.records ADD COLUMN extra text;\n", 1, 1)
    contract = schema_of.Migration(
        number + 1,
        "contract",
        "CREATE TABLE {schema}.more (a int);\nDROP FUNCTION {schema}.sweep_v1;\n"
        "ALTER FUNCTION {schema}.commit_v1 RENAME TO commit_v2;\n"
        "ALTER FUNCTION {schema}.commit_one_v1 RENAME TO commit_one_v2;\n",
        number + 1,
        number + 1,
    )
    migrations = list(schema_of.MIGRATIONS)

    # given a newer version that has added something
    monkeypatch.setattr(schema_of, "MIGRATIONS", [*migrations, expand])
    new = pg_server.backend(server, schema)
    new.commit([], [Put(B, b"new")])
    # then the older one goes on, opened before or after
    monkeypatch.setattr(schema_of, "MIGRATIONS", migrations)
    old.commit([], [Put(A, b"still")])
    again = pg_server.backend(server, schema)
    assert [record.value for record in again.read([A, B])] == [b"still", b"new"]
    # when the newer one has taken away what the older needs
    monkeypatch.setattr(schema_of, "MIGRATIONS", [*migrations, expand, contract])
    pg_server.backend(server, schema).open()
    monkeypatch.setattr(schema_of, "MIGRATIONS", migrations)
    # then the older one is refused, and nothing is touched
    with pytest.raises(NewerFormat, match="upgrade tenuto"):
        pg_server.backend(server, schema).open()
    with pytest.raises(NewerFormat):
        old.commit([], [Put(A, b"no")])
    for store in (old, new, again):
        store.close()


def test_damaged_rows_are_found_and_never_returned(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema)
    store.commit([], [Put(A, b"value"), Put(B, b"fine"), *(Append(LOG, b"%d" % n) for n in range(4))])
    server.execute(f"UPDATE \"{schema}\".records SET value = 'other' WHERE value = 'value'")
    with pytest.raises(Damaged):
        store.read([A])
    with pytest.raises(Damaged):
        store.scan(keys.pack("t", "s"))
    assert store.read([B])[0].value == b"fine"
    assert [finding.kind for finding in store.check()] == ["damage"]
    server.execute(f"UPDATE \"{schema}\".records SET value = 'value' WHERE value = 'other'")
    assert store.check() == []
    server.execute(f'UPDATE "{schema}".entries SET written = written + 1 WHERE number = 2')
    with pytest.raises(Damaged):
        store.entries(LOG)
    server.execute(f'UPDATE "{schema}".entries SET written = written - 1 WHERE number = 2')
    server.execute(f'DELETE FROM "{schema}".entries WHERE number = 3')
    with pytest.raises(Damaged):
        store.entries(LOG)
    assert "chain" in [finding.kind for finding in store.check()]
    server.execute(f'DELETE FROM "{schema}".entries WHERE number = 4')
    assert "chain" in [finding.kind for finding in store.check()]
    store.close()


def test_what_has_expired_is_swept_a_few_at_a_time(server: Any, schema: str) -> None:
    clock = HeldClock()
    store = pg_server.backend(server, schema, clock=clock)
    store._sweep_due = float("inf")  # nobody sweeps but the test
    names = [keys.pack("t", "s", n) for n in range(700)]
    store.commit([], [Put(name, b"v", 5.0) for name in names])
    clock.advance(6)
    store.sweep()
    assert server.execute(f'SELECT count(*) FROM "{schema}".records WHERE dead') == [(700,)]
    clock.advance(3601)
    store.sweep()
    assert server.execute(f'SELECT count(*) FROM "{schema}".records') == [(0,)]
    assert store.commit([Check(names[0], 0)], [Put(names[0], b"w")]).versions == (2,)
    store.close()


def test_tenants_whose_names_are_no_text_have_a_place_too(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema)
    odd = [keys.pack(name, "s", "k") for name in ("a\x00b", "\x01", "", "é", "\x01" + "00")]
    odd.append(b"\x02\xff\xfe\x00" + keys.pack("s", "k"))
    for name in odd:
        assert store.commit([Check(name, 0)], [Put(name, name), Append(name + b"\x15\x01", name)]).versions == (1, 1)
    for name in odd:
        assert store.read([name])[0].value == name
        assert [r.key for r in store.scan(keys.tenant_of(name))] == [name]
    assert store.check() == []
    store.close()


def test_the_time_is_the_servers_and_needs_no_second_call(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema)
    moments = [store.now() for _ in range(100)]
    assert moments == sorted(moments)
    theirs = float(server.execute("SELECT extract(epoch FROM clock_timestamp())")[0][0])
    assert abs(store.now() - theirs) < 1
    assert store.commit([], [Put(A, b"v")]).at <= store.now() + 0.001
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:geheim@h/db?schema=Bad-Name",
        "postgresql://u:geheim@h/db?schema=pg_catalog",
        "postgresql://u:geheim@h/db?pool=0",
        "postgresql://u:geheim@h/db?timeout=soon",
        "postgresql://u:geheim@h/db?durability=maybe",
        "postgresql://u:geheim@h/db?no_such_option=1",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as error:
        PostgresBackend(url)
    assert "geheim" not in str(error.value)


def test_of_several_hosts_the_one_that_takes_writes_is_used(server: Any, schema: str) -> None:
    given = psycopg.conninfo.conninfo_to_dict(server.url)
    hosts = {"host": f"/nonexistent,{given['host']}", "port": f"5432,{given.get('port') or 5432}"}
    url = psycopg.conninfo.make_conninfo("", **{**given, **hosts}, target_session_attrs="read-write")
    store = PostgresBackend(url, schema=schema)
    store.commit([], [Put(A, b"v")])
    assert store.read([A])[0].value == b"v"
    store.close()


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed at once", "by the errors it causes"])
def test_it_works_through_pgbouncer_in_transaction_mode(
    bouncer: str, schema: str, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [PostgresBackend(bouncer, schema=schema, pool=4) for _ in range(3)]
    for store in stores:
        store.open()
        assert not store._pool.prepare
        if not noticed:  # as behind a pooler that hides itself: connections begin with prepared statements
            store._pool.prepare = True
            store._pool.drop_idle()

    errors: list[BaseException] = []

    def work(store: PostgresBackend, name: int) -> None:
        try:
            for n in range(40):
                own = keys.pack("t", "s", name, n)
                store.commit([Check(own, 0)], [Put(own, b"v"), Append(LOG, b"e")])
                assert store.read([own])[0].value == b"v"
                assert store.entries(LOG, limit=1)[0].number == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stores[n % 3], n)) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(stores[0].entries(LOG, limit=1000)) == 360
    assert stores[0].check() == []
    for store in stores:
        store.close()
