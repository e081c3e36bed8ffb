"""Wrappers: what each adds to the contract that they all pass."""

import logging
from typing import Any

import pytest

from tenuto import Conflict, ReadOnly, StorageUnavailable, Tenuto
from tenuto.hooks.events import Call
from tenuto.hooks.logs import LogCalls
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend, Check, Put
from tenuto.testing import Faults, HeldClock
from tenuto.wrappers.observe import Observe
from tenuto.wrappers.readonly import ReadOnly as ReadOnlyView
from tenuto.wrappers.tenant import Tenant

A = keys.pack("tenant", "scope", "a")


def test_hooks_are_told_of_every_call(backend: Backend) -> None:
    told: list[Call] = []
    store = Observe(backend, [told.append])
    store.commit([], [Put(A, b"12345")])
    store.read([A, A])
    store.scan(A)
    store.entries(A)
    with pytest.raises(Conflict):
        store.commit([Check(A, 9)], [Put(A, b"x")])
    store.check()
    store.stats()
    assert [(c.verb, c.count, c.size, c.error) for c in told][:5] == [
        ("commit", 1, 5, None),
        ("read", 2, 10, None),
        ("scan", 1, 5, None),
        ("entries", 0, 0, None),
        ("commit", 0, 0, "Conflict"),
    ]
    assert all(call.seconds >= 0 for call in told)
    with pytest.raises(AttributeError):
        told[0].verb = "read"  # type: ignore[misc]


def test_a_hook_that_fails_fails_nothing(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Call] = []

    def broken(call: Call) -> None:
        raise ZeroDivisionError

    agent = Tenuto("tester", backend, hooks=[broken, told.append])
    assert agent.state.set("s", "k", 1) == 1
    assert agent.state.get("s", "k") == 1
    assert [call.verb for call in told] == ["commit", "read"]
    assert "A hook failed on commit" in caplog.text


def test_events_and_log_lines_carry_the_correlation_id(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Call] = []
    agent = Tenuto("tester", backend, hooks=[told.append, LogCalls()])
    with caplog.at_level(logging.DEBUG, "tenuto.calls"), agent.correlation("req-17"):
        agent.state.set("s", "k", 1)
        with pytest.raises(Conflict):
            agent.state.set("s", "k", 1, expect=9)
    agent.state.get("s", "k")
    assert [call.correlation_id for call in told] == ["req-17", "req-17", None]
    assert "commit of 2" in caplog.text
    assert "[req-17] failed: Conflict" in caplog.text
    assert caplog.records[0].correlation_id == "req-17"  # type: ignore[attr-defined]


def test_a_repeated_commit_is_told_as_such(backend: Backend, clock: HeldClock) -> None:
    told: list[Call] = []
    faults = Faults(backend, clock=clock)
    agent = Tenuto("tester", Observe(faults, [told.append]), clock=clock)
    faults.lose_reply()
    agent.state.set("s", "k", 1)
    assert [(c.error, c.repeated) for c in told if c.verb == "commit"] == [("StorageUnavailable", False), (None, True)]


def test_no_tenant_reaches_another(backend: Backend) -> None:
    one, two = Tenant(backend, "one"), Tenant(backend, "one\x01")
    one.commit([], [Put(A, b"1")])
    two.commit([], [Put(A, b"2")])
    assert [r.value for r in one.scan(b"")] == [b"1"]
    assert [r.value for r in two.scan(b"", reverse=True)] == [b"2"]
    with pytest.raises(Conflict) as error:
        one.commit([Check(A, 9)], [])
    assert error.value.keys == (A,)


def test_a_read_only_view_shows_everything_and_takes_nothing(backend: Backend) -> None:
    backend.commit([], [Put(A, b"1")])
    view = ReadOnlyView(backend)
    assert view.read([A]) == backend.read([A])
    assert view.scan(A) == backend.scan(A)
    assert view.entries(A) == []
    assert view.check() == []
    assert view.stats() == backend.stats()
    assert view.now() <= backend.now()
    with pytest.raises(ReadOnly, match="read-only"):
        view.commit([], [Put(A, b"2")])
    agent = Tenuto("tester", view)
    with pytest.raises(ReadOnly):
        agent.state.set("s", "k", 1)
    assert agent.state.get("s", "k") is None
    view.close()


def test_faults_go_off_once_each_in_order(backend: Backend, clock: HeldClock) -> None:
    store = Faults(backend, clock=clock)
    store.fail_before()
    store.lose_reply()
    store.fail_after(KeyboardInterrupt())
    store.delay(5)
    store.fail_before("read")
    outcomes: list[Any] = []
    for n in range(4):
        before = clock.time()
        try:
            store.commit([], [Put(A, b"%d" % n)])
            outcomes.append(clock.time() - before)
        except StorageUnavailable as error:
            outcomes.append(error.outcome)
        except KeyboardInterrupt:
            outcomes.append("interrupt")
    assert outcomes == ["not applied", "unknown", "interrupt", 5]
    with pytest.raises(StorageUnavailable):
        store.read([A])
    record = store.read([A])[0]
    assert record is not None
    assert (record.value, record.version) == (b"3", 3)
    for verb in ("scan", "entries", "check", "stats"):
        store.fail_before(verb)  # type: ignore[arg-type]
    for call in (lambda: store.scan(A), lambda: store.entries(A), store.check, store.stats):
        with pytest.raises(StorageUnavailable):
            call()
    assert store.armed == 0
