"""Real servers that are away, in another's hands or out of room: replicas, promotions, full disks, silence, TLS."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import disk, pg_more, pg_server, tls
from support.failover import Writers

from tenuto.backends.postgres import PostgresBackend
from tenuto.errors import ReadOnly, StorageFull, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Put
from tenuto.kernel.transact import new_request

pytestmark = pytest.mark.slow

A, LOG = keys.pack("t", "s", "a"), keys.pack("t", "s", "log")


def numbered(n: int) -> bytes:
    return keys.pack("t", "s", n)


# -- replicas and promotions -------------------------------------------------------------------------


class Pair:
    """A primary, and a replica that it waits for at each commit, so that a promotion loses nothing."""

    def __init__(self, beside: Any) -> None:
        self.primary = pg_more.Another(beside)
        self.replica = pg_more.Replica(self.primary)
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.execute("SELECT pg_reload_conf()")
        follows = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        pg_server.eventually(lambda: self.primary.execute(follows))
        hosts = f"host={self.replica.host},{self.primary.host}&port={self.replica.port},{self.primary.port}"
        self.url = f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write"


@pytest.fixture
def pair(own_server: Any) -> Iterator[Pair]:
    made = Pair(own_server)
    yield made
    made.replica.stop()
    made.primary.stop()


def test_a_replica_serves_every_read_and_says_that_it_takes_no_writes(pair: Pair) -> None:
    with_primary = PostgresBackend(pair.primary.url)
    with_primary.commit([], [Put(A, b"1"), Append(LOG, b"e")])
    pair.replica.caught_up(pair.primary)
    store = PostgresBackend(pair.replica.url)
    assert store.read([A])[0].value == b"1"
    assert [record.key for record in store.scan(keys.pack("t", "s"))] == [A]
    assert [entry.value for entry in store.entries(LOG)] == [b"e"]
    assert store.check() == []
    assert store.stats()["replica"]
    for attempt in (
        lambda: store.commit([], [Put(A, b"2")], request=new_request(store.now())),
        lambda: store.commit([Check(A, 1)], []),
        store.migrate,
        PostgresBackend(pair.replica.url, schema="not_there").open,
    ):
        with pytest.raises(ReadOnly, match=r"is read-only: a replica.*target_session_attrs=read-write"):
            attempt()
    bell = store.bell(LOG)  # nobody can LISTEN on a replica
    bell.wait(0.2)
    assert not bell.live
    assert with_primary.read([A])[0].version == 1
    with_primary.close()
    store.close()


def test_where_only_a_replica_is_left_it_is_said_that_nobody_takes_writes(pair: Pair) -> None:
    store = PostgresBackend(pair.url, timeout=5)
    store.commit([], [Put(A, b"1")])
    pair.primary.kill()
    with pytest.raises(StorageUnavailable) as error:
        for _ in range(2):  # the first call may find its connection broken
            store.commit([], [Put(A, b"2")])
    with pytest.raises(StorageUnavailable, match=r"No server of .* accepts writes now") as error:
        store.commit([], [Put(A, b"2")])
    assert error.value.outcome == "not applied"
    store.close()


@pytest.mark.slow
@pytest.mark.scorecard(10)
def test_writers_follow_a_promotion_and_nothing_acknowledged_is_lost(pair: Pair, figures: Any) -> None:
    store = PostgresBackend(pair.url, timeout=20)
    store.open()
    with Writers(store, ["t"] * 4) as writers:
        writers.go_on()
        killed = time.monotonic()
        pair.primary.kill()
        pair.replica.promote()
        writers.go_on()
    told = writers.outcome(killed)
    assert told["lost"] == 0
    for stream, acknowledged in zip(writers.streams, writers.acknowledged, strict=True):
        found = [entry.value for entry in store.entries(stream, limit=10_000)]
        assert found[: len(acknowledged)] == [value for _, value in acknowledged], "acknowledged and stored differ"
    figures(promotions=1, **told)
    print(f"Postgres, a synchronous standby promoted: {told}")
    assert store.check() == []
    assert not store.stats()["replica"]
    store.close()


def test_connections_to_a_primary_that_became_read_only_are_not_used_again(pair: Pair) -> None:
    store = PostgresBackend(pair.url, timeout=10)
    store.commit([], [Put(A, b"1")])
    pair.replica.caught_up(pair.primary)
    # given an old primary that still answers, and takes no writes any more
    pair.replica.promote()
    pair.primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    with psycopg.connect(pair.primary.url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    pg_server.eventually(lambda: store._calls.fetch("SHOW default_transaction_read_only", ()) == [("on",)])
    # when a commit meets it, the next one goes to the new primary
    with pytest.raises(ReadOnly):
        store.commit([], [Put(A, b"2")])
    assert store.commit([], [Put(A, b"2")]).versions == (2,)
    assert pair.replica.execute("SELECT version FROM tenuto.records") == [(2,)]
    store.close()


# -- no room -----------------------------------------------------------------------------------------


def test_a_full_disk_takes_no_writes_loses_nothing_and_goes_on_when_there_is_room(own_server: Any) -> None:
    schema = pg_server.new_schema()
    with disk.tiny_disk("16m") as tiny:
        space = tiny / "space"
        space.mkdir()
        shutil.chown(space, own_server._wheel.system_user)
        own_server.execute(f"CREATE TABLESPACE tiny LOCATION '{space}'")
        own_server.execute("ALTER DATABASE postgres SET default_tablespace = tiny")
        try:
            store = pg_server.backend(own_server, schema)
            store.commit([], [Put(A, b"1"), Append(LOG, b"0")])
            ballast = disk.fill(tiny)
            for n in range(1, 1_000):  # pages that are there already still take something
                request = new_request(store.now())
                commit = [Put(numbered(n), os.urandom(5_000)), Append(LOG, b"%d" % n)]
                try:
                    store.commit([], commit, request=request)
                except StorageFull as error:
                    full = error
                    break
            else:
                pytest.fail("the disk did not get full")
            assert (full.outcome, full.request) == ("not applied", request)
            assert "is full" in str(full)
            assert store.read([A, numbered(n)])[1] is None
            assert len(store.entries(LOG, limit=1000)) == n
            assert store.check() == []
            ballast.unlink()
            assert not store.commit([], commit, request=request).repeated
            assert store.commit([], commit, request=request).repeated
            assert [entry.value for entry in store.entries(LOG, limit=1000)] == [b"%d" % at for at in range(n + 1)]
            assert store.check() == []
            store.close()
        finally:
            own_server.execute("ALTER DATABASE postgres RESET default_tablespace")
            own_server.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            own_server.execute("DROP TABLESPACE tiny")


class LogElsewhere(pg_more.Another):
    """A server whose write-ahead log lies on a small disk."""

    settings = "max_wal_size = 8MB\nmin_wal_size = 4MB\n"

    def __init__(self, beside: Any, folder: Path) -> None:
        self.log_folder = folder / "wal"
        self.log_folder.mkdir()
        shutil.chown(self.log_folder, beside._wheel.system_user)
        super().__init__(beside)

    def initial(self) -> tuple[str, ...]:
        return ("--waldir", str(self.log_folder), "--wal-segsize", "1")


@pytest.mark.slow
def test_a_full_disk_under_the_servers_own_log_leaves_no_half_of_a_commit(own_server: Any) -> None:
    # Postgres has to stop there; what a commit in flight came to, its request id tells when it is back.
    with disk.tiny_disk("24m") as tiny:
        server = LogElsewhere(own_server, tiny)
        try:
            store = PostgresBackend(server.url, timeout=10)
            store.commit([], [Put(A, b"1"), Append(LOG, b"0")])
            ballast = disk.fill(tiny)
            for n in range(1, 5_000):
                request = new_request(store.now())
                commit = [Put(numbered(n), os.urandom(5_000)), Append(LOG, b"%d" % n)]
                try:
                    store.commit([], commit, request=request)
                except StorageUnavailable as error:
                    print(f"after {n} commits: {error.outcome}: {error}")
                    break
            else:
                pytest.fail("the disk did not get full")
            ballast.unlink()
            server.kill()
            server.start()
            again = store.commit([], commit, request=request)
            assert again.versions == (1, n + 1)
            assert [entry.value for entry in store.entries(LOG, limit=10_000)] == [b"%d" % at for at in range(n + 1)]
            assert len(store.scan(keys.pack("t", "s"), limit=10_000)) == n + 1
            assert store.check() == []
            store.close()
        finally:
            server.stop()


# -- silence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepting", [True, False], ids=["connects and is silent", "does not even connect"])
def test_a_server_that_never_answers_is_given_up_at_the_deadline(accepting: bool) -> None:
    with tls.BlackHole(accepting=accepting) as one, tls.BlackHole(accepting=accepting) as two:
        for hosts in (f"127.0.0.1:{one.port}", f"127.0.0.1:{one.port},127.0.0.1:{two.port}"):
            for call in (lambda s: s.read([A]), lambda s: s.commit([], [Put(A, b"v")])):
                store = PostgresBackend(f"postgresql://u:geheim@{hosts}/db?timeout=0.5")
                begun = time.monotonic()
                with pytest.raises(StorageUnavailable, match="did not answer") as error:
                    call(store)
                assert time.monotonic() - begun < 1
                assert error.value.outcome == "not applied"
                assert "geheim" not in str(error.value)
                store.close()


def test_a_host_that_never_answers_leaves_time_for_the_next(own_server: Any) -> None:
    server = pg_more.Another(own_server)
    try:
        with tls.BlackHole(accepting=False) as gone:
            url = f"postgresql://postgres@127.0.0.1:{gone.port},127.0.0.1:{server.port}/postgres?timeout=4"
            store = PostgresBackend(url)
            begun = time.monotonic()
            store.commit([], [Put(A, b"v")])
            assert time.monotonic() - begun < 3.5
            store.close()
    finally:
        server.stop()


# -- how it is reached -------------------------------------------------------------------------------


def test_a_port_a_socket_and_tls_reach_the_same_store(own_server: Any, tmp_path: Path) -> None:
    made = tls.Certificates(tmp_path)
    server = pg_more.Another(own_server)
    try:
        by_port = PostgresBackend(f"postgresql://postgres@127.0.0.1:{server.port}/postgres")
        by_socket = PostgresBackend(server.url)
        assert by_port.commit([], [Put(A, b"1"), Append(LOG, b"e")]).versions == (1, 1)
        assert by_socket.commit([Check(A, 1)], [Put(A, b"2")]).versions == (2,)
        with tls.TlsProxy(made, server.port, asked_first=True) as proxy:
            base = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?timeout=5&"
            secured = PostgresBackend(f"{base}sslmode=verify-full&sslrootcert={made.authority}")
            assert secured.commit([Check(A, 2)], [Put(A, b"3")]).versions == (3,)
            assert secured.entries(LOG)[0].value == b"e"
            assert proxy.secured >= 1
            for wrong in (f"sslmode=verify-full&sslrootcert={made.stranger}", "sslmode=disable"):
                refused = PostgresBackend(base + wrong)
                with pytest.raises(StorageUnavailable) as error:
                    refused.commit([], [Put(A, b"no")])
                assert error.value.outcome == "not applied"
                refused.close()
            named = f"host=localhost&hostaddr=127.0.0.1&port={proxy.port}"
            other_name = PostgresBackend(
                f"postgresql://postgres@/postgres?{named}&timeout=5&sslmode=verify-full&sslrootcert={made.authority}"
            )
            with pytest.raises(StorageUnavailable, match="localhost"):
                other_name.read([A])
            assert by_socket.read([A])[0].value == b"3"
            for store in (secured, other_name):
                store.close()
        by_port.close()
        by_socket.close()
    finally:
        server.stop()
