"""The short way of the commit that is made most: it leaves the same bytes behind as the long way does."""

import pytest
from support.redis_servers import fresh_prefix
from support.short_commits import LOG, A, outcomes

from tenuto.backends.redis import RedisBackend, commit_lua, rows, scripts
from tenuto.errors import Damaged, RequestExpired, RequestReused
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

SHORT, DOOR = commit_lua.COMMIT, "if budget == 0 and"


def long_way() -> scripts.Script:
    text = SHORT.text.decode()
    assert text.count(DOOR) == 1
    return scripts.script(text.replace(DOOR, "if false and"))


def stored(valkey, prefix):
    """Return everything of a tenant as it lies there, without the ids of requests, which are random."""
    heads, values, order, entries, floors, requests, due = rows.names(prefix.encode(), keys.pack("t"))
    with valkey.raw() as raw:
        hashes = [raw.hgetall(name) for name in (heads, values, entries, floors)]
        return [
            *hashes,
            raw.zrange(order, 0, -1, withscores=True),
            raw.zrange(due, 0, -1, withscores=True),
            [_outcome(one[32:]) for one in raw.zrange(requests, 0, -1)],
        ]


def _outcome(body):
    """Return the outcome of a request; of one that was refused, without the time of sending after the `!`."""
    return body[:25] if body[24:25] == b"!" else body


@pytest.mark.parametrize("requested", [False, True])
def test_it_leaves_the_same_bytes_behind(valkey, monkeypatch, requested):
    found = []
    for script in (SHORT, long_way()):
        monkeypatch.setattr(commit_lua, "COMMIT", script)
        prefix, clock = fresh_prefix(), HeldClock()
        store = RedisBackend(valkey.url(prefix=prefix), clock=clock)
        told = outcomes(store, clock, requested=requested)
        kept = stored(valkey, prefix)
        kept[-1].sort()
        found.append((told, kept))
        store.close()

    short, long = found
    assert short == long
    assert short[0][-1] == []


def test_it_is_taken_where_it_can_be(valkey, monkeypatch):
    end = "  if done then return done end\nend\n"
    text = SHORT.text.decode()
    assert text.count(end) == 1
    only = scripts.script(text.replace(end, "  if done then return done end\nerror('the long way')\nend\n"))
    store = RedisBackend(valkey.url(prefix=fresh_prefix()))
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    monkeypatch.setattr(commit_lua, "COMMIT", only)

    assert store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")]).versions == (2, 2)
    assert store.commit([], [Put(A, b"w")], request=new_request(store.now())).versions == (3,)
    assert store.commit([], [Append(LOG, b"e")]).versions == (3,)
    store.close()


def test_a_request_is_known_known_for_another_commit_or_too_old(url):
    clock = HeldClock()
    store = RedisBackend(url, clock=clock)
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    unused, request = new_request(store.now()), new_request(store.now())
    done = store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")], request=request)
    assert store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")], request=request) == done._replace(
        repeated=True
    )
    with pytest.raises(RequestReused):
        store.commit([], [Put(A, b"w"), Append(LOG, b"e")], request=request)
    clock.advance(REQUEST_LIFE + 1)
    with pytest.raises(RequestExpired):
        store.commit([], [Put(A, b"w"), Append(LOG, b"e")], request=unused)
    assert store.read([A])[0].version == 2
    store.close()


@pytest.mark.parametrize("wrong", [b"", b"x", b"y" * 100, "one bit"])
@pytest.mark.parametrize("key", [A, LOG])
def test_damage_is_noticed_on_the_short_way_too(valkey, key, wrong):
    prefix = fresh_prefix()
    store = RedisBackend(valkey.url(prefix=prefix))
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    heads = rows.names(prefix.encode(), keys.pack("t"))[0]
    field = key[len(keys.pack("t")) :]
    with valkey.raw() as raw:
        if wrong == "one bit":
            whole = raw.hget(heads, field)
            wrong = whole[:8] + bytes([whole[8] ^ 1]) + whole[9:]
        raw.hset(heads, field, wrong)

        with pytest.raises(Damaged):
            store.commit([], [Put(A, b"w"), Append(LOG, b"e")], request=new_request(store.now()))

        assert raw.hget(heads, field) == wrong
    store.close()


def test_times_in_a_stream_do_not_go_back_with_a_clock_that_is_behind(url):
    ahead, behind = HeldClock(), HeldClock()
    behind.advance(-100)
    one, two = RedisBackend(url, clock=ahead), RedisBackend(url, clock=behind)
    one.commit([], [Put(A, b"v"), Append(LOG, b"e")])

    done = two.commit([], [Put(A, b"w"), Append(LOG, b"f")])

    assert done.at == behind.time()
    assert [entry.written_at for entry in two.entries(LOG)] == [ahead.time(), ahead.time()]
    assert two.check() == []
    one.close()
    two.close()


def test_a_value_that_is_a_record_s_and_its_entry_s_is_sent_once(url, monkeypatch):
    store = RedisBackend(url)
    store.commit([], [Put(A, b""), Append(LOG, b"")])
    sizes = []
    commit = store._calls.commit

    def counted(script, names, arguments, request):
        sizes.append(sum(len(one) for one in arguments if isinstance(one, bytes)))
        return commit(script, names, arguments, request)

    monkeypatch.setattr(store._calls, "commit", counted)
    value = b"v" * 10_000
    for checks, writes in (
        ([], [Put(A, value), Append(LOG, value)]),
        ([Check(A, 2)], [Put(A, value), Append(LOG, value)]),
        ([], [Put(A, value, 60.0), Append(LOG, b"other"), Append(LOG, value)]),
    ):
        store.commit(checks, writes)
        assert store.read([A])[0].value == value == store.entries(LOG, reverse=True, limit=1)[0].value
        assert sizes.pop() < 11_000
    store.commit([], [Put(A, value), Append(LOG, value[1:])])
    assert store.read([A])[0].value == value
    assert store.check() == []
    store.close()
