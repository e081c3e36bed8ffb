"""Holders that stop, die, or whose clocks jump: a write with a stale token is never applied."""

import fcntl
import random
import signal
import threading
import time

import pytest
from crash_harness import Child, beside
from support.long import size

from tenuto import Closed, LeaseHeld, StaleLease, Tenuto
from tenuto.kernel.clock import SystemClock


def stale_writes(agent):
    """Return the writes that were accepted after one with a newer token: what must never be."""
    newest, stale = 0, []
    for accepted in reversed(agent.state.history("s", "by", limit=10**9)):
        token = accepted.value[1]
        if token < newest:
            stale.append(accepted.value)
        newest = max(newest, token)
    return stale


def stop_between_commits(child, path):
    """Stop a process at a moment at which it does not hold the write lock: that would stop the others too."""
    with beside(path, "-lock").open("rb") as lock:
        while True:
            child.stop()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                child.signal(signal.SIGCONT)
            else:
                return


def take_over_while_stopped(path, then):
    """Stop a holder past its ttl, take its lease, write, and let it go on; return what it says."""
    with Child("worker_lease.py", path, 2) as child, Tenuto("parent", path) as agent:
        token = int(child.says())
        stop_between_commits(child, path)
        with pytest.raises(LeaseHeld):
            agent.lease("work").acquire()
        with agent.lease("work", wait=20) as lease:
            assert lease.token > token
            agent.state.set("s", "by", ["parent", lease.token], fence=lease)
            child.tell(then)
            child.signal(signal.SIGCONT)
            said = child.says()
            agent.state.set("s", "by", ["parent", lease.token], fence=lease)
        return said, agent.state.get("s", "by"), stale_writes(agent)


@pytest.mark.slow
@pytest.mark.scorecard(13)
def test_a_holder_stopped_past_its_lease_cannot_write_any_more(path, figures):
    # given a process stopped longer than its lease lives, when another has taken it and the first goes on
    said, value, stale = take_over_while_stopped(path, "fenced")
    # then its write is refused and not applied
    figures(holders_stopped=1, stale=len(stale))
    assert said == "StaleLease"
    assert value[0] == "parent"
    assert stale == []


@pytest.mark.slow
@pytest.mark.scorecard(13, planted=True)
def test_a_holder_that_writes_without_its_fence_is_found_out(path):
    # given the planted bug: the stopped holder forgets the fence
    said, _, stale = take_over_while_stopped(path, "unfenced")
    # then the same judgement sees the stale write
    assert said == "written"
    assert stale == [["child", 1]]


def test_a_holder_killed_on_this_machine_is_replaced_at_once(path):
    # given a process that holds a lease for a minute, when it is killed
    with Child("worker_lease.py", path, 60) as child, Tenuto("parent", path) as agent:
        token = int(child.says())
        with pytest.raises(LeaseHeld):
            agent.lease("work").acquire()
        child.signal(signal.SIGKILL)
        # then the next one has the lease within two seconds, not within a minute
        began = time.monotonic()
        with agent.lease("work", wait=10) as lease:
            took = time.monotonic() - began
            assert lease.token == token + 1
    print(f"dead holder replaced after {1e3 * took:.0f} ms")
    assert took < 2


class JumpingClock(SystemClock):
    """The machine's clock, off by so much as the test says."""

    offset = 0.0

    def time(self):
        return super().time() + self.offset


class Holder:
    """A client with a clock of its own that takes the lease when it can and writes when it believes."""

    def __init__(self, path, name):
        self.clock = JumpingClock()
        self.agent = Tenuto(name, path, clock=self.clock)
        self.lease = self.agent.lease("work", ttl=30)
        self.said = {"written": 0, "refused": 0, "taken": 0}

    def take(self):
        try:
            self.lease.acquire()
        except LeaseHeld:
            return False
        self.said["taken"] += 1
        return True

    def write(self, *, fenced=True):
        value = [self.agent.name, self.lease.token]
        try:
            self.agent.state.set("s", "by", value, fence=self.lease if fenced else None)
        except StaleLease:
            self.said["refused"] += 1
            self.lease = self.agent.lease("work", ttl=30)
            return False
        self.said["written"] += 1
        return True


@pytest.fixture
def holders(path):
    both = [Holder(path, "a"), Holder(path, "b")]
    yield both
    for holder in both:
        holder.agent.close()


@pytest.mark.parametrize(("jumper", "jump"), [("other", 3_600), ("holder", -3_600)])
def test_a_clock_that_jumps_an_hour_passes_the_lease_on_and_fences_the_first_holder(holders, jumper, jump):
    # given a holder, and a clock that jumps so that the lease seems to have expired
    first, second = holders
    if jumper == "holder":
        first.clock.offset = jump  # set back before it acquires: its lease ends an hour ago for the other
    assert first.take()
    assert first.write()
    if jumper == "other":
        assert not second.take()
        second.clock.offset = jump
    # when the other takes it and writes
    assert second.take()
    assert second.write()
    # then the first one's next write is refused, and the other goes on
    assert not first.write()
    assert second.write()
    assert stale_writes(first.agent) == []


@pytest.mark.parametrize("jump", [3_600, -3_600])
def test_after_the_holders_own_clock_jumps_exactly_one_of_the_two_can_write(holders, jump):
    # given a holder whose clock jumps after it acquired
    first, second = holders
    assert first.take()
    first.clock.offset = jump
    assert first.write()
    # when the other tries to take over, with or without success, and both write
    taken = second.take()
    wrote = [first.write(), second.write() if taken else False]
    # then only the one with the newest token gets through
    assert wrote == [not taken, taken]
    assert stale_writes(first.agent) == []


def test_waiting_for_a_lease_ends_in_time_although_the_clock_was_set_back(holders):
    # given a lease that is held, and a client whose clock was set back by an hour after it was first asked
    first, second = holders
    assert first.take()
    assert not second.take()
    second.clock.offset = -3_600
    # when that client waits for the lease for a fifth of a second
    outcome = []

    def wait():
        try:
            second.agent.lease("work", wait=0.2).acquire()
        except LeaseHeld as error:
            outcome.append(error)
        except Closed:
            pass  # the test had given up

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(5)
    # then it is told so in time, not in an hour
    assert outcome, "wait=0.2 had not ended after 5 s"


def jump_at_random(holders, seed, *, fenced):
    chance = random.Random(seed)
    for _ in range(size(60, 3_000)):
        holder = chance.choice(holders)
        if chance.random() < 0.3:
            holder.clock.offset += chance.choice([3_600, -3_600])
        if not holder.lease.held:
            holder.take()
        if holder.lease.token:
            holder.write(fenced=fenced)


@pytest.mark.scorecard(13)
def test_clocks_that_jump_at_random_never_let_a_stale_token_write(holders, figures):
    # given two clients, when their clocks jump by hours at random and both take and write as they can
    for seed in range(3):
        jump_at_random(holders, seed, fenced=True)
    # then tokens never go back from one accepted write to the next
    stale = stale_writes(holders[0].agent)
    refused = sum(holder.said["refused"] for holder in holders)
    figures(written=sum(holder.said["written"] for holder in holders), refused=refused, stale=len(stale))
    assert stale == []
    assert all(holder.said["refused"] and holder.said["taken"] > 1 for holder in holders)


@pytest.mark.scorecard(13, planted=True)
def test_jumping_clocks_without_a_fence_are_found_out(holders):
    # given the planted bug: writes without the fence
    jump_at_random(holders, 0, fenced=False)
    assert stale_writes(holders[0].agent)
