"""Watching on Redis and Valkey: told by a channel where that is permitted, polled where not, and nothing missed."""

import contextlib
import threading
import time

import pytest
from support.redis_servers import FULL, Server, fresh_prefix, wait_until

from tenuto import Tenuto
from tenuto.backends import _listener
from tenuto.backends.redis import RedisBackend
from tenuto.capabilities._core import journal
from tenuto.kernel import keys
from tenuto.kernel.contract import Append

LOG = keys.pack("t", "s", "log")


@contextlib.contextmanager
def opened(url, **options):
    store = RedisBackend(url, **options)
    try:
        yield store
    finally:
        store.close()


def live(store, stream=LOG):
    bell = store.bell(stream)
    wait_until(lambda: bell.live, what="the bell being live")
    return bell


def subscribers(server):
    with server.raw() as client:
        return [one for one in client.client_list() if int(one["sub"])]


def published(server):
    with server.raw() as client:
        return client.info("commandstats").get("cmdstat_publish", {}).get("calls", 0)


class Watching:
    """A thread that watches a scope until "end", and how often it has asked the store."""

    def __init__(self, store, scope):
        self.asked, self.seen = 0, []
        agent = Tenuto("watcher", store, hooks=[self.count])
        self.steps = agent.state.watch(scope, after=0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def count(self, call):
        self.asked += call.verb == "entries"

    def run(self):
        for change in self.steps:
            self.seen.append(change.value)
            if change.value == "end":
                self.steps.close()
                return


def test_a_watcher_is_woken_and_asks_only_when_there_is_something(url, monkeypatch):
    monkeypatch.setattr(journal, "_RARELY", 120.0)
    with opened(url) as store, opened(url) as other:
        agent = Tenuto("writer", other)
        agent.state.set("trip", "n", 0)
        watching = Watching(store, "trip")
        wait_until(lambda: any(bell.live for each in store._listener._bells.values() for bell in each))
        wait_until(lambda: watching.seen == [0])
        asked, began = watching.asked, time.monotonic()
        for n in range(1, 20):
            agent.state.set("trip", "n", n)
            wait_until(lambda n=n: watching.seen[-1] == n)
        agent.state.set("trip", "n", "end")
        watching.thread.join(10)
        assert time.monotonic() - began < 10
        assert watching.seen == [*range(20), "end"]
        assert watching.asked - asked <= 3 * 20 + 2


def test_one_connection_serves_all_watchers_and_ends_with_the_last(monkeypatch):
    monkeypatch.setattr(_listener, "LINGER", 0.1)
    with Server(*FULL) as server, opened(server.url()) as store:
        store.open()
        assert subscribers(server) == []
        bells = [store.bell(keys.pack("t", "s", n)) for n in range(100)]
        wait_until(lambda: all(bell.live for bell in bells))
        assert [one["sub"] for one in subscribers(server)] == ["100"]
        for bell in bells[1:]:
            bell.close()
        wait_until(lambda: [one["sub"] for one in subscribers(server)] == ["1"])
        bells[0].close()
        wait_until(lambda: subscribers(server) == [])
        bell = live(store)
        store.close()
        assert not bell.live
        wait_until(lambda: subscribers(server) == [])


def test_where_nobody_watches_nothing_is_published():
    with Server(*FULL) as server, opened(server.url()) as store, opened(server.url()) as other:
        other.commit([], [Append(LOG, b"e")])
        live(store, keys.pack("t", "s", "another"))
        other.commit([], [Append(LOG, b"e")])
        assert published(server) == 0
        bell = live(store)
        other.commit([], [Append(LOG, b"e"), Append(LOG, b"f")])
        assert published(server) == 1
        bell.close()


def test_a_listener_that_lost_its_connection_comes_back():
    with Server(*FULL) as server, opened(server.url()) as store, opened(server.url()) as other:
        agent = Tenuto("writer", other)
        agent.state.set("trip", "n", 0)
        watching = Watching(store, "trip")
        (first,) = wait_until(lambda: subscribers(server))
        with server.raw() as client:
            client.client_kill_filter(_id=first["id"])
        agent.state.set("trip", "n", 1)
        wait_until(lambda: watching.seen == [0, 1])
        wait_until(lambda: [one for one in subscribers(server) if one["id"] != first["id"]])
        agent.state.set("trip", "n", "end")
        watching.thread.join(10)
        assert watching.seen == [0, 1, "end"]


def test_a_user_without_the_right_to_channels_commits_and_polls():
    with Server(*FULL) as server:
        with server.raw() as client:
            client.execute_command(
                "ACL", "SETUSER", "agent", "on", ">word", "~*", "resetchannels", "+@all", "-publish", "-pubsub"
            )
        url = f"redis://agent:word@127.0.0.1:{server.port}"
        with opened(url) as store, opened(url) as other, opened(server.url()) as privileged:
            other.commit([], [Append(LOG, b"e")])
            bell = live(privileged)  # so there is somebody to be told
            other.commit([], [Append(LOG, b"f")])
            assert len(privileged.entries(LOG)) == 2
            assert other.check() == []
            bell.close()
            watching = Watching(store, "trip")
            Tenuto("writer", other).state.set("trip", "n", "end")
            watching.thread.join(10)
            assert watching.seen == ["end"]
            assert not store.bell(LOG).live


def test_on_a_cluster_watchers_poll(cluster):
    url = cluster.url(prefix=fresh_prefix())
    with opened(url) as store, opened(url) as other:
        watching = Watching(store, "trip")
        Tenuto("writer", other).state.set("trip", "n", "end")
        watching.thread.join(10)
        assert watching.seen == ["end"]
        assert store._listener._thread is None


@pytest.mark.slow
def test_a_watcher_goes_on_when_its_server_was_away():
    with Server(*FULL) as server, opened(server.url(timeout=20)) as store, opened(server.url()) as other:
        bell = live(store)
        server.kill()
        wait_until(lambda: not bell.live)
        server.start()
        wait_until(lambda: bell.live)
        bell.hush()
        other.commit([], [Append(LOG, b"e")])
        bell.wait(10)
        assert bell.rung
        bell.close()
