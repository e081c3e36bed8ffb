"""Real servers that are starting, busy, out of room, silent or being rearranged: nothing lost, nothing done twice."""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from support import disk, tls
from support.redis_servers import FULL, Cluster, Server, fresh_prefix, wait_until

from tenuto.backends.redis import RedisBackend, rows
from tenuto.errors import InvalidInput, StorageFull, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

pytestmark = pytest.mark.slow

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))


@contextlib.contextmanager
def opened(url, **options):
    store = RedisBackend(url, **options)
    try:
        yield store
    finally:
        store.close()


# -- starting and busy -------------------------------------------------------------------------------


def test_a_server_that_loads_its_data_is_waited_for_until_the_deadline():
    with Server(*FULL) as server, opened(server.url(timeout=20)) as patient, opened(server.url(timeout=0.5)) as hasty:
        patient.commit([], [Put(A, b"1")])
        hasty.read([A])
        with server.raw() as client:
            for n in range(2_000):
                client.set(f"other:{n}", os.urandom(1_100))
            client.bgrewriteaof()  # it processes no call while it reads a plain log
            wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        server.kill()
        server.settings += ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]
        server.launch()
        wait_until(lambda: _loading(server), what="the loading")
        with pytest.raises(StorageUnavailable, match="still loading") as error:
            hasty.commit([], [Put(A, b"no")])
        assert error.value.outcome == "not applied"
        assert _loading(server)
        assert patient.commit([Check(A, 1)], [Put(A, b"2")]).versions == (2,)
        assert hasty.read([A])[0].value == b"2"


def _loading(server):
    try:
        with server.raw() as client:
            return client.info("persistence")["loading"]
    except OSError:
        return False
    except Exception as error:
        return "LOADING" in str(error)


def test_a_server_that_is_busy_with_anothers_script_serves_nobody_and_says_so():
    with Server(*FULL, "--busy-reply-threshold", "50") as server, opened(server.url(timeout=5)) as store:
        store.commit([], [Put(A, b"1")])

        def spin():
            with server.raw() as client, contextlib.suppress(Exception):
                client.eval("while true do end", 0)

        spinning = threading.Thread(target=spin)
        spinning.start()
        wait_until(lambda: _busy(server), what="the busy script")
        request = new_request(store.now())
        with pytest.raises(StorageUnavailable, match=r"accepts no calls now.*BUSY") as error:
            store.commit([], [Put(A, b"2")], request=request)
        assert (error.value.outcome, error.value.request) == ("not applied", request)
        with pytest.raises(StorageUnavailable, match="BUSY"):
            store.read([A])
        # A client that comes new is told the same, not that the settings are wrong.
        with opened(server.url(timeout=5)) as other, pytest.raises(StorageUnavailable, match="BUSY"):
            other.read([A])
        with server.raw() as client:
            client.script_kill()
        spinning.join()
        assert not store.commit([], [Put(A, b"2")], request=request).repeated
        assert store.read([A])[0].version == 2


def _busy(server):
    try:
        with server.raw() as client:
            client.get("x")
    except Exception as error:
        return "BUSY" in str(error)
    return False


# -- no room -----------------------------------------------------------------------------------------


def test_a_server_whose_snapshots_fail_takes_no_writes_and_loses_nothing():
    with Server(*FULL, "--save", "3600", "1") as server, opened(server.url()) as store:
        store.commit([], [Put(A, b"1"), Append(LOG, b"e")])
        obstacle = Path(server.folder) / "dump.rdb"
        obstacle.mkdir()
        with server.raw() as client:
            client.bgsave()
            wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            request = new_request(store.now())
            with pytest.raises(StorageUnavailable, match=r"accepts no writes now.*MISCONF") as error:
                store.commit([], [Put(A, b"2"), Append(LOG, b"f"), Delete(B)], request=request)
            assert (error.value.outcome, error.value.request) == ("not applied", request)
            assert store.read([A])[0].value == b"1"
            assert len(store.entries(LOG)) == 1
            obstacle.rmdir()
            client.bgsave()
            wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
        assert not store.commit([], [Put(A, b"2"), Append(LOG, b"f"), Delete(B)], request=request).repeated
        assert store.check() == []


def test_a_server_without_enough_replicas_takes_no_writes():
    with Server(*FULL, "--min-replicas-to-write", "1") as server, opened(server.url()) as store:
        with pytest.raises(StorageUnavailable, match="NOREPLICAS") as error:
            store.commit([], [Put(A, b"1")])
        assert error.value.outcome == "not applied"
        assert store.read([A]) == [None]


def until_full(store, most=3_000):
    """Commit until the store refuses; return how often it did not, what was refused, its request and the error."""
    for n in range(1, most):
        request = new_request(store.now())
        commit = [Append(LOG, b"%06d" % n + os.urandom(2_000)), Put(keys.pack("t", "s", n), b"x")]
        try:
            store.commit([], commit, request=request)
        except StorageUnavailable as error:
            return n - 1, commit, request, error
    raise AssertionError("it did not get full")


def test_a_full_disk_is_told_and_the_store_goes_on_when_there_is_room():
    with disk.tiny_disk("8m") as tiny:
        settings = ("--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(tiny))
        with Server(*settings) as server, opened(server.url(durability="process", timeout=5)) as store:
            store.commit([], [Put(A, b"1")])
            ballast = disk.fill(tiny)
            done, commit, request, error = until_full(store)
            assert isinstance(error, StorageFull), error
            assert (error.outcome, error.request) == ("not applied", request)
            assert store.read([A])[0].value == b"1"
            assert len(store.entries(LOG, limit=1000)) == done
            ballast.unlink()
            wait_until(lambda: _wrote_its_log(server), what="the log being written again")
            assert not store.commit([], commit, request=request).repeated
            assert len(store.entries(LOG, limit=1000)) == done + 1
            assert store.check() == []


def _wrote_its_log(server):
    with server.raw() as client:
        return client.info("persistence")["aof_last_write_status"] == "ok"


def test_a_syncing_server_ends_on_a_full_disk_and_no_half_of_a_commit_is_left():
    # With appendfsync always Valkey ends rather than acknowledge what it could not write.
    with disk.tiny_disk("8m") as tiny, Server(*FULL, "--dir", str(tiny)) as server:
        with opened(server.url(timeout=5)) as store:
            store.commit([], [Put(A, b"1")])
            ballast = disk.fill(tiny)
            done, commit, request, error = until_full(store)
            assert error.outcome == "unknown"
            server.process.wait(10)
            ballast.unlink()
            server.start()
            store.commit([], commit, request=request)
            found = store.entries(LOG, limit=10_000)
            assert [entry.value[:6] for entry in found] == [b"%06d" % n for n in range(1, done + 2)]
            assert len(store.scan(keys.pack("t", "s"), limit=10_000)) == done + 2
            assert store.commit([], commit, request=request).repeated
            assert store.check() == []


# -- silence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepting", [True, False], ids=["connects and is silent", "does not even connect"])
def test_a_server_that_never_answers_is_given_up_at_the_deadline(accepting):
    with tls.BlackHole(accepting=accepting) as one, tls.BlackHole(accepting=accepting) as two:
        both = f"127.0.0.1:{one.port},127.0.0.1:{two.port}"
        for url in (
            f"redis://:geheim@127.0.0.1:{one.port}?timeout=0.5",
            f"redis+cluster://:geheim@{both}?timeout=0.5",
            f"redis+sentinel://:geheim@{both}/main?timeout=0.5",
        ):
            for call in (lambda s: s.read([A]), lambda s: s.commit([], [Put(A, b"v")])):
                with opened(url) as store:
                    began = time.monotonic()
                    with pytest.raises(StorageUnavailable) as error:
                        call(store)
                    assert time.monotonic() - began < 1
                    assert error.value.outcome == "not applied"
                    assert "geheim" not in str(error.value)


def test_a_node_that_never_answers_leaves_time_for_the_next(cluster):
    with tls.BlackHole(accepting=True) as gone:
        url = (
            f"redis+cluster://127.0.0.1:{gone.port},127.0.0.1:{cluster.nodes[0].port}?prefix={fresh_prefix()}&timeout=2"
        )
        with opened(url) as store:
            began = time.monotonic()
            store.commit([], [Put(A, b"1")])
            assert time.monotonic() - began < 2


# -- how it is reached -------------------------------------------------------------------------------


def test_a_port_a_socket_and_tls_reach_the_same_store(tmp_path):
    made = tls.Certificates(tmp_path)
    path = tmp_path / "valkey.sock"
    with Server(*FULL, "--unixsocket", str(path)) as server, tls.TlsProxy(made, server.port) as proxy:
        base = f"rediss://127.0.0.1:{proxy.port}?timeout=5&ssl_ca_certs="
        with opened(server.url()) as by_port, opened(f"unix://{path}") as by_socket:
            assert by_port.commit([], [Put(A, b"1"), Append(LOG, b"e")]).versions == (1, 1)
            assert by_socket.commit([Check(A, 1)], [Put(A, b"2")]).versions == (2,)
            assert by_socket.stats()["where"] == str(path)
            with opened(f"{base}{made.authority}") as secured:
                assert secured.commit([Check(A, 2)], [Put(A, b"3")]).versions == (3,)
                assert secured.entries(LOG)[0].value == b"e"
                assert proxy.secured >= 1
            for wrong in (
                f"{base}{made.stranger}",  # not signed by whom it should be
                f"rediss://localhost:{proxy.port}?timeout=5&ssl_ca_certs={made.authority}",  # another name
                f"redis://127.0.0.1:{proxy.port}?timeout=1",  # no TLS at all
            ):
                with opened(wrong) as refused, pytest.raises(StorageUnavailable) as error:
                    refused.commit([], [Put(A, b"no")])
                assert error.value.outcome == "not applied"
                assert "TLS failed" in str(error.value) or wrong.startswith("redis:")
            assert by_port.read([A])[0].value == b"3"
    with opened(f"unix://{tmp_path}/nobody.sock") as store, pytest.raises(StorageUnavailable) as error:
        store.read([A])
    assert error.value.outcome == "not applied"
    with pytest.raises(InvalidInput, match="no option ssl_ca_certs"):
        RedisBackend("redis://host?ssl_ca_certs=x")


# -- a cluster that is rearranged --------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_cluster():
    nodes = Cluster()
    yield nodes
    nodes.stop()


class Move:
    """The slot of a tenant, step by step from its node to another, as an operator's tool would."""

    def __init__(self, nodes, prefix, tenant):
        self.names = rows.names(prefix.encode(), tenant)
        with nodes[0].raw() as client:
            self.slot = client.execute_command("CLUSTER", "KEYSLOT", self.names[0])
        self.nodes = nodes
        self.source = next(node for node in nodes if self._holds(node))
        self.target = next(node for node in nodes if node is not self.source)

    def _holds(self, node):
        with node.raw() as client:
            mine = _decoded(client.execute_command("CLUSTER", "NODES"))
        own = next(line for line in mine.splitlines() if "myself" in line)
        return any(
            int(first) <= self.slot <= int(last or first)
            for first, _, last in (part.partition("-") for part in own.split()[8:] if "[" not in part)
        )

    def _id(self, node):
        with node.raw() as client:
            return _decoded(client.execute_command("CLUSTER", "MYID"))

    def begin(self):
        with self.target.raw() as client:
            client.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._id(self.source))
        with self.source.raw() as client:
            client.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._id(self.target))

    def carry(self, most=1000):
        """Move up to so many keys, and tell how many there were."""
        with self.source.raw() as client:
            found = client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, most)
            for key in found:
                client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)
            return len(found)

    def end(self):
        for node in (self.target, self.source, *self.nodes):
            with node.raw() as client:
                client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self._id(self.target))
        self.source, self.target = self.target, self.source


def _decoded(raw):
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def test_a_tenant_that_is_being_moved_is_served_by_whoever_holds_it(own_cluster):
    prefix, clock = fresh_prefix(), HeldClock()
    with opened(own_cluster.url(prefix=prefix, timeout=5), clock=clock) as store:
        # given a tenant that has something in each of its seven keys
        store.commit([], [Put(A, b"1"), Append(LOG, b"e"), Put(B, b"", 5.0)], request=new_request(store.now()))
        clock.advance(2 * REQUEST_LIFE)
        for n in range(64):
            store.commit([], [Put(A, b"%d" % n)])
        clock.advance(2 * REQUEST_LIFE)
        for n in range(64):
            store.commit([], [Put(A, b"%d" % n)])
        store.commit([], [Put(keys.pack("t", "s", "c"), b"", 9e9)], request=new_request(store.now()))
        move = Move(own_cluster.nodes, prefix, keys.pack("t"))
        with move.source.raw() as client:
            assert [client.exists(name) for name in move.names] == [1] * 7
        # when it is moved: nothing of it yet, all of it, and at last its slot
        version = store.read([A])[0].version
        move.begin()
        assert store.commit([Check(A, version)], [Put(A, b"begun")]).versions == (version + 1,)
        assert move.carry() == 7
        with move.target.raw() as client:
            client.script_flush()  # a node that has never seen the scripts
        assert store.commit([Check(A, version + 1)], [Put(A, b"asked")]).versions == (version + 2,)
        assert store.read([A])[0].value == b"asked"
        with move.target.raw() as client:
            client.script_flush()
        assert store.entries(LOG)[0].value == b"e"
        move.end()
        assert store.commit([Check(A, version + 2)], [Put(A, b"moved")]).versions == (version + 3,)
        assert store.check() == []


def test_a_tenant_that_is_half_moved_is_refused_and_nothing_is_written(own_cluster):
    prefix = fresh_prefix()
    with opened(own_cluster.url(prefix=prefix, timeout=1)) as store:
        store.commit([], [Put(A, b"1"), Append(LOG, b"e")])
        move = Move(own_cluster.nodes, prefix, keys.pack("t"))
        move.begin()
        assert move.carry(2) == 2
        request = new_request(store.now())
        with pytest.raises(StorageUnavailable, match="cannot serve this tenant") as error:
            store.commit([], [Put(A, b"2"), Append(LOG, b"f")], request=request)
        assert error.value.outcome == "not applied"
        move.carry()
        move.end()
        assert not store.commit([], [Put(A, b"2"), Append(LOG, b"f")], request=request).repeated
        assert [entry.value for entry in store.entries(LOG)] == [b"e", b"f"]
        assert store.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["key by key", "at once"])
def test_under_load_a_move_to_and_fro_loses_nothing_and_does_nothing_twice(own_cluster, how):
    prefix = fresh_prefix()
    streams = [keys.pack("t", "log", n) for n in range(3)]
    stop = threading.Event()
    acknowledged = [[] for _ in streams]
    refused = [0]
    with opened(own_cluster.url(prefix=prefix, timeout=10)) as store:
        store.commit([], [Put(A, b"1")])
        move = Move(own_cluster.nodes, prefix, keys.pack("t"))

        def write(at):
            n = 0
            while not stop.is_set():
                n += 1
                request = new_request(store.now())
                while True:
                    try:
                        store.commit([], [Append(streams[at], b"%d" % n), Put(A, b"%d" % n)], request=request)
                    except StorageUnavailable:
                        refused[0] += 1
                    else:
                        acknowledged[at].append(b"%d" % n)
                        break

        threads = [threading.Thread(target=write, args=(at,)) for at in range(len(streams))]
        for thread in threads:
            thread.start()
        moves = 0
        try:
            for _ in range(6):
                before = min(map(len, acknowledged))
                if how == "key by key":
                    move.begin()
                    while move.carry(1):
                        time.sleep(0.02)  # time for calls to meet each state
                    move.end()
                else:
                    _move_at_once(move)
                moves += 1
                wait_until(lambda before=before: min(map(len, acknowledged)) > before + 20, what="more commits")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for stream, told in zip(streams, acknowledged, strict=True):
            assert [entry.value for entry in store.entries(stream, limit=10_000)] == told
        assert store.read([A])[0].version == 1 + sum(map(len, acknowledged))
        assert refused[0] < 50, "a moment's move is waited for, not refused"
        print(f"{moves} moves {how}: {sum(map(len, acknowledged))} acknowledged, {refused[0]} refused and repeated")
        assert store.check() == []


def _move_at_once(move):
    """Move the slot as Valkey 9 can by itself: all of it, or nothing."""
    with move.source.raw() as client:
        try:
            client.execute_command(
                "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", move.slot, move.slot, "NODE", move._id(move.target)
            )
        except Exception as error:
            pytest.skip(f"this server cannot move a slot at once: {error}")
    wait_until(lambda: move._holds(move.target), what="the move")
    move.source, move.target = move.target, move.source


def test_a_socket_path_that_is_taken_by_another_kind_of_server_is_unavailable(tmp_path):
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = other.accept()
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    client.close()

        threading.Thread(target=answer, daemon=True).start()
        with opened(f"unix://{path}?timeout=2") as store, pytest.raises(StorageUnavailable) as error:
            store.commit([], [Put(A, b"1")])
        assert error.value.outcome == "not applied"
        other.shutdown(socket.SHUT_RDWR)
