"""Recurring tasks: each of their times once, however many replicas there are, and a rule for those that were missed."""

import threading
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tenuto import InvalidInput
from tenuto.capabilities._core.cron import cron, every
from tenuto.capabilities.tasks import recurring
from tenuto.kernel.durations import moment
from tenuto.kernel.work import perform


def at(*parts, zone="UTC"):
    return datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp()


def told(expression, begun, count, zone="UTC"):
    times, now, one = [], begun, cron(expression, zone)
    for _ in range(count):
        now = one.after(now)
        times.append(datetime.fromtimestamp(now, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M %z"))
    return times


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("* * * * *", ["2026-01-30 10:08", "2026-01-30 10:09"]),
        ("*/15 * * * *", ["2026-01-30 10:15", "2026-01-30 10:30"]),
        ("5-59/20 9,17 * * *", ["2026-01-30 17:05", "2026-01-30 17:25"]),
        ("0 9 * * mon-fri", ["2026-02-02 09:00", "2026-02-03 09:00"]),
        ("0 9 * * 7", ["2026-02-01 09:00", "2026-02-08 09:00"]),
        ("30 4 29 2 *", ["2028-02-29 04:30", "2032-02-29 04:30"]),
        ("0 0 1 jan,jul *", ["2026-07-01 00:00", "2027-01-01 00:00"]),
        ("0 0 13 * fri", ["2026-02-06 00:00", "2026-02-13 00:00"]),
        ("@hourly", ["2026-01-30 11:00", "2026-01-30 12:00"]),
        ("@weekly", ["2026-02-01 00:00", "2026-02-08 00:00"]),
        ("0 12 31 * *", ["2026-01-31 12:00", "2026-03-31 12:00"]),
    ],
)
def test_a_cron_expression_has_its_times(expression, first):
    assert [one[:16] for one in told(expression, at(2026, 1, 30, 10, 7, 31), 2)] == first


def test_a_time_that_the_clocks_leave_out_comes_when_they_have_gone_forward():
    begun = at(2026, 3, 28, 12, zone="Europe/Lisbon")
    assert told("30 1 * * *", begun, 2, "Europe/Lisbon") == ["2026-03-29 02:30 +0100", "2026-03-30 01:30 +0100"]


def test_a_change_by_half_an_hour_does_not_delay_the_times_after_it():
    # On this day the clocks of Lord Howe Island go back from 02:00 +11:00 to 01:30 +10:30.
    night = datetime(2026, 4, 5, 1, 31, tzinfo=ZoneInfo("Australia/Lord_Howe"), fold=1)
    found = moment(cron("* 20 * * *", "Australia/Lord_Howe").after(night.timestamp()))
    assert found.astimezone(night.tzinfo).isoformat() == "2026-04-05T20:00:00+10:30"


def test_a_rare_day_is_found_however_many_years_away():
    start = datetime(2074, 1, 1, tzinfo=UTC).timestamp()
    assert moment(cron("0 0 29 2 */7").after(start)).isoformat() == "2088-02-29T00:00:00+00:00"  # a Sunday
    assert moment(cron("0 0 */7 1 */10").after(datetime(2024, 1, 1, tzinfo=UTC).timestamp())).year == 2034


def test_a_time_that_the_clocks_repeat_comes_once_unless_every_hour_is_meant():
    begun = at(2026, 10, 25, 0, 15, zone="Europe/Lisbon")
    assert told("30 1 * * *", begun, 2, "Europe/Lisbon") == ["2026-10-25 01:30 +0100", "2026-10-26 01:30 +0000"]
    assert [one[11:] for one in told("0 * * * *", begun, 3, "Europe/Lisbon")] == [
        "01:00 +0100",
        "01:00 +0000",
        "02:00 +0000",
    ]


@pytest.mark.parametrize(
    "wrong",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "*/0 * * * *", "5-1 * * * *", "*-5 * * * *", "0 0 30 2 *", 7],
)  # fmt: skip
def test_a_wrong_expression_is_refused_with_a_sentence(wrong):
    with pytest.raises(InvalidInput) as error:
        cron(wrong)
    assert str(error.value).endswith(".")


def test_a_wrong_zone_or_interval_is_refused():
    with pytest.raises(InvalidInput, match="time zone"):
        cron("* * * * *", "Mars/Olympus")
    with pytest.raises(InvalidInput, match="at least 1 s"):
        every("1ms", 0.0)


def test_an_interval_keeps_its_step():
    one = every("10m", 1_000.0)
    assert [one.after(now) for now in (0.0, 1_000.0, 1_599.0, 1_600.0, 9_999.0)] == [1600, 1600, 1600, 2200, 10000]


# -- in a queue ----------------------------------------------------------------------------------------------------


def names(tasks):
    return [one.id.rpartition("@")[2] for one in tasks]


def test_a_recurring_task_comes_at_each_of_its_times(agent, clock):
    # given a task that recurs every ten minutes
    clock.advance(at(2027, 3, 1, 12, 5) - clock.time())
    first = agent.tasks.every("sweep", "chores", {"deep": True}, cron="*/10 * * * *")
    assert first.next == datetime(2027, 3, 1, 12, 10, tzinfo=UTC)
    assert agent.tasks.claim("chores") is None
    # when its times come, then it is there, once each
    for minute in (10, 20, 30):
        clock.advance(at(2027, 3, 1, 12, minute) - clock.time())
        task = agent.tasks.claim("chores")
        assert (task.id, task.payload) == (f"chores/sweep@2027-03-01T12:{minute}:00Z", {"deep": True})
        task.complete()
        assert agent.tasks.claim("chores") is None
    (info,) = agent.tasks.recurring("chores")
    assert (info.fired, info.last.minute, info.next.minute) == (3, 30, 40)
    # declaring it again changes nothing, another payload is taken up, another time begins anew
    assert agent.tasks.every("sweep", "chores", {"deep": True}, cron="*/10 * * * *") == info
    assert agent.tasks.every("sweep", "chores", {"deep": False}, cron="*/10 * * * *").next == info.next
    assert agent.tasks.every("sweep", "chores", {"deep": False}, interval="1h").next.hour == 13
    assert agent.tasks.stop_recurring("sweep", "chores")
    assert not agent.tasks.stop_recurring("sweep", "chores")
    clock.advance(86_400)
    assert agent.tasks.claim("chores") is None


@pytest.mark.races
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["13:10"]),
        ("all", ["12:20", "12:30", "12:40", "12:50", "13:00", "13:10"]),
        ("skip", []),
    ],
)
def test_three_replicas_fire_each_time_once_and_make_up_for_an_hour_as_the_rule_says(
    agent, client, clock, missed, expected
):
    # given three replicas which declare the same task, each for itself
    clock.advance(at(2027, 3, 1, 12, 5) - clock.time())
    replicas = [client(f"replica-{n}") for n in range(3)]
    for replica in replicas:
        replica.tasks.every("report", "chores", cron="*/10 * * * *", missed=missed)

    def fire():
        """All three see at the same moment that it is time."""
        gate = threading.Barrier(3)
        work = [threading.Thread(target=lambda one=one: (gate.wait(), one.tasks.fire("chores"))) for one in replicas]
        [one.start() for one in work]
        [one.join() for one in work]
        return [one.id[-6:-4] and one.id[-9:-4] for one in agent.tasks.pending("chores")]

    def drain():
        while (task := agent.tasks.claim("chores")) is not None:
            task.complete()

    # when a time comes, it is fired once
    clock.advance(at(2027, 3, 1, 12, 10, 1) - clock.time())
    assert fire() == ["12:10"]
    drain()
    # and after more than an hour in which nobody was there, as the rule says
    clock.advance(at(2027, 3, 1, 13, 15) - clock.time())
    assert sorted(fire()) == expected
    drain()
    assert fire() == []
    # and the next one is on time again
    clock.advance(at(2027, 3, 1, 13, 20, 5) - clock.time())
    assert fire() == ["13:20"]
    (info,) = agent.tasks.recurring("chores")
    assert info.fired == 2 + len(expected)


def test_a_worker_fires_what_recurs(agent, clock):
    agent.tasks.every("tick", "chores", "x", interval="10s", missed="all")
    clock.advance(35)
    stop, seen = threading.Event(), []

    def handler(task):
        seen.append(task.payload)
        if len(seen) == 3:
            stop.set()

    agent.tasks.work("chores", handler, concurrency=1, lease="1000h", stop=stop)
    assert seen == ["x"] * 3


def test_a_time_within_grace_is_not_missed(agent, clock):
    agent.tasks.every("tick", "chores", interval="1h", missed="skip", grace="5m")
    clock.advance(3600 + 299)
    assert agent.tasks.fire("chores") == 1
    clock.advance(3600 + 2)
    assert agent.tasks.fire("chores") == 0


def test_thousands_of_missed_times_are_made_up_for_in_pieces(agent, clock):
    agent.tasks.every("tick", "chores", interval="1m", missed="all", keep="1h")
    agent.tasks.every("rare", "chores", interval="1m", missed="once")
    clock.advance(60 * 450 + 1)
    assert agent.tasks.fire("chores") == 451
    assert agent.tasks.counts("chores")["ready"] == 451


def test_a_schedule_made_again_does_not_fire_a_time_twice(agent, clock):
    clock.advance(at(2027, 3, 1, 12, 5) - clock.time())
    agent.tasks.every("tick", "chores", cron="*/10 * * * *")
    clock.advance(300)
    assert agent.tasks.fire("chores") == 1
    agent.tasks.stop_recurring("tick", "chores")
    clock.advance(-200)
    agent.tasks.every("tick", "chores", cron="*/10 * * * *")
    clock.advance(200)
    agent.tasks.fire("chores")
    assert agent.tasks.counts("chores")["ready"] == 1


def test_a_recurring_task_is_declared_rightly(agent):
    for wrong in ({}, {"cron": "* * * * *", "interval": 5}, {"interval": 0}, {"interval": 5, "missed": "never"}):
        with pytest.raises(InvalidInput):
            agent.tasks.every("tick", "chores", **wrong)
    assert agent.tasks.recurring("chores") == []


def test_a_replica_that_was_slower_fires_nothing(agent, client, clock):
    # given a replica that has read that it is time, and another one that is faster, and works on it at once
    agent.tasks.every("tick", "chores", "x", interval="1m")
    clock.advance(61)
    slow, fast = client("slow"), client("fast")

    def faster():
        assert fast.tasks.fire("chores") == 1
        fast.tasks.claim("chores").complete("done")

    class Slow:
        def __getattr__(self, name):
            return getattr(slow.kernel, name)

        def scan(self, *args, **options):
            found = slow.kernel.scan(*args, **options)
            if fast.tasks.recurring("chores")[0].fired == 0:
                faster()
            return found

    # then it fires nothing, and what was done stays done
    assert perform(recurring.fire(slow._context._replace(kernel=Slow()), "chores"), clock) == 0
    (info,) = agent.tasks.recurring("chores")
    assert info.fired == 1
    assert agent.tasks.claim("chores") is None
