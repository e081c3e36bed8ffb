"""Leases: one holder whose writes count, whatever the clocks say."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import InvalidInput, LeaseHeld, StaleLease, Tenuto, _machine
from tenuto.capabilities import leases
from tenuto.capabilities._core.renewal import Renewer
from tenuto.kernel import codec
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock


def test_one_holds_it_and_the_next_is_told_who(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    with one.lease("conversation:42", ttl=30) as lease:
        assert lease.held
        assert not lease.lost
        with pytest.raises(LeaseHeld, match="held by one"):
            two.lease("conversation:42").acquire()
        with two.lease("other"):
            pass
    assert not lease.held
    with two.lease("conversation:42"):
        pass


def test_the_token_grows_with_every_acquisition(client: Callable[..., Tenuto]) -> None:
    tokens = []
    for name in ("one", "two", "one"):
        with client(name).lease("x") as lease:
            tokens.append(lease.token)
    assert tokens == [1, 2, 3]


def test_a_handle_can_be_used_again(agent: Tenuto) -> None:
    lease = agent.lease("x")
    with lease:
        first = lease.token
        with pytest.raises(InvalidInput, match="already holds"):
            lease.acquire()
    with lease:
        assert lease.token == first + 1
    lease.release()


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_writes_nothing(
    client: Callable[..., Tenuto], clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a holder that is stopped: nothing renews its lease
    monkeypatch.setattr("tenuto.capabilities._core.renewal.Renewer.add", lambda self, lease: None)
    one, two = client("one"), client("two")
    old = one.lease("x", ttl=30).acquire()
    one.state.set("s", "k", "one", fence=old)
    # when its time has passed
    clock.advance(31)
    new = two.lease("x", ttl=30).acquire()
    two.state.set("s", "k", "two", fence=new)
    # then only the new one's writes count
    for write in (
        lambda: one.state.set("s", "k", "stale", fence=old),
        lambda: one.state.update("s", "k", lambda _: "stale", fence=old),
        lambda: one.state.delete("s", "k", fence=old),
        lambda: _transact(one, old),
    ):
        with pytest.raises(StaleLease, match="Another holder acquired"):
            write()
    assert two.state.get("s", "k") == "two"
    assert not old.renew()
    assert old.lost
    with pytest.raises(StaleLease):
        one.state.set("s", "k", "stale", fence=old)
    old.release()
    two.state.set("s", "k", "still two", fence=new)


def _transact(agent: Tenuto, fence: Any) -> None:
    with agent.state.transaction("s", fence=fence) as t:
        t["k"] = "stale"


def test_a_late_renewal_keeps_a_lease_that_nobody_took(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client()
    with agent.lease("x", ttl=10) as lease:
        clock.advance(60)
        assert lease.renew()
        agent.state.set("s", "k", 1, fence=lease)
        with pytest.raises(LeaseHeld):
            client().lease("x").acquire()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_jumps_gives_no_second_holder_whose_write_counts(
    client: Callable[..., Tenuto], clock: HeldClock, jump: float
) -> None:
    one, two = client("one"), client("two")
    old = one.lease("x", ttl=10).acquire()
    clock.advance(jump)
    try:
        new = two.lease("x", ttl=10).acquire()
    except LeaseHeld:
        one.state.set("s", "k", "one", fence=old)
        return
    two.state.set("s", "k", "two", fence=new)
    with pytest.raises(StaleLease):
        one.state.set("s", "k", "one", fence=old)


def test_a_fence_must_be_held(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="not held"):
        agent.state.set("s", "k", 1, fence=agent.lease("x"))
    with agent.lease("x") as lease:
        pass
    with pytest.raises(InvalidInput, match="not held"):
        agent.state.set("s", "k", 1, fence=lease)
    assert agent.state.get("s", "k") is None


@pytest.mark.races
def test_a_waiter_gets_the_lease_when_it_is_released(client: Callable[..., Tenuto]) -> None:
    lease = client("one").lease("x").acquire()
    waiting, got = threading.Event(), []
    two = client("two")
    handle = two.lease("x", wait="1h")
    attempt = handle._try

    def tried() -> Any:
        result = yield from attempt()
        waiting.set()
        return result

    handle._try = tried  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: got.append(handle.acquire().token))
    thread.start()
    assert waiting.wait(5)
    lease.release()
    thread.join(10)
    assert got == [2]
    handle.release()


def test_waiting_has_an_end(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    client("one").lease("x", ttl=600).acquire()
    before = clock.time()
    with pytest.raises(LeaseHeld):
        client("two").lease("x", wait=5).acquire()
    assert clock.time() - before == pytest.approx(5, abs=0.01)


def test_a_leader_waits_until_it_is_elected(
    client: Callable[..., Tenuto], clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.capabilities._core.renewal.Renewer.add", lambda self, lease: None)
    client("one").leader("scheduler", ttl=600).acquire()
    before = clock.time()
    with client("two").leader("scheduler") as lead:
        assert not lead.lost
        assert lead.token == 2
    assert clock.time() - before >= 600
    with client("three").lease("scheduler") as lease:
        assert lease.token == 1


def test_a_holder_that_died_on_this_machine_is_replaced_at_once(
    client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = client("one").lease("x", ttl=600)
    owner = lease._owner()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    monkeypatch.setattr(leases.Lease, "_owner", lambda self: {**owner, "pid": child, "started": "1"})
    lease.acquire()
    monkeypatch.undo()
    with client("two").lease("x") as new:
        assert new.token == 2


def test_a_holder_on_an_unknown_machine_is_waited_for(
    client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a system that does not tell its boot, and a holder whose process id is not in use here
    monkeypatch.setattr(_machine, "boot_id", lambda: _machine.UNKNOWN_BOOT)
    lease = client("one").lease("x", ttl=600)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: 2**22 + 1)
        lease.acquire()
    # when a process that may be on another machine asks for the lease, then it is held
    with pytest.raises(LeaseHeld):
        client("two").lease("x").acquire()


def test_a_holder_on_another_machine_is_waited_for(
    client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = client("one").lease("x", ttl=600)
    owner = {**lease._owner(), "host": "elsewhere", "pid": 2**22 + 1}
    monkeypatch.setattr(leases.Lease, "_owner", lambda self: owner)
    lease.acquire()
    monkeypatch.undo()
    with pytest.raises(LeaseHeld):
        client("two").lease("x").acquire()


def test_a_hold_is_renewed_in_the_background(backend: Backend, clock: HeldClock) -> None:
    agent = Tenuto("tester", backend, clock=clock)
    with agent.lease("x", ttl=0.2) as lease:
        beats = {agent.kernel.read([lease._beat_key])[0].version}  # type: ignore[union-attr]
        deadline = time.monotonic() + 5
        while len(beats) < 4 and time.monotonic() < deadline:
            beats.add(agent.kernel.read([lease._beat_key])[0].version)  # type: ignore[union-attr]
        assert len(beats) >= 4
        assert lease.held


def test_a_hold_that_cannot_be_renewed_is_given_up_when_its_time_has_passed(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    agent = Tenuto("tester", faults, clock=clock)
    with agent.lease("x", ttl=0.4) as lease:
        for _ in range(1000):
            faults.fail_before("commit")
        deadline = time.monotonic() + 5
        while not lease.lost and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert lease.lost
        faults._armed.clear()
    assert codec  # the block ends without an error


def test_a_forked_child_holds_nothing(agent: Tenuto) -> None:
    with agent.lease("x") as lease:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"lost" if lease.lost else b"held")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 10) == b"lost"
        assert lease.held
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": -5}, {"ttl": "never"}, {"wait": -1}, {"wait": "long"}])
def test_bad_options_are_refused(agent: Tenuto, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        agent.lease("x", **options)


def test_a_lease_says_what_is_known(agent: Tenuto) -> None:
    lease = agent.lease("x")
    assert repr(lease) == "<lease 'x': not held>"
    with lease:
        assert repr(lease) == "<lease 'x': held, token 1>"


def test_a_signal_that_lets_a_lease_go_while_another_is_taken_does_not_stop_the_program() -> None:
    renewer = Renewer()

    class Interrupted:
        """Asked how often to renew it, in the middle of being taken, it is as if a signal's handler ran."""

        @property
        def _interval(self) -> float:
            renewer.remove(self)
            return 60.0

        def renew(self) -> bool:
            return True

    taking = threading.Thread(target=renewer.add, args=(Interrupted(),), daemon=True)
    taking.start()
    taking.join(5)
    assert not taking.is_alive()
