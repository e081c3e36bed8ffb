"""State: named values with versions, on every backend."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import InvalidInput, NotFound, NotStorable, StateConflict, StorageUnavailable, Tenuto, TooLarge
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock


def test_a_value_is_there_for_every_client(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    assert one.state.set("research_task", "pages_analyzed", 30) == 1
    assert two.state.get("research_task", "pages_analyzed") == 30
    assert two.state.set("research_task", "pages_analyzed", 31) == 2
    assert one.state.get("research_task", "pages_analyzed") == 31


def test_what_was_never_set_has_the_default(agent: Tenuto) -> None:
    assert agent.state.get("s", "k") is None
    assert agent.state.get("s", "k", 5) == 5
    assert agent.state.get("s", "k", default=5) == 5
    assert agent.state.entry("s", "k") is None
    agent.state.set("s", "k", None)
    assert agent.state.get("s", "k", 5) is None


def test_a_value_of_any_kind_comes_back_as_it_was(agent: Tenuto) -> None:
    value = {"a": (1, 2), "b": {3}, "c": datetime(2026, 1, 1, tzinfo=UTC), "d": b"\x00", 5: [None, True, 1.5]}
    agent.state.set("s", "k", value)
    assert agent.state.get("s", "k") == value


def test_a_value_read_is_a_copy(agent: Tenuto) -> None:
    agent.state.set("s", "k", {"list": [1]})
    agent.state.get("s", "k")["list"].append(2)
    assert agent.state.get("s", "k") == {"list": [1]}


def test_expect_guards_a_write(agent: Tenuto) -> None:
    assert agent.state.set("s", "k", 1, expect=0) == 1
    for wrong in (0, 2):
        with pytest.raises(StateConflict, match="s/k"):
            agent.state.set("s", "k", 2, expect=wrong)
    assert agent.state.set("s", "k", 2, expect=1) == 2
    assert agent.state.history("s", "k")[0].value == 2
    assert len(agent.state.history("s", "k")) == 2


def test_versions_go_on_after_deletion_and_expiry(agent: Tenuto, clock: HeldClock) -> None:
    agent.state.set("s", "k", 1)
    assert agent.state.delete("s", "k") is True
    assert agent.state.delete("s", "k") is False
    assert agent.state.set("s", "k", 2, expect=0, ttl=10) == 3
    clock.advance(11)
    assert agent.state.get("s", "k") is None
    assert agent.state.set("s", "k", 3, expect=0) == 4


def test_a_deletion_can_expect_a_version(agent: Tenuto) -> None:
    agent.state.set("s", "k", 1)
    with pytest.raises(StateConflict):
        agent.state.delete("s", "k", expect=2)
    assert agent.state.get("s", "k") == 1
    assert agent.state.delete("s", "k", expect=1)
    with pytest.raises(StateConflict):
        agent.state.delete("s", "k", expect=1)


def test_an_entry_tells_all_that_is_known(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client("researcher")
    with agent.correlation("req-17"):
        agent.state.set("s", "k", [1], ttl="1h")
    entry = agent.state.entry("s", "k")
    now = datetime.fromtimestamp(clock.time(), UTC)
    assert entry is not None
    assert (entry.value, entry.version, entry.writer, entry.correlation_id) == ([1], 1, "researcher", "req-17")
    assert (entry.updated_at, entry.expires_at) == (now, now + timedelta(hours=1))


def test_update_changes_a_value_by_a_function_of_it(agent: Tenuto) -> None:
    assert agent.state.update("s", "n", lambda n: n + 1, default=0) == 1
    assert agent.state.update("s", "n", lambda n: n + 1) == 2
    assert agent.state.entry("s", "n").version == 2  # type: ignore[union-attr]


@pytest.mark.races
def test_no_update_is_lost_between_threads(client: Callable[..., Tenuto]) -> None:
    def work() -> None:
        agent = client()
        for _ in range(20):
            agent.state.update("s", "n", lambda n: n + 1, default=0, attempts=200)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = client().state.entry("s", "n")
    assert entry is not None
    assert (entry.value, entry.version) == (80, 80)


def test_update_gives_up_after_its_attempts(client: Callable[..., Tenuto]) -> None:
    agent, rival = client(), client()
    calls = []

    def interfered(value: Any) -> int:
        calls.append(value)
        rival.state.set("s", "n", len(calls))
        return 0

    with pytest.raises(StateConflict):
        agent.state.update("s", "n", interfered, attempts=3)
    assert calls == [None, 1, 2]


def test_update_takes_no_coroutine(agent: Tenuto) -> None:
    async def wrong(value: Any) -> int:
        return 1

    with pytest.raises(TypeError, match="coroutine"):
        agent.state.update("s", "n", wrong)
    assert agent.state.get("s", "n") is None


def test_an_error_in_the_function_changes_nothing(agent: Tenuto) -> None:
    agent.state.set("s", "n", 1)
    with pytest.raises(ZeroDivisionError):
        agent.state.update("s", "n", lambda n: n / 0)
    assert agent.state.get("s", "n") == 1


def test_a_scope_lists_its_own_keys_in_order(agent: Tenuto) -> None:
    for key in ("b", "a", "a/b", "é"):
        agent.state.set("s", key, key.upper())
    agent.state.set("s2", "x", 1)
    agent.state.delete("s", "b")
    assert agent.state.keys("s") == ["a", "a/b", "é"]
    assert agent.state.items("s") == {"a": "A", "a/b": "A/B", "é": "É"}
    assert agent.state.keys("nothing") == []


def test_a_scope_of_thousands_is_listed_whole(agent: Tenuto) -> None:
    for start in range(0, 2400, 400):
        with agent.state.transaction("s") as t:
            for n in range(start, start + 400):
                t[f"k{n:05}"] = n
    assert list(agent.state.items("s").values()) == list(range(2400))


def test_a_transaction_happens_whole_or_not_at_all(agent: Tenuto) -> None:
    agent.state.set("s", "b", 1)
    with agent.state.transaction("s") as t:
        t["a"] = 1
        del t["b"]
        t.set("c", 3, ttl=60)
        assert "b" not in t
        assert t["a"] == 1
        assert agent.state.items("s") == {"b": 1}
    assert agent.state.items("s") == {"a": 1, "c": 3}
    with pytest.raises(ZeroDivisionError):
        with agent.state.transaction("s") as t:
            t["a"] = 2
            raise ZeroDivisionError
    assert agent.state.items("s") == {"a": 1, "c": 3}
    assert [change.number for change in agent.state.watch("s", after=1, timeout=0.01)] == [2, 2, 2]


def test_what_a_transaction_read_must_still_be_so(client: Callable[..., Tenuto]) -> None:
    agent, rival = client(), client()
    agent.state.set("s", "a", 1)
    with pytest.raises(StateConflict):
        with agent.state.transaction("s") as t:
            t["b"] = t["a"] + 1
            rival.state.set("s", "a", 5)
    assert agent.state.items("s") == {"a": 5}
    with pytest.raises(StateConflict):
        with agent.state.transaction("s") as t:
            assert t.get("new") is None
            rival.state.set("s", "new", 1)
            t["c"] = 1
    with pytest.raises(StateConflict):
        with agent.state.transaction("s") as t:
            t.get("a")
            rival.state.set("s", "a", 6)
            t.get("a")


def test_a_transaction_without_writes_does_nothing(agent: Tenuto) -> None:
    with agent.state.transaction("s") as t:
        assert t.get("a") is None
        with pytest.raises(KeyError):
            t["a"]
    assert agent.state.last("s") == 0


def test_history_tells_every_version_newest_first(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    one, two = client("one"), client("two")
    one.state.set("s", "k", "a")
    one.state.set("s", "other", "x")
    clock.advance(5)
    two.state.set("s", "k", "b", ttl=60)
    one.state.delete("s", "k")
    two.state.set("s", "k", "c")
    told = [(e.value, e.version, e.writer, e.deleted) for e in one.state.history("s", "k")]
    assert told == [("c", 4, "two", False), (None, 3, "one", True), ("b", 2, "two", False), ("a", 1, "one", False)]
    assert [e.version for e in one.state.history("s", "k", limit=2)] == [4, 3]
    assert one.state.history("s", "never") == []


def test_long_histories_are_read_whole(agent: Tenuto) -> None:
    for n in range(450):
        agent.state.set("s", "k", n)
    assert [e.value for e in agent.state.history("s", "k", limit=1000)] == list(range(449, -1, -1))


def test_a_value_as_it_was_at_a_version_or_a_time(agent: Tenuto, clock: HeldClock) -> None:
    def now() -> datetime:
        return datetime.fromtimestamp(clock.time(), UTC)

    before = now()
    clock.advance(1)
    agent.state.set("s", "k", "a")
    clock.advance(1)
    agent.state.set("s", "k", "b", ttl=10)
    then = now()
    clock.advance(20)
    expired = now()
    clock.advance(1)
    agent.state.set("s", "k", "c")
    agent.state.delete("s", "k")
    assert [agent.state.at("s", "k", version=v) for v in (1, 2, 3)] == ["a", "b", "c"]
    assert agent.state.at("s", "k", version=4, default="gone") == "gone"
    assert agent.state.at("s", "k", time=before, default="none") == "none"
    assert agent.state.at("s", "k", time=then) == "b"
    assert agent.state.at("s", "k", time=expired, default="expired") == "expired"
    assert agent.state.at("s", "k", time=now()) is None
    with pytest.raises(NotFound, match="never had version 9"):
        agent.state.at("s", "k", version=9)


@pytest.mark.parametrize(
    "arguments", [{}, {"version": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}, {"time": datetime(2026, 1, 1)}]
)
def test_at_wants_one_of_version_and_time(agent: Tenuto, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        agent.state.at("s", "k", **arguments)


def test_watch_yields_changes_as_they_land(client: Callable[..., Tenuto]) -> None:
    agent, writer = client(), client("writer")
    writer.state.set("s", "old", 0)
    position = agent.state.last("s")
    writer.state.set("s", "a", 1)
    writer.state.set("elsewhere", "x", 1)
    with writer.state.transaction("s") as t:
        t["b"] = 2
        del t["a"]
    seen = list(agent.state.watch("s", after=position, timeout="1s"))
    assert [(c.key, c.value, c.version, c.deleted) for c in seen] == [
        ("a", 1, 1, False),
        ("b", 2, 1, False),
        ("a", None, 2, True),
    ]
    assert [c.number for c in seen] == [2, 3, 3]
    assert seen[0].writer == "writer"
    assert [c.key for c in agent.state.watch("s", after=0, timeout=1)] == ["old", "a", "b", "a"]


@pytest.mark.races
def test_watch_without_a_position_begins_with_what_comes(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent, writer = client(), client()
    writer.state.set("s", "before", 1)
    asleep = threading.Event()
    original = clock.sleep
    clock.sleep = lambda seconds: (asleep.set(), original(0))  # type: ignore[method-assign, assignment]
    seen: list[str] = []

    def watch() -> None:
        for change in agent.state.watch("s"):
            seen.append(change.key)
            return

    thread = threading.Thread(target=watch)
    thread.start()
    assert asleep.wait(5)
    writer.state.set("s", "after", 2)
    thread.join(5)
    assert seen == ["after"]


def test_a_view_is_a_dict_that_lasts(agent: Tenuto) -> None:
    view = agent.state["s"]
    view["a"] = 1
    assert view.set("b", 2, expect=0) == 1
    assert view.update("b", lambda b: b + 1) == 3
    assert (view["a"], view.get("b"), view.get("c", 9)) == (1, 3, 9)
    assert ("a" in view, "z" in view, 5 in view) == (True, False, False)
    assert (list(view), len(view), view.keys(), view.items()) == (["a", "b"], 2, ["a", "b"], {"a": 1, "b": 3})
    assert view.entry("a").version == 1  # type: ignore[union-attr]
    assert [e.value for e in view.history("b")] == [3, 2]
    assert view.at("b", version=1) == 2
    assert view.last() == 3
    assert [c.key for c in view.watch(after=2, timeout=1)] == ["b"]
    with view.transaction() as t:
        t["c"] = 4
    del view["a"]
    assert view.delete("zzz") is False
    assert repr(view) == "<state 's'>"
    with pytest.raises(KeyError):
        view["a"]
    with pytest.raises(KeyError):
        del view["a"]


def test_users_are_shared_by_all_agents_and_apart_from_scopes(client: Callable[..., Tenuto]) -> None:
    client("one").user("u-123")["seat"] = "aisle"
    assert client("two").user("u-123").get("seat") == "aisle"
    assert client("two").user("u-123").history("seat")[0].writer == "one"
    assert client("one").state.get("u-123", "seat") is None


def test_tenants_do_not_see_each_other(client: Callable[..., Tenuto]) -> None:
    agent = client()
    other = agent.for_tenant("acme")
    agent.state.set("s", "k", 1)
    other.state.set("s", "k", 2)
    other.user("u")["x"] = 1
    assert (agent.state.get("s", "k"), other.state.get("s", "k")) == (1, 2)
    assert agent.user("u").get("x") is None
    assert [e.value for e in other.state.history("s", "k")] == [2]
    assert (agent.tenant, other.tenant) == ("default", "acme")


def test_a_lost_reply_is_resolved_by_asking(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    agent = Tenuto("tester", faults, clock=clock)
    for _ in range(3):
        faults.lose_reply()
    assert agent.state.update("s", "n", lambda n: n + 1, default=0) == 1
    assert faults.armed == 0
    entry = agent.state.entry("s", "n")
    assert entry is not None
    assert (entry.value, entry.version) == (1, 1)
    assert len(agent.state.history("s", "n")) == 1


def test_a_store_that_stays_away_is_an_error_with_a_request_to_ask_by(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    agent = Tenuto("tester", faults, clock=clock)
    for _ in range(10):
        faults.lose_reply()
    with pytest.raises(StorageUnavailable) as error:
        agent.state.set("s", "k", 1)
    assert error.value.outcome == "unknown"
    faults._armed.clear()
    faults.fail_before()
    with pytest.raises(StorageUnavailable) as error:
        agent.state.set("s", "k", 2)
    assert error.value.outcome == "not applied"
    assert agent.state.get("s", "k") == 1
    assert agent.state.entry("s", "k").version == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", ["", "a\x00", "\ud800", "x" * 10_000_000, None, 5, b"b"])
def test_a_name_that_cannot_be_used_is_refused_everywhere(agent: Tenuto, bad: Any) -> None:
    for call in (
        lambda: agent.state.set(bad, "k", 1),
        lambda: agent.state.set("s", bad, 1),
        lambda: agent.state.get(bad, "k"),
        lambda: agent.state.get("s", bad),
        lambda: agent.state.entry("s", bad),
        lambda: agent.state.update("s", bad, lambda v: v),
        lambda: agent.state.delete("s", bad),
        lambda: agent.state.keys(bad),
        lambda: agent.state.items(bad),
        lambda: agent.state.history("s", bad),
        lambda: agent.state.at("s", bad, version=1),
        lambda: agent.state[bad],
        lambda: agent.state.transaction(bad),
        lambda: list(agent.state.watch(bad, timeout=1)),
        lambda: agent.user(bad),
        lambda: agent.lease(bad),
        lambda: agent.leader(bad),
        lambda: agent.for_tenant(bad),
        lambda: agent.correlation(bad),
    ):
        with pytest.raises(InvalidInput) as error:
            call()
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["/", "..", "../../x", "*?[a]", "'; DROP TABLE records; --", "a b", "%", "😀"])
def test_names_that_mean_something_elsewhere_are_only_names(agent: Tenuto, name: str) -> None:
    agent.state.set(name, name, name)
    agent.state.set("neighbour", "k", 1)
    assert agent.state.items(name) == {name: name}
    assert agent.state.history(name, name)[0].value == name
    agent.state.delete(name, name)
    assert agent.state.items("neighbour") == {"k": 1}


@pytest.mark.parametrize(
    "options",
    [{"ttl": -1}, {"ttl": 0}, {"ttl": "soon"}, {"ttl": float("nan")}, {"expect": -1}],
)
def test_bad_options_are_refused_and_nothing_is_written(agent: Tenuto, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        agent.state.set("s", "k", 1, **options)
    assert agent.state.last("s") == 0


@pytest.mark.parametrize("bad", [object(), float("nan"), 2**70, {"deep": [{1, 2}, lambda: 1]}, "\ud800"])
def test_a_value_that_cannot_be_stored_leaves_the_old_one(agent: Tenuto, bad: Any) -> None:
    agent.state.set("s", "k", "old")
    with pytest.raises(NotStorable):
        agent.state.set("s", "k", bad)
    with pytest.raises(NotStorable):
        agent.state.update("s", "k", lambda _: bad)
    with pytest.raises(NotStorable):
        with agent.state.transaction("s") as t:
            t["other"] = 1
            t["k"] = bad
    assert agent.state.items("s") == {"k": "old"}


def test_a_value_that_is_too_large_is_refused(agent: Tenuto) -> None:
    with pytest.raises(TooLarge, match=r"8,388,608"):
        agent.state.set("s", "k", b"x" * 9_000_000)
    assert agent.state.get("s", "k") is None


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": -5}])
def test_a_history_of_nothing_is_refused(agent: Tenuto, bad: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        agent.state.history("s", "k", **bad)


def test_other_bad_arguments_are_refused(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput):
        agent.state.update("s", "k", lambda v: v, attempts=0)
    with pytest.raises(InvalidInput):
        list(agent.state.watch("s", after=-1))
    with pytest.raises(InvalidInput):
        list(agent.state.watch("s", timeout=-1))
