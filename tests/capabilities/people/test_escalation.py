"""Deadlines and escalation: each timer once, nobody passed over, business hours by a calendar."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.long import size

from tenuto import Calendar, InvalidInput, Rung, Tenuto

HOUR = 3_600


def whats(agent: Tenuto, question_id: str) -> list[str]:
    return [one.what for one in agent.inbox.history(question_id)]


def test_a_question_climbs_and_warns_until_everyone_had_their_time(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to="ann", deadline="10h", escalate=["lead", "cfo"], on_timeout="deny")
    seen = []
    for _ in range(61):
        while agent.inbox.fire():
            pass
        found = agent.inbox.get(asked.id)
        seen.append((found.level, found.status))
        clock.advance(HOUR / 2)
    assert whats(agent, asked.id) == ["asked", *["warned", "warned", "escalated"] * 2, "warned", "warned", "expired"]
    assert [seen[at] for at in (19, 20, 39, 40, 59, 60)] == [
        (0, "pending"), (1, "pending"), (1, "pending"), (2, "pending"), (2, "pending"), (2, "expired"),
    ]  # fmt: skip
    assert agent.inbox.get(asked.id).assignees == ["ann", "lead", "cfo"]
    shares = [one.details["share"] for one in agent.inbox.history(asked.id) if one.what == "warned"]
    assert shares == [50, 90] * 3


def test_acknowledging_stops_the_climb_but_not_the_end(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to="ann", deadline="10h", escalate=["lead"], on_timeout="fail")
    assert agent.inbox.acknowledge(asked.id, by="ann").status == "acknowledged"
    assert [one.id for one in agent.inbox.list()] == [asked.id], "it still has no answer"
    clock.advance(11 * HOUR)
    assert agent.inbox.fire() == 0
    clock.advance(10 * HOUR)
    assert agent.inbox.fire() == 1
    assert agent.inbox.get(asked.id).status == "expired"


def test_after_downtime_the_next_person_still_gets_their_time(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to="ann", deadline="10h", escalate=["lead"], on_timeout="deny")
    clock.advance(100 * HOUR)  # no worker
    assert [agent.inbox.fire(), agent.inbox.fire()] == [1, 0]
    found = agent.inbox.get(asked.id)
    assert (found.status, found.level) == ("pending", 1)
    assert found.expires_at == datetime.fromtimestamp(clock.time(), UTC) + timedelta(hours=10)
    clock.advance(10 * HOUR)
    agent.inbox.fire()
    assert agent.inbox.get(asked.id).status == "expired"


def test_levels_may_have_times_and_reminders_of_their_own(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to="ann", escalate=[("4h", "lead"), Rung("cfo", "8h", repeat="1h")])
    for _ in range(113):
        clock.advance(HOUR / 10)
        agent.inbox.fire()
    assert whats(agent, asked.id) == ["asked", *["warned", "warned", "escalated"] * 2, *["reminded"] * 3]
    assert agent.inbox.get(asked.id).status == "pending"
    agent.inbox.answer(asked.id, "yes", by="cfo")
    clock.advance(HOUR)
    assert agent.inbox.fire() == 0


def test_reminders_continue_after_a_warning_and_the_end_of_the_deadline(agent: Tenuto, clock: Any) -> None:
    # The first reminder is due together with the warning at 50 %, the second one with the end.
    asked = agent.ask("Pay?", to="ann", deadline="48h", escalate=[Rung("lead", "24h", repeat="12h")])
    for _ in range(9):
        clock.advance(12 * HOUR)
        while agent.inbox.fire():
            pass
    told = [(one.at - asked.asked_at, one.what) for one in agent.inbox.history(asked.id)][3:]
    assert told == [
        (timedelta(hours=36), "warned"), (timedelta(hours=48), "overdue"),
        *[(timedelta(hours=at), "reminded") for at in (60, 72, 84, 96, 108)],
    ]  # fmt: skip


def test_a_wait_is_overdue_once(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to="ann", deadline="1h")
    clock.advance(2 * HOUR)
    assert [agent.inbox.fire(), agent.inbox.fire()] == [1, 0]
    assert whats(agent, asked.id) == ["asked", "overdue"]


def test_business_hours_are_counted_by_the_calendar(agent: Tenuto, clock: Any) -> None:
    berlin = Calendar(opens="09:00", closes="17:00", timezone="Europe/Berlin", holidays=["2030-01-07"])
    friday = datetime(2030, 1, 4, 14, tzinfo=UTC)  # 15:00 in Berlin
    clock.advance(friday.timestamp() - clock.time())
    asked = agent.ask("Pay?", to="ann", deadline="8h", escalate=["lead"], on_timeout="deny", calendar=berlin)
    assert asked.deadline == datetime(2030, 1, 8, 14, tzinfo=UTC), "2 h on Friday, Monday is free, 6 h on Tuesday"
    assert asked.expires_at == datetime(2030, 1, 9, 14, tzinfo=UTC)
    summer = berlin.add(datetime(2030, 3, 29, 15, tzinfo=UTC), timedelta(hours=1))  # the clocks change on Sunday
    assert summer == datetime(2030, 3, 29, 16, tzinfo=UTC)
    assert berlin.add(datetime(2030, 3, 29, 15, 30, tzinfo=UTC), timedelta(hours=1)) == datetime(
        2030, 4, 1, 7, 30, tzinfo=UTC
    )
    for wrong in (
        {"days": ["someday"]},
        {"opens": "18:00"},
        {"timezone": "Nowhere/None"},
        {"holidays": ["soon"]},
        {"holidays": [7]},
        {"holidays": 7},
        {"days": 7},
        {"opens": 9},
        {"opens": "09:00+02:00"},
        {"timezone": 5},
    ):
        with pytest.raises(InvalidInput):
            Calendar(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no working time"):
        Calendar(days=["mon"], holidays=[f"20{y}-{m:02}-{d:02}" for y in range(30, 51) for m in range(1, 13) for d in range(1, 29)] + [
            (datetime(2030, 1, 1) + timedelta(days=n)).date().isoformat() for n in range(8_000)]).add(friday, timedelta(hours=1))  # fmt: skip


def test_people_are_warned_in_business_hours_and_get_their_hours_also_after_downtime(agent: Tenuto, clock: Any) -> None:
    hours = Calendar(opens="09:00", closes="17:00")
    friday = datetime(2030, 1, 4, 15, tzinfo=UTC)
    clock.advance(friday.timestamp() - clock.time())
    asked = agent.ask("Pay?", to="ann", deadline="8h", escalate=["lead"], on_timeout="deny", calendar=hours)
    monday = datetime(2030, 1, 7, 15, tzinfo=UTC)
    planned = [(one.kind, datetime.fromtimestamp(round(one.at), UTC)) for one in asked.timers]
    assert planned[:3] == [
        ("warn", monday.replace(hour=11)), ("warn", monday.replace(hour=14, minute=12)), ("escalate", monday),
    ], "not on Sunday"  # fmt: skip
    assert asked.expires_at == monday + timedelta(days=1)
    clock.advance((monday + timedelta(days=1, hours=1, minutes=30)).timestamp() - clock.time())  # Tuesday, 16:30
    agent.inbox.fire()
    late = agent.inbox.get(asked.id)
    assert (late.level, late.levels[1].at) == (1, monday + timedelta(days=1, hours=1, minutes=30))
    assert late.expires_at == monday + timedelta(days=2, hours=1, minutes=30), "8 business hours later"


def test_an_own_calendar_counts_too_and_a_wrong_one_is_refused(agent: Tenuto, clock: Any) -> None:
    class Double:
        """Only every second hour counts."""

        def add(self, start: datetime, length: timedelta) -> datetime:
            return start + 2 * length

    asked = agent.ask("Pay?", to="ann", deadline="1h", calendar=Double())
    assert asked.deadline == asked.asked_at + timedelta(hours=2)
    assert round(asked.timers[0].at - clock.time()) == HOUR
    wrong: Any
    for wrong in ("office", Calendar, set()):
        with pytest.raises(InvalidInput, match="calendar must be"):
            agent.ask("Pay?", to="ann", deadline="1h", calendar=wrong)


@pytest.mark.races
def test_replicas_fire_each_deadline_once(agent: Tenuto, client: Callable[..., Tenuto], clock: Any) -> None:
    count, replicas = size(20, 200), [client(f"r{n}") for n in range(size(4, 10))]
    asked = [agent.ask(f"Pay {n}?", to="ann", deadline="24h", escalate=["lead"]) for n in range(count)]
    clock.advance(25 * HOUR)

    def work(replica: Tenuto) -> int:
        done = 0
        while True:
            fired = replica.inbox.fire(limit=50)
            done += fired
            if not fired and all(one.level for one in replica.inbox.list()):
                return done

    with ThreadPoolExecutor(len(replicas)) as pool:
        assert sum(pool.map(work, replicas)) == count
    assert all(whats(agent, one.id) == ["asked", "escalated"] for one in asked)
