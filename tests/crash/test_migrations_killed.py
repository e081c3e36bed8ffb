"""A process dies at any write or sync while it upgrades a store: the format is the old one or the new one, never between."""

import json

import apsw
import pytest
from crash_harness import Child, beside, copy_store
from support.long import size
from worker_migration import NEXT

from tenuto import NewerFormat, Tenuto
from tenuto.backends.sqlite import schema

VALUES = {f"k{number}": "x" * 100 * number for number in range(20)}


@pytest.fixture
def older(path):
    with Tenuto("older", path) as agent:
        for key, value in VALUES.items():
            agent.state.set("s", key, value)
    return path


def killed_upgrades(older, point, planted=""):
    """Yield a store after each death: at the first, second, … write or sync of an upgrade."""
    with Child("worker_migration.py") as nursery:
        at, ended = 1, 42
        while ended == 42:
            store = older.with_name(f"{at}.db")
            copy_store(older, store)
            nursery.tell(json.dumps({"store": str(store), "at": at, "point": point, "planted": planted}))
            ended = int(nursery.says())
            assert ended in (0, 42)
            if ended == 42:
                yield store
            at += 1 if at < size(12, 10**6) else 3
        assert nursery.ends()[1] == ""


def between(store):
    """Return what is neither the old format nor the new one."""
    connection = apsw.Connection(str(store))
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    recorded = connection.execute("SELECT count(*) FROM migrations WHERE number = ?", (NEXT.number,)).fetchall()
    rows = connection.execute("SELECT x FROM extra").fetchall() if "extra" in tables else None
    connection.close()
    state = ("extra" in tables, "extra_by_x" in tables, rows, recorded)
    return [] if state in ((False, False, None, [(0,)]), (True, True, [(1,)], [(1,)])) else [state]


def values_of(store):
    with Tenuto("reader", store) as agent:
        assert agent.store.check().ok
        return agent.state.items("s")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["write", "sync"])
@pytest.mark.scorecard(17)
def test_an_upgrade_that_dies_anywhere_leaves_the_old_format_or_the_new(older, point, monkeypatch, figures):
    # given an older store, when the process that upgrades it dies at any write or sync
    deaths, wrong, upgraded, backups = 0, [], 0, 0
    for store in killed_upgrades(older, point):
        deaths += 1
        wrong += between(store)
        # then its backup, if it is there, is a whole store of the old format
        saved = beside(store, f".format{NEXT.number - 1}.backup")
        if saved.exists():
            backups += 1
            wrong += [] if values_of(saved) == VALUES else [f"the backup {saved.name}"]
        # and the older version reads all of it, or says that it is newer
        try:
            wrong += [] if values_of(store) == VALUES else [f"values of {store.name}"]
        except NewerFormat:
            upgraded += 1
        # and the newer version completes the upgrade
        with monkeypatch.context() as newer:
            newer.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
            wrong += [] if values_of(store) == VALUES else [f"values of {store.name} after the upgrade"]
    figures(upgrades_killed=deaths, already_new=upgraded, backups_whole=backups, wrong=len(wrong))
    assert wrong == []
    assert deaths >= 3
    assert backups


@pytest.mark.slow
@pytest.mark.scorecard(17, planted=True)
def test_a_migration_without_a_transaction_is_found_out(older):
    found = [one for store in killed_upgrades(older, "write", "no transaction") for one in between(store)]
    print(f"planted bug: {len(found)} states between the formats, such as {found[:1]}")
    assert found
