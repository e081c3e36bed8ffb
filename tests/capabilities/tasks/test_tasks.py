"""Tasks: enqueued once, taken by one, ended under a fence, delivered again when their holder is lost."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, NotFound, NotStorable, Retry, StaleLease, StateConflict, TaskFailed, TimedOut
from tenuto.capabilities.tasks import claimed as tasks_in_hand
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.queue import REDELIVERIES

NOTHING_QUEUED = {"ready": 0, "later": 0, "running": 0, "dead": 0}


def drained(agent, queue, **options):
    found = []
    while (task := agent.tasks.claim(queue, **options)) is not None:
        found.append(task)
        task.complete()
    return found


def work(agent, queue, handler, **options):
    """Be a worker whose leases do not run out: a lane that waits moves the test's clock."""
    return agent.tasks.work(queue, handler, lease="1000h", **options)


# -- enqueueing ----------------------------------------------------------------------------------------------------


def test_a_task_is_taken_with_what_it_brings_and_completed(agent):
    # given a task
    told = agent.tasks.enqueue("reviews", {"file": 31}, user="u-1", priority=2)
    assert (told.status, told.attempts, told.queue) == ("waiting", 0, "reviews")
    # when it is taken
    task = agent.tasks.claim("reviews")
    assert (task.id, task.payload, task.user, task.priority) == (told.id, {"file": 31}, "u-1", 2)
    assert (task.attempt, task.redelivered, task.queue) == (1, False, "reviews")
    assert agent.tasks.get(told.id).status == "running"
    assert agent.tasks.claim("reviews") is None
    # and completed, then it is over, and its result stays
    task.complete({"stars": 5})
    assert agent.tasks.is_completed(told)
    assert agent.tasks.result(told.id) == {"stars": 5}
    assert agent.tasks.get(told).by == "tester"
    assert agent.tasks.counts("reviews") == NOTHING_QUEUED


def test_the_same_key_is_the_same_task(agent, client):
    first = agent.tasks.enqueue("reviews", 1, key="pr-9/31")
    assert first.id == "pr-9/31"
    assert client("other").tasks.enqueue("reviews", 2, key="pr-9/31") == first
    assert len(agent.tasks.pending("reviews")) == 1
    # also when it is in hand, and when it is over
    task = agent.tasks.claim("reviews")
    assert agent.tasks.enqueue("reviews", 3, key="pr-9/31").status == "running"
    task.complete("done")
    assert agent.tasks.enqueue("reviews", 4, key="pr-9/31").result == "done"
    assert agent.tasks.claim("reviews") is None
    # another queue is another matter
    with pytest.raises(Conflict, match="in the queue 'reviews'"):
        agent.tasks.enqueue("elsewhere", 1, key="pr-9/31")


@pytest.mark.races
def test_of_many_who_enqueue_one_key_at_once_one_does(agent):
    gate, ids = threading.Barrier(8), []

    def enqueue(n):
        gate.wait()
        ids.append(agent.tasks.enqueue("q", n, key="k").payload)

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert len(set(ids)) == 1
    assert len(drained(agent, "q")) == 1


def test_the_highest_priority_is_first_and_of_one_priority_the_oldest(agent, clock):
    for n, priority in enumerate([0, 5, 0, -3, 5, 1]):
        agent.tasks.enqueue("q", n, priority=priority)
        clock.advance(0.001)
    assert [task.payload for task in drained(agent, "q")] == [1, 4, 5, 0, 2, 3]


def test_users_of_one_queue_have_their_turns(agent, clock):
    # given one user with many tasks, and two with few, who came later
    for n in range(6):
        agent.tasks.enqueue("q", n, user="greedy")
    for user in ("modest", "shy"):
        for n in range(2):
            agent.tasks.enqueue("q", n, user=user)
    # then nobody waits for all of the first one's
    served = [(task.user, task.payload) for task in drained(agent, "q")]
    assert sorted(user for user, _ in served[:3]) == ["greedy", "modest", "shy"]
    assert sorted(user for user, _ in served[3:6]) == ["greedy", "modest", "shy"]
    assert [n for user, n in served if user == "greedy"] == [0, 1, 2, 3, 4, 5]
    # but a higher priority goes before
    agent.tasks.enqueue("q", "low", user="modest")
    agent.tasks.enqueue("q", "high", user="greedy", priority=1)
    assert [task.payload for task in drained(agent, "q")] == ["high", "low"]


def test_a_delayed_task_comes_when_its_time_has(agent, clock):
    agent.tasks.enqueue("q", "later", delay="10s", priority=9)
    agent.tasks.enqueue("q", "now")
    assert agent.tasks.counts("q") == {"ready": 1, "later": 1, "running": 0, "dead": 0}
    assert [task.payload for task in drained(agent, "q")] == ["now"]
    clock.advance(9.9)
    assert agent.tasks.claim("q") is None
    clock.advance(0.1)
    agent.tasks.enqueue("q", "now")
    assert [task.payload for task in drained(agent, "q")] == ["later", "now"]


def test_a_delayed_task_of_another_client_comes_too(agent, client, clock):
    assert agent.tasks.claim("q") is None
    client("other").tasks.enqueue("q", 1, delay=timedelta(seconds=1))
    clock.advance(2)
    assert agent.tasks.claim("q").payload == 1


def test_many_delayed_tasks_come_at_once(agent, clock):
    agent.tasks.enqueue_many("q", range(250), delay="1m")
    assert agent.tasks.counts("q")["later"] == 250
    clock.advance(60)
    assert sorted(task.payload for task in drained(agent, "q")) == list(range(250))


def test_many_are_enqueued_in_few_commits_and_again_with_keys(agent):
    names = [f"k{n}" for n in range(700)]
    assert [one.id for one in agent.tasks.enqueue_many("q", range(700), keys=names)] == names
    again = agent.tasks.enqueue_many("q", range(700), keys=names)
    assert [one.payload for one in again] == list(range(700))
    assert agent.tasks.counts("q")["ready"] == 700
    assert len(agent.tasks.pending("q", limit=650)) == 650
    twice = agent.tasks.enqueue_many("r", [1, 2], keys=["same", "same"])
    assert [one.payload for one in twice] == [1, 1]
    for payloads, names in (([1, 2], ["one"]), ("text", None), ({"a": 1}, None), (3, None)):
        with pytest.raises(InvalidInput, match="Nothing was enqueued"):
            agent.tasks.enqueue_many("q", payloads, keys=names)


def test_a_state_change_and_a_task_happen_together_or_not_at_all(agent, client):
    # given a transaction
    with agent.state.transaction("order-7") as t:
        t["status"] = "paid"
        told = t.enqueue("mails", {"order": 7}, key="mail-7")
        t.enqueue("mails", {"order": 7}, key="mail-7")
        assert agent.tasks.pending("mails") == []
    assert told.id == "mail-7"
    assert [one.id for one in agent.tasks.pending("mails")] == ["mail-7"]
    # when it fails, neither is there
    with pytest.raises(RuntimeError), agent.state.transaction("order-8") as t:
        t["status"] = "paid"
        t.enqueue("mails", {"order": 8})
        raise RuntimeError
    with pytest.raises(StateConflict), agent.state.transaction("order-7") as t:
        t.get("status")
        client("other").state.set("order-7", "status", "cancelled")
        t.enqueue("mails", {"order": 9})
    assert len(agent.tasks.pending("mails")) == 1
    # a task alone is a transaction too, and one that is there already adds nothing
    with agent.state.transaction("order-9") as t:
        t.enqueue("mails", 1)
        assert t.enqueue("mails", 1, key="mail-7").payload == {"order": 7}
    assert len(agent.tasks.pending("mails")) == 2
    with pytest.raises(InvalidInput, match="cannot enqueue"):
        agent.user("u").transaction().enqueue("mails", 1)


class Between:
    """A store in which something else happens right after a read or a scan, once."""

    def __init__(self, kernel, verb, then):
        self._kernel, self._verb, self._then = kernel, verb, then

    def __getattr__(self, name):
        found = getattr(self._kernel, name)
        if name != self._verb or self._then is None:
            return found

        def call(*args, **options):
            result = found(*args, **options)
            then, self._then = self._then, None
            then()
            return result

        return call


@pytest.mark.parametrize("verb", ["scan", "read"])
def test_of_two_who_have_found_the_same_task_one_has_it(agent, client, verb):
    # given somebody who has found a task, and another one who is faster
    agent.tasks.enqueue_many("q", ["first", "second"])
    taken = []
    shelf = agent.tasks._queue("q")
    shelf._fired = shelf._lost = shelf._later = float("inf")
    shelf._kernel = Between(shelf._kernel, verb, lambda: taken.append(client("faster").tasks.claim("q")))
    # then he has another one, and both are delivered once
    mine = agent.tasks.claim("q")
    assert (taken[0].payload, mine.payload) == ("first", "second")
    taken[0].complete()
    mine.complete()
    assert agent.tasks.claim("q") is None


def test_of_two_who_take_over_the_same_task_one_has_it(agent, client, clock):
    agent.tasks.enqueue("q", 1, key="k")
    agent.tasks.claim("q", lease=1)
    clock.advance(2)
    taken = []
    shelf = agent.tasks._queue("q")
    shelf._kernel = Between(shelf._kernel, "read", lambda: taken.append(client("faster").tasks.claim("q")))
    assert agent.tasks.claim("q") is None
    assert taken[0].attempt == 2
    taken[0].complete()


# -- in hand -------------------------------------------------------------------------------------------------------


def test_whoever_lost_a_task_can_change_nothing_any_more(agent, client, clock):
    # given a task whose lease runs out
    agent.tasks.enqueue("q", 1, key="k")
    slow = agent.tasks.claim("q", lease=30)
    clock.advance(29)
    assert client("other").tasks.claim("q") is None
    clock.advance(2)
    # when another one takes it
    fast = client("other").tasks.claim("q", lease=30)
    assert (fast.attempt, fast.redelivered) == (2, True)
    assert fast.token > slow.token
    # then the first can neither end it nor extend it nor write under its fence
    for late in (slow.complete, slow.fail, slow.extend, slow.release):
        with pytest.raises(StaleLease, match="claimed by another worker"):
            late()
    assert slow.lost
    with pytest.raises(StaleLease):
        agent.state.set("s", "k", 1, fence=slow)
    agent.state.set("s", "k", 2, fence=fast)
    fast.complete("by the second")
    assert agent.tasks.result("k") == "by the second"
    assert agent.tasks.get("k").redeliveries == 1


def test_a_lease_that_ran_out_is_still_good_while_nobody_took_it(agent, clock):
    agent.tasks.enqueue("q", 1, key="k")
    task = agent.tasks.claim("q", lease=5)
    clock.advance(60)
    task.complete("late")
    assert agent.tasks.result("k") == "late"


def test_an_extended_task_stays_in_hand(agent, client, clock):
    agent.tasks.enqueue("q", 1)
    task = agent.tasks.claim("q", lease=30)
    for _ in range(5):
        clock.advance(20)
        task.extend()
        assert client("other").tasks.claim("q") is None
    agent.state.set("s", "k", 1, fence=task)
    task.extend(100)
    clock.advance(90)
    assert client("other").tasks.claim("q") is None
    task.complete()
    assert client("other").tasks.claim("q") is None
    assert agent.tasks.counts("q") == {"ready": 0, "later": 0, "running": 0, "dead": 0}


def test_a_task_in_hand_ends_once(agent):
    agent.tasks.enqueue("q", 1, key="k")
    task = agent.tasks.claim("q")
    task.complete("first")
    with pytest.raises(StaleLease, match="has ended here"):
        task.complete("second")
    with pytest.raises(StaleLease):
        agent.state.set("s", "k", 1, fence=task)
    assert agent.tasks.result("k") == "first"


def test_a_task_given_back_is_anybody_s_and_its_attempt_does_not_count(agent, client):
    agent.tasks.enqueue("q", 1)
    agent.tasks.claim("q").release()
    task = client("other").tasks.claim("q")
    assert (task.attempt, task.redelivered) == (1, False)


def test_a_failed_task_is_tried_again_later_and_then_given_up(agent, clock):
    agent.tasks.enqueue("q", 1, key="k", retry=Retry(attempts=3, first=10))
    agent.tasks.claim("q").fail("no answer")
    assert agent.tasks.get("k").error.message == "no answer"
    assert agent.tasks.claim("q") is None
    clock.advance(10)
    agent.tasks.claim("q").fail(ValueError("worse"))
    clock.advance(19)
    assert agent.tasks.claim("q") is None
    clock.advance(1)
    last = agent.tasks.claim("q")
    assert last.attempt == 3
    last.fail("again")
    # then it is dead, and listed as that
    assert [(one.id, one.status, one.failures) for one in agent.tasks.dead("q")] == [("k", "dead", 3)]
    with pytest.raises(TaskFailed, match="again") as error:
        agent.tasks.result("k")
    assert error.value.message == "again"
    clock.advance(1e6)
    assert agent.tasks.claim("q") is None
    # until somebody lets it go on
    agent.tasks.retry("k")
    assert agent.tasks.dead("q") == []
    task = agent.tasks.claim("q")
    assert task.attempt == 4
    task.complete("at last")
    assert agent.tasks.result("k") == "at last"


def test_a_failure_may_say_when_to_try_again_or_never(agent, clock):
    agent.tasks.enqueue("q", 1, key="a")
    agent.tasks.claim("q").fail("later", retry_in="1h")
    clock.advance(3599)
    assert agent.tasks.claim("q") is None
    clock.advance(1)
    agent.tasks.claim("q").fail("never", retry=False)
    assert agent.tasks.get("a").status == "dead"


def test_a_task_that_loses_its_holder_again_and_again_is_given_up(agent, clock):
    agent.tasks.enqueue("q", 1, key="poison")
    for n in range(REDELIVERIES + 1):
        task = agent.tasks.claim("q", lease=1)
        assert (task.attempt, task.redelivered) == (n + 1, n > 0)
        clock.advance(2)
    assert agent.tasks.claim("q") is None
    (dead,) = agent.tasks.dead("q")
    assert "kill the process" in dead.error.message
    with pytest.raises(StaleLease):
        task.complete()
    agent.tasks.retry("poison")
    assert agent.tasks.claim("q").redelivered is False


def test_a_holder_that_died_on_this_machine_is_replaced_at_once(agent, client, monkeypatch):
    agent.tasks.enqueue("q", 1)
    gone = {"writer": "ghost", "host": tasks_in_hand.owner("x")["host"], "pid": 2**22 + 1, "started": "1"}
    with monkeypatch.context() as patch:
        patch.setattr("tenuto.capabilities.tasks.queue.owner", lambda writer: gone)
        agent.tasks.claim("q", lease=3600)
    task = client("other").tasks.claim("q")
    assert (task.attempt, task.redelivered) == (2, True)


def test_a_cancelled_task_is_not_done(agent, clock):
    for name, delay in (("ready", None), ("later", "1h"), ("held", None)):
        agent.tasks.enqueue(name, 1, key=name, delay=delay)
    held = agent.tasks.claim("held")
    for name in ("ready", "later", "held"):
        assert agent.tasks.cancel(name)
        assert not agent.tasks.cancel(name)
        assert agent.tasks.get(name).status == "cancelled"
        assert agent.tasks.counts(name) == NOTHING_QUEUED
        with pytest.raises(TaskFailed, match="cancelled"):
            agent.tasks.result(name)
    clock.advance(7200)
    assert [agent.tasks.claim(name) for name in ("ready", "later", "held")] == [None] * 3
    with pytest.raises(StaleLease):
        held.complete("too late")
    agent.tasks.retry("held")
    assert agent.tasks.claim("held").id == "held"
    with pytest.raises(NotFound):
        agent.tasks.cancel("nobody")
    with pytest.raises(InvalidInput, match="only a dead or cancelled"):
        agent.tasks.retry("held")


# -- only idempotency ----------------------------------------------------------------------------------------------


def test_something_is_marked_as_completed_without_a_queue(agent, client):
    assert not agent.tasks.is_completed("task-7")
    assert agent.tasks.mark_completed("task-7", {"n": 1})
    assert client("other").tasks.is_completed("task-7")
    assert not agent.tasks.mark_completed("task-7", {"n": 2})
    assert agent.tasks.result("task-7") == {"n": 1}
    assert agent.tasks.enqueue("q", 1, key="task-7").status == "completed"
    assert agent.tasks.claim("q") is None


def test_a_task_that_is_marked_as_completed_is_not_done_any_more(agent, clock):
    for name in ("waits", "held", "dead"):
        agent.tasks.enqueue(name, 1, key=name)
    held = agent.tasks.claim("held")
    agent.tasks.claim("dead").fail("no", retry=False)
    for name in ("waits", "held", "dead"):
        assert agent.tasks.mark_completed(name, name)
        assert agent.tasks.result(name) == name
        clock.advance(100)
        assert agent.tasks.claim(name) is None
        assert agent.tasks.counts(name) == {"ready": 0, "later": 0, "running": 0, "dead": 0}
    with pytest.raises(StaleLease):
        held.complete("other")


def test_what_is_over_is_kept_as_long_as_was_asked_for(agent, clock):
    agent.tasks.enqueue("q", 1, key="short", keep="1h")
    agent.tasks.enqueue("q", 1, key="long")
    bare = agent.tasks.enqueue("q", 1)
    agent.tasks.mark_completed("mark", keep="1h")
    drained(agent, "q")
    clock.advance(3601)
    assert [agent.tasks.is_completed(one) for one in ("short", "long", bare, "mark")] == [False, True, True, False]
    clock.advance(8 * 86_400)
    assert [agent.tasks.is_completed(one) for one in ("long", bare)] == [True, False]
    with pytest.raises(NotFound, match="ended and expired"):
        agent.tasks.get(bare)


def test_a_result_is_waited_for(agent, clock):
    told = agent.tasks.enqueue("q", 1)
    with pytest.raises(TimedOut):
        agent.tasks.result(told)
    with pytest.raises(TimedOut):
        agent.tasks.result(told, wait=5)
    agent.tasks.claim("q", wait=1).complete("x")
    assert agent.tasks.result(told, wait=5) == "x"
    with pytest.raises(NotFound):
        agent.tasks.result("nobody")
    assert agent.tasks.claim("q", wait=1) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tasks: tasks.enqueue("", 1),
        lambda tasks: tasks.enqueue("q", 1, priority="high"),
        lambda tasks: tasks.enqueue("q", 1, priority=1 << 40),
        lambda tasks: tasks.enqueue("q", 1, delay="soon"),
        lambda tasks: tasks.enqueue("q", 1, key=""),
        lambda tasks: tasks.enqueue("q", 1, user=""),
        lambda tasks: tasks.enqueue("q", 1, retry=3),
        lambda tasks: tasks.enqueue("q", 1, retry=Retry(on=(OSError,))),
        lambda tasks: tasks.claim("q", lease=0),
        lambda tasks: tasks.pending("q", limit=0),
        lambda tasks: tasks.work("q", "no function"),
        lambda tasks: tasks.work("q", print, concurrency=0),
        lambda tasks: tasks.result(7),
    ],
)
def test_a_wrong_argument_is_refused_with_a_sentence(agent, wrong):
    with pytest.raises(InvalidInput) as error:
        wrong(agent.tasks)
    assert str(error.value).endswith(".")
    assert agent.tasks.pending("q") == []


def test_what_has_no_stored_form_is_refused(agent):
    with pytest.raises(NotStorable):
        agent.tasks.enqueue("q", object())
    agent.tasks.enqueue("q", 1)
    task = agent.tasks.claim("q")
    with pytest.raises(NotStorable):
        task.complete(threading.Lock())
    task.complete("plain")


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_worker_does_everything_and_stops_when_there_is_nothing(agent):
    ids = [one.id for one in agent.tasks.enqueue_many("q", range(40))]
    assert work(agent, "q", lambda task: task.payload * 2, concurrency=3, until_empty=True) == 40
    assert [agent.tasks.result(one) for one in ids] == [n * 2 for n in range(40)]


def test_a_worker_takes_no_more_than_it_does_at_once(agent):
    agent.tasks.enqueue_many("q", range(12))
    busy, most, guard = [], [], threading.Lock()

    def handler(task: Any) -> None:
        with guard:
            busy.append(task)
            most.append((len(busy), agent.tasks.counts("q")["running"]))
        time.sleep(0.002)
        with guard:
            busy.remove(task)

    work(agent, "q", handler, concurrency=3, until_empty=True)
    assert max(done for done, _ in most) <= 3
    assert max(held for _, held in most) <= 3


def test_a_handler_that_raises_sends_the_task_back(agent):
    seen = []

    def handler(task):
        seen.append((task.id, task.attempt))
        if task.attempt < 3:
            raise OSError("away")
        return "came"

    agent.tasks.enqueue("q", 1, key="k", retry=Retry(first=0.01))
    work(agent, "q", handler, until_empty=True)
    assert seen == [("k", 1), ("k", 2), ("k", 3)]
    assert agent.tasks.result("k") == "came"


def test_a_handler_may_end_its_task_by_itself(agent):
    def handler(task):
        if task.payload == "fail":
            task.fail("by hand", retry=False)
        else:
            task.complete("by hand")
        return "ignored"

    agent.tasks.enqueue("q", "fail", key="f")
    agent.tasks.enqueue("q", "complete", key="c")
    work(agent, "q", handler, until_empty=True)
    assert agent.tasks.result("c") == "by hand"
    assert agent.tasks.get("f").status == "dead"


def test_a_result_without_a_stored_form_gives_the_task_up(agent):
    agent.tasks.enqueue("q", 1, key="k")
    work(agent, "q", lambda task: threading.Lock(), until_empty=True)
    assert agent.tasks.get("k").error.type == "NotStorable"


def test_a_handler_s_writes_carry_the_correlation_id_of_whoever_enqueued(agent):
    with agent.correlation("req-1"):
        agent.tasks.enqueue("q", 1)
    work(agent, "q", lambda task: agent.state.set("s", "k", 1) and None, until_empty=True, concurrency=1)
    assert agent.state.entry("s", "k").correlation_id == "req-1"


def test_a_stopped_worker_ends_what_it_has_in_hand(agent):
    agent.tasks.enqueue_many("q", range(5))
    stop, seen = threading.Event(), []

    def handler(task):
        seen.append(task.id)
        stop.set()
        return "whole"

    work(agent, "q", handler, concurrency=1, stop=stop)
    assert [agent.tasks.result(one) for one in seen] == ["whole"]
    assert agent.tasks.counts("q") == {"ready": 4, "later": 0, "running": 0, "dead": 0}


def test_a_worker_may_be_idle_for_long(agent, clock):
    # given a worker that looks in vain for a day; by a held clock each pause passes at once
    looks, stop = [], threading.Event()
    shelf = agent.tasks._queue("q")
    honest = shelf.take

    def take(*args, **options):
        looks.append(clock.time())
        if len(looks) == 3_000:
            agent.tasks.enqueue("q", 1)
        return honest(*args, **options)

    shelf.take = take
    assert agent.tasks.work("q", lambda task: stop.set(), concurrency=1, stop=stop) == 1
    # then it did not look more often than it was told to
    assert looks[2_900] - looks[100] > 2_800 * 0.05 * 0.99


def test_a_task_that_is_cancelled_while_it_runs_leaves_no_result(agent):
    agent.tasks.enqueue("q", 1, key="k")
    stop, counts = threading.Event(), []

    def handler(task):
        agent.tasks.cancel(task.id)
        counts.append(agent.tasks.counts("q"))
        stop.set()  # not `until_empty`: a place that stayed would keep the worker for ever
        return "too late"

    work(agent, "q", handler, stop=stop)
    assert counts == [NOTHING_QUEUED]
    assert agent.tasks.get("k").status == "cancelled"
    assert agent.tasks.counts("q") == NOTHING_QUEUED


def test_a_task_whose_run_waits_comes_again(agent, clock):
    def handler(task):
        with agent.run(task.id) as run:
            run.sleep("1h")
            return "awake"

    agent.tasks.enqueue("q", 1, key="k")
    stop = threading.Event()

    def once(task):
        stop.set()
        return handler(task)

    work(agent, "q", once, concurrency=1, stop=stop)
    told = agent.tasks.get("k")
    assert (told.status, told.attempts) == ("waiting", 0)
    assert 3590 < told.due.timestamp() - clock.time() <= 3600
    clock.advance(3600)
    work(agent, "q", handler, until_empty=True, concurrency=1)
    assert agent.tasks.result("k") == "awake"


def test_a_place_without_a_task_is_put_in_order(agent):
    told = agent.tasks.enqueue("q", 1)
    agent.kernel.commit([], [records.Delete(records.task_key(told.id))])
    assert agent.tasks.claim("q") is None
    assert agent.tasks.counts("q")["ready"] == 0


def test_tenants_have_queues_of_their_own(agent):
    agent.tasks.enqueue("q", 1, key="k")
    other = agent.for_tenant("acme")
    assert other.tasks.claim("q") is None
    assert not other.tasks.is_completed("k")


def test_a_failed_task_shows_the_end_of_its_traceback_and_logs_it(agent, caplog):
    def handler(_):
        raise ValueError("x" * 90 + "\n" + "y\n" * 5_000 + "the cause")

    agent.tasks.enqueue("q", key="t", retry=Retry(attempts=1))
    agent.tasks.work("q", handler, until_empty=True, concurrency=1)
    found = agent.tasks.get("t")
    assert len(found.traceback) <= 4_200
    assert found.traceback.rstrip().endswith("the cause")
    assert any(record.exc_info for record in caplog.records)
    agent.tasks.enqueue("q", key="u", retry=Retry(attempts=1))
    agent.tasks.work("q", lambda task: int("no number"), until_empty=True, concurrency=1)
    assert "in <lambda>" in agent.tasks.get("u").traceback
