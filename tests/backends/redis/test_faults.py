"""A Redis store whose server is killed, stalled, full, away or wrongly set up: nothing lost, nothing done twice."""

import contextlib
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import redis
from support.proxy import Fate, Proxy, always
from support.redis_servers import FULL, Server, fresh_prefix, wait_until

from tenuto import Tenuto
from tenuto.backends.redis import RedisBackend, UncheckedServerWarning
from tenuto.backends.redis.rows import names
from tenuto.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    NewerFormat,
    ReadOnly,
    StorageFull,
    StorageUnavailable,
)
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Put
from tenuto.kernel.transact import new_request

WORKER = str(Path(__file__).parent / "worker.py")
A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))


@contextlib.contextmanager
def opened(url, **options):
    store = RedisBackend(url, **options)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def workers(*command, count=1):
    running = [
        subprocess.Popen(
            [sys.executable, WORKER, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        yield running
    finally:
        for one in running:
            one.kill()
            one.wait()
            one.stdin.close()
            one.stdout.close()


# -- killed and restarted ----------------------------------------------------------------------------


def killed_under_load(policy, durability, appendonly="yes"):
    """Kill a server under load, start it again, and return what was acknowledged and what is there."""
    with Server("--appendonly", appendonly, "--appendfsync", policy) as server:
        url = server.url(durability=durability)
        acknowledged = found = 0
        for at in range(3):
            with workers("writes", url, f"log{at}") as (worker,):
                told = []
                reader = threading.Thread(target=lambda w=worker, t=told: t.extend(w.stdout))
                reader.start()
                wait_until(lambda t=told: len(t) > 50, what="fifty commits")
                server.kill()
                reader.join()
            server.start()
            with opened(url) as store:
                entries = store.entries(keys.pack("t", "s", f"log{at}"), limit=10_000)
                assert store.check() == []
            # What is there is the beginning of what was sent, each once and in order: a loss takes the newest only.
            assert [entry.value for entry in entries] == [b"%d" % number for number in range(len(entries))]
            acknowledged += int(told[-1])
            found += min(len(entries), int(told[-1]))
            assert len(entries) <= int(told[-1]) + 1
        return acknowledged, found


@pytest.mark.slow
@pytest.mark.scorecard(11, planted=True)
def test_a_server_that_keeps_nothing_on_disk_is_found_out():
    acknowledged, found = killed_under_load("always", "process", appendonly="no")
    print(f"planted: no append-only file, {acknowledged - found} of {acknowledged} lost")
    assert found < acknowledged


@pytest.mark.slow
@pytest.mark.scorecard(11)
def test_nothing_acknowledged_is_lost_when_a_syncing_server_is_killed(figures):
    acknowledged, found = killed_under_load("always", "full")
    figures(kills=3, acknowledged=acknowledged, lost=acknowledged - found)


@pytest.mark.slow
@pytest.mark.scorecard(11)
def test_a_server_that_syncs_every_second_loses_the_newest_commits_at_most_and_says_so(figures):
    acknowledged, found = killed_under_load("everysec", "process")
    figures(kills_at_everysec=3, acknowledged_at_everysec=acknowledged, lost_at_everysec=acknowledged - found)
    assert 0 < found <= acknowledged
    with Server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        with opened(server.url(durability="process")) as store:
            assert store.stats()["survives"].startswith("a clean stop; a kill or a power loss loses the last seconds")


def test_a_store_goes_on_when_the_server_has_forgotten_its_scripts(valkey, url):
    with opened(url) as store:
        store.commit([], [Put(A, b"1")])
        with valkey.raw() as client:
            client.script_flush()
        assert store.commit([Check(A, 1)], [Put(A, b"2")]).versions == (2,)
        with valkey.raw() as client:
            client.script_flush()
        assert store.read([A])[0].value == b"2"


def test_a_store_goes_on_after_a_restart_of_the_server():
    with Server(*FULL) as server, opened(server.url()) as store:
        store.commit([], [Put(A, b"1"), Append(LOG, b"e")])
        server.kill()
        with pytest.raises(StorageUnavailable) as error:
            store.commit([], [Put(A, b"2")])
        assert error.value.outcome == "not applied"
        server.start()
        assert store.read([A])[0].value == b"1"
        assert store.commit([Check(A, 1)], [Put(A, b"2"), Append(LOG, b"f")]).versions == (2, 2)
        assert store.check() == []


# -- replies that are lost ---------------------------------------------------------------------------


def test_a_lost_reply_is_unknown_and_its_request_id_resolves_it(valkey):
    prefix = fresh_prefix()
    with Proxy(valkey.address) as proxy, opened(valkey.url(at=proxy.port, prefix=prefix, timeout=5)) as store:
        store.commit([], [Put(A, b"")])  # the server knows the script: what is dropped below was applied
        for n in range(30):
            request = new_request(store.now())
            store.read([A])  # there is a connection
            if n % 2:
                done = store.commit([], [Append(LOG, b"%d" % n)], request=request)
            else:
                proxy.fate = always(Fate.CUT_REPLY)
                with pytest.raises(StorageUnavailable) as error:
                    store.commit([], [Append(LOG, b"%d" % n)], request=request)
                assert (error.value.outcome, error.value.request) == ("unknown", request)
                proxy.fate = always(Fate.PASS)
                done = store.commit([], [Append(LOG, b"%d" % n)], request=request)
                assert done.repeated
            assert done.versions == (n + 1,)
        assert [entry.value for entry in store.entries(LOG)] == [b"%d" % n for n in range(30)]
        assert proxy.happened[Fate.CUT_REPLY] >= 15


def test_capabilities_settle_lost_replies_by_themselves(valkey):
    with Proxy(valkey.address) as proxy:
        agent = Tenuto("a", RedisBackend(valkey.url(at=proxy.port, prefix=fresh_prefix(), timeout=5)))
        agent.state.set("s", "n", 0)
        flaky = threading.Event()

        def flicker():
            for fate in itertools.cycle((Fate.CUT_REPLY, Fate.PASS)):
                if flaky.wait(0.02):
                    return
                proxy.fate = always(fate)

        thread = threading.Thread(target=flicker)
        thread.start()
        done = failed = 0
        try:
            for _ in range(60):
                try:
                    agent.state.update("s", "n", lambda n: n + 1)
                    done += 1
                except StorageUnavailable:
                    failed += 1
        finally:
            flaky.set()
            thread.join()
            proxy.fate = always(Fate.PASS)
        value = agent.state.get("s", "n")
        print(
            f"flickering proxy: {done} acknowledged, {failed} given up, counter at {value}, {proxy.happened[Fate.CUT_REPLY]} cut"
        )
        assert done > 0
        assert done <= value <= done + failed
        assert agent.state.entry("s", "n").version == value + 1
        agent.close()


# -- away and stalled --------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_told_at_once():
    with opened("redis://:secret-word@127.0.0.1:1/0?timeout=2") as store:
        began = time.monotonic()
        with pytest.raises(StorageUnavailable) as error:
            store.commit([], [Put(A, b"1")])
        assert error.value.outcome == "not applied"
        assert time.monotonic() - began < 2.5
        assert "secret-word" not in str(error.value)


@pytest.mark.slow
def test_a_stalled_server_is_given_up_at_the_deadline():
    with Server(*FULL) as server, opened(server.url(timeout=1)) as store, opened(server.url(timeout=1)) as other:
        store.commit([], [Put(A, b"1")])
        server.signal(signal.SIGSTOP)
        for one, call, outcome in (
            (store, lambda s: s.commit([], [Put(A, b"2")]), "unknown"),
            (store, lambda s: s.read([A]), "not applied"),
            (other, lambda s: s.commit([], [Put(A, b"3")]), "not applied"),
        ):
            began = time.monotonic()
            with pytest.raises(StorageUnavailable) as error:
                call(one)
            assert time.monotonic() - began < 1.5
            assert error.value.outcome == outcome
        server.signal(signal.SIGCONT)
        wait_until(lambda: store.read([A])[0].value == b"2", what="the commit that was on its way")


# -- set up so that data would be lost ---------------------------------------------------------------


def test_a_server_that_may_evict_is_refused():
    with Server(*FULL, "--maxmemory-policy", "allkeys-lru") as server, opened(server.url()) as store:
        with pytest.raises(InvalidInput, match="noeviction"):
            store.open()


def test_full_durability_is_refused_where_the_server_does_not_sync_each_write():
    with Server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        with opened(server.url()) as store, pytest.raises(InvalidInput, match=r"appendfsync always.*process"):
            store.open()
        with opened(server.url(durability="process")) as store:
            store.commit([], [Put(A, b"1")])
            assert "power loss loses the last seconds" in store.stats()["survives"]
    with Server("--appendonly", "no") as server:
        with opened(server.url()) as store, pytest.raises(InvalidInput, match="appendonly yes"):
            store.open()
        with opened(server.url(durability="process")) as store:
            assert store.stats()["survives"].startswith("nothing")


def test_where_settings_cannot_be_read_each_commit_waits_for_the_disk():
    with Server(*FULL) as server:
        with server.raw() as client:
            client.execute_command("ACL", "SETUSER", "agent", "on", ">word", "~*", "+@all", "-config")
        with opened(f"redis://agent:word@127.0.0.1:{server.port}") as store:
            with pytest.warns(UncheckedServerWarning, match="appendfsync"):
                store.open()
            request = new_request(store.now())
            store.commit([], [Put(A, b"1")], request=request)
            assert store.commit([], [Put(A, b"1")], request=request).repeated
            assert store.stats()["survives"] == "kill and power loss"
            assert store.stats()["unchecked"] == ["appendonly", "appendfsync"]
    with Server("--appendonly", "no") as server:
        with server.raw() as client:
            client.execute_command("ACL", "SETUSER", "agent", "on", ">word", "~*", "+@all", "-config")
        with opened(f"redis://agent:word@127.0.0.1:{server.port}") as store:
            with pytest.raises(InvalidInput, match="WAITAOF"):
                store.open()


def test_a_full_server_takes_no_writes_but_reads_and_deletes():
    with Server(*FULL, "--maxmemory", "6mb") as server, opened(server.url()) as store:
        with pytest.raises(StorageFull) as error:
            for n in range(1000):
                store.commit([], [Put(keys.pack("t", "s", n), os.urandom(50_000))])
        assert error.value.outcome == "not applied"
        held = len(store.scan(keys.pack("t", "s"), limit=1000))
        assert held == n > 5
        for at in range(n // 2):
            store.commit([], [Delete(keys.pack("t", "s", at))])
        store.commit([], [Put(A, b"room again")])
        assert store.check() == []


def test_a_wrong_password_is_told_without_repeating_it():
    with Server(*FULL, "--requirepass", "right") as server:
        for login in ("", ":wr0ng@", "someone:wr0ng@"):
            with opened(f"redis://{login}127.0.0.1:{server.port}") as store:
                with pytest.raises(StorageUnavailable, match="password") as error:
                    store.read([A])
                assert "wr0ng" not in str(error.value)
        with opened(f"redis://:right@127.0.0.1:{server.port}") as store:
            store.commit([], [Put(A, b"1")])
            assert "right" not in str(store.stats())


def test_a_replica_is_refused_and_a_primary_that_became_one_takes_no_writes():
    with Server(*FULL) as primary, Server(*FULL) as other, opened(primary.url()) as store:
        store.commit([], [Put(A, b"1")])
        with primary.raw() as client:
            client.replicaof("127.0.0.1", other.port)
        with pytest.raises(ReadOnly, match="replica"):
            store.commit([], [Put(A, b"2")])
        with opened(primary.url()) as late, pytest.raises(ReadOnly):
            late.open()


# -- damage and formats ------------------------------------------------------------------------------


def test_damaged_bytes_are_found_and_never_returned(valkey):
    prefix = fresh_prefix()
    with opened(valkey.url(prefix=prefix)) as store, valkey.raw() as client:
        heads, values, order, entries, *_ = names(prefix.encode(), keys.pack("t"))
        field, log = A[len(keys.pack("t")) :], LOG[len(keys.pack("t")) :]
        store.commit([], [Put(A, b"value"), Append(LOG, b"first"), Append(LOG, b"second")])
        for key, at, call in (
            (values, field, lambda: store.read([A])),
            (heads, field, lambda: store.scan(keys.pack("t"))),
            (heads, field, lambda: store.commit([Check(A, 1)], [Put(B, b"1")])),
            (entries, b"\x3f\xf0" + bytes(6) + log, lambda: store.entries(LOG)),
            (heads, log, lambda: store.commit([], [Append(LOG, b"third")])),
        ):
            good = client.hget(key, at)
            for bit in (0, 8 * len(good) // 2, 8 * len(good) - 1):
                bad = bytearray(good)
                bad[bit // 8] ^= 1 << bit % 8
                client.hset(key, at, bytes(bad))
                with pytest.raises(Damaged):
                    call()
                assert store.check() != []
            client.hset(key, at, good)
        assert store.check() == []
        client.zrem(order, field)
        assert [finding.kind for finding in store.check()] == ["order", "order"]


def test_entries_without_their_stream_are_found(valkey):
    prefix = fresh_prefix()
    with opened(valkey.url(prefix=prefix)) as store, valkey.raw() as client:
        heads, _, _, entries, *_ = names(prefix.encode(), keys.pack("t"))
        other, log = (key[len(keys.pack("t")) :] for key in (B, LOG))
        store.commit([], [Append(LOG, b"%d" % n) for n in range(500)])
        store.commit([], [Append(B, b"e"), Append(B, b"f")])
        assert store.check() == []
        head = client.hget(heads, other)
        client.hdel(heads, other)  # a stream that was lost with its entries still there
        (found,) = store.check()
        assert (found.kind, found.detail.split()[0]) == ("chain", "2")
        assert "'b'" in found.detail
        client.hset(heads, other, head)
        assert store.check() == []
        # an entry beyond the end of its stream
        client.hset(entries, struct.pack(">d", 501) + log, client.hget(entries, struct.pack(">d", 500) + log))
        assert [found.kind for found in store.check()] == ["chain"]
        client.delete(heads)  # all of them
        assert sorted(found.detail.split()[0] for found in store.check()) == ["2", "501"]


def test_a_store_of_a_newer_format_is_left_untouched(valkey):
    prefix = fresh_prefix()
    with opened(valkey.url(prefix=prefix)) as store, valkey.raw() as client:
        store.commit([], [Put(A, b"1")])
        client.hset(names(prefix.encode(), keys.pack("t"))[0], "clock", b"\x7f" + bytes(8))
        for call in (
            lambda: store.read([A]),
            lambda: store.scan(keys.pack("t")),
            lambda: store.entries(LOG),
            lambda: store.commit([], [Put(A, b"2")]),
        ):
            with pytest.raises(NewerFormat):
                call()


# -- many processes ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_every_increment_by_eight_processes_counts_once(kind, request):
    base = request.getfixturevalue("valkey" if kind == "server" else "cluster")
    url = base.url(prefix=fresh_prefix())
    with workers("increments", url, 200, count=8) as running:
        for one in running:
            assert one.stdout.readline() == "ready\n"
        began = time.monotonic()
        for one in running:
            one.stdin.write("go\n")
            one.stdin.flush()
        assert [one.wait(60) for one in running] == [0] * 8
        took = time.monotonic() - began
    with Tenuto("judge", RedisBackend(url)) as agent:
        entry = agent.state.entry("s", "n")
        print(f"{kind}: 8 processes x 200 increments in {took:.1f} s: {entry.value}")
        assert (entry.value, entry.version) == (1_600, 1_600)
        assert agent.store.check().ok


def test_a_forked_child_has_connections_of_its_own(url):
    with opened(url) as store:
        store.commit([], [Put(A, b"parent")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                for _ in range(50):
                    store.commit([], [Append(LOG, b"child")])
                store.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        for _ in range(50):
            store.commit([], [Append(LOG, b"parent")])
        assert os.waitpid(child, 0)[1] == 0
        assert len(store.entries(LOG)) == 100
        assert store.check() == []


def test_a_stale_writer_never_passes_after_a_conflict(url):
    with opened(url) as one, opened(url) as two:
        one.commit([Check(A, 0)], [Put(A, b"1")])
        with pytest.raises(Conflict) as error:
            two.commit([Check(A, 0)], [Put(A, b"2")])
        assert error.value.keys == (A,)


def test_the_driver_itself_would_have_retried():
    # This is why connections are used directly: the driver's client sends again what may have been applied.
    assert redis.Redis().get_retry().get_retries() > 0
