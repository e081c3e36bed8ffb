"""Valkey behind a proxy that loses replies, delays requests past their retry and resets: nothing is applied twice."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import campaign
from support.proxy import Fate, Proxy, always
from support.redis_servers import fresh_prefix, wait_until

from tenuto import Tenuto
from tenuto.backends.redis import RedisBackend, commit_lua
from tenuto.errors import Conflict, RequestExpired, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Delete, Put
from tenuto.kernel.transact import new_request, own_request

SUPPORT = Path(__file__).parents[2] / "support"
A, LOG = keys.pack("t", "s", "a"), keys.pack("t", "s", "log")
COMMIT = commit_lua.COMMIT.sha


@pytest.fixture
def proxied(valkey):
    """A store through a proxy, and the proxy."""
    with Proxy(valkey.address) as proxy:
        store = RedisBackend(valkey.url(at=proxy.port, prefix=fresh_prefix(), timeout=5))
        yield store, proxy
        store.close()


def once(fate):
    """Return a `fate` for the next commit only."""
    left = [fate]
    return lambda request: left.pop() if COMMIT in request and left else Fate.PASS


def sent(store, checks, writes, request, *, first, delivered=lambda: None):
    """Send a commit as the client would: its first sending, or one after that; it arrives after `delivered`."""
    commit = store._calls.commit
    try:
        store._calls.commit = lambda *call: delivered() or commit(*call)
        return store._committed(keys.pack("t"), checks, writes, request, first=first)
    finally:
        store._calls.commit = commit


@pytest.mark.timeout(3600)
@pytest.mark.scorecard(12)
def test_a_storm_of_faults_applies_nothing_twice_and_tells_no_untruth(valkey, figures):
    prefix = fresh_prefix()
    with Proxy(valkey.address) as proxy:
        store = RedisBackend(valkey.url(at=proxy.port, prefix=prefix, timeout=1))
        direct = RedisBackend(valkey.url(prefix=prefix))
        told = campaign.run(store, direct, proxy, (b"EVALSHA",))
        figures(calls=campaign.CALLS, doubled=0, wrong=0, faults=sum(proxy.happened.values()))
        assert told["applied"] > campaign.CALLS / 3
        assert proxy.happened[Fate.LATE] > campaign.CALLS / 100
        store.close()
        direct.close()


@pytest.mark.scorecard(12, planted=True)
def test_a_client_that_repeats_with_another_request_id_is_found_out(valkey, monkeypatch):
    monkeypatch.setattr(campaign, "CALLS", 400)
    prefix = fresh_prefix()
    with Proxy(valkey.address) as proxy:
        store = RedisBackend(valkey.url(at=proxy.port, prefix=prefix, timeout=1))
        direct = RedisBackend(valkey.url(prefix=prefix))
        with pytest.raises(AssertionError, match="worker"):
            campaign.run(store, direct, proxy, (b"EVALSHA",), same_id=False)
        store.close()
        direct.close()


def test_a_request_that_arrives_after_its_retry_is_not_applied_again(proxied):
    store, proxy = proxied
    agent = Tenuto("a", store)
    for n in range(3):
        agent.state.set("s", "k", n)
    proxy.fate = once(Fate.LATE)

    agent.state.set("s", "k", "A")  # sent, given up, sent again
    agent.state.set("s", "k", "B")

    wait_until(proxy.settled, what="the delivery of the first sending")
    assert proxy.happened[Fate.LATE] == 1
    assert agent.state.get("s", "k") == "B"
    assert [one.value for one in agent.state.history("s", "k")] == ["B", "A", 2, 1, 0]


@pytest.mark.parametrize("writes", [[Put(A, b"v")], [Put(A, b"v"), Append(LOG, b"e")], [Append(LOG, b"e")]])
def test_the_first_sending_of_a_request_is_looked_up_too(url, writes):
    store = RedisBackend(url)
    store.commit([], [Put(A, b""), Append(LOG, b"")])
    request = new_request(store.now())
    done = sent(store, [], writes, request, first=False)

    late = sent(store, [], writes, request, first=True)

    assert late == done._replace(repeated=True)
    assert (store.read([A])[0].version, len(store.entries(LOG))) in ((2, 1), (2, 2), (1, 2))
    store.close()


def test_a_first_sending_that_comes_when_its_id_is_forgotten_is_refused(url):
    store = RedisBackend(url)
    store.commit([], [Put(A, b"1")])
    with pytest.raises(RequestExpired):
        sent(store, [], [Put(A, b"2")], new_request(store.now() - REQUEST_LIFE - 1), first=True)
    assert store.read([A])[0].version == 1
    store.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_sending_that_comes_after_a_later_one_was_refused_is_not_applied(url, first):
    store, other = RedisBackend(url), RedisBackend(url)
    store.commit([], [Put(A, b"in the way")])
    request, mine = new_request(store.now()), ([Check(A, 0)], [Put(A, b"mine")])

    def refused_meanwhile():
        with pytest.raises(Conflict) as error:
            sent(other, *mine, request, first=False)
        assert error.value.keys == (A,)
        other.commit([], [Delete(A)])

    with pytest.raises(Conflict):
        sent(store, *mine, request, first=first, delivered=refused_meanwhile)

    assert store.read([A]) == [None]
    # The caller may still decide to send it again: then the checks decide anew.
    assert sent(store, *mine, request, first=False).versions == (3,)
    assert sent(store, *mine, request, first=True).repeated
    assert store.check() == []
    store.close()
    other.close()


def test_a_lost_reply_stays_unknown_when_its_retry_cannot_connect(proxied):
    store, proxy = proxied
    agent = Tenuto("a", store)
    agent.thread("t").append({"role": "user", "content": "1"})
    proxy.fate = lambda request: setattr(proxy, "refusing", True) or Fate.CUT_REPLY

    with pytest.raises(StorageUnavailable) as error:
        agent.thread("t").append({"role": "user", "content": "2"})

    assert error.value.outcome == "unknown"
    assert "Nothing was written" not in str(error.value)
    proxy.fate, proxy.refusing = always(Fate.PASS), False
    assert agent.thread("t").count() == 2


def test_a_client_whose_clock_is_two_hours_behind_corrects_it_and_commits(url):
    store = RedisBackend(url)
    agent = Tenuto("a", store)
    agent.state.set("s", "k", 1)
    estimate = store._clock._estimate
    store._clock._estimate = estimate._replace(offset=estimate.offset - 7200)
    store._clock._latest = 0.0
    behind = own_request(store.now())

    assert agent.state.set("s", "k", 2) == 2

    assert store.now() - store.commit([], [Put(A, b"")]).at < 5
    assert store.commit([], [Put(A, b"made before, never sent")], request=behind).versions == (2,)
    with pytest.raises(RequestExpired):  # it may have been sent before
        store.commit([], [Put(A, b"")], request=new_request(store.now() - 7200))
    agent.close()


@pytest.mark.slow
def test_a_storm_of_interrupts_leaves_no_connection_open_and_none_missing(url):
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "interrupted.py"), f"{url}&timeout=3", "6"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found)
    assert found["interrupted"] > 100
    assert found["failed"] == []
    assert found["left"] <= 33  # idle connections that 20 threads have left
    assert found["after"] <= 0


def test_more_threads_than_connections_are_all_served(url):
    store = RedisBackend(url)
    threads = [threading.Thread(target=store.commit, args=([], [Append(LOG, b"e")])) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.entries(LOG)) == 50
    store.close()
