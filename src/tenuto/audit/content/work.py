"""Work: checkpoints too large, runs in doubt or stuck, questions overdue, tasks dead, notifications given up, lost context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from tenuto.audit.findings import Item
from tenuto.capabilities.tasks import dead_tasks
from tenuto.client import Tenuto

CODES: Final = ("T106", "T110", "T111", "T112", "T113", "T114", "T115")
_LARGE: Final = 1024 * 1024
_LONG: Final = 10_000
_THREADS: Final = 200
"""Conversations that are looked at for lost context: the newest."""
_MESSAGES: Final = 400
_LATE: Final = 60.0
Found = tuple[str, list[Item], int]


def examined(agent: Tenuto, wanted: Callable[[str], bool]) -> dict[str, Found]:
    """Return for each code what was looked at, the first items and the count."""
    checks: dict[str, Callable[[Tenuto], tuple[str, Iterator[Item]]]] = {
        "T106": _large,
        "T110": _in_doubt,
        "T111": _stuck,
        "T112": _overdue,
        "T113": _dead,
        "T114": _lost_context,
        "T115": _given_up,
    }
    found: dict[str, Found] = {}
    for code, check in checks.items():
        if wanted(code):
            looked_at, items = check(agent)
            every = list(items)
            found[code] = (looked_at, every[:100], len(every))
    return found


def _large(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    checkpoints = agent.checkpoint.list(limit=10_000)
    threads = agent.threads.list(limit=10_000)

    def items() -> Iterator[Item]:
        for one in checkpoints:
            if one.size > _LARGE:
                yield Item(one.id, "checkpoint", f"{one.size / _LARGE:.1f} MB of state in {one.thread or one.name}")
        for thread in threads:
            count = agent.thread(thread.id).count()
            if count > _LONG:
                yield Item(thread.id, "thread", f"{count:,} messages")

    return f"{len(checkpoints):,} checkpoints and {len(threads):,} conversations", items()


def _in_doubt(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    runs = agent.runs.list(limit=100_000)
    return f"{len(runs):,} runs", (Item(one.id, "run", "in doubt") for one in runs if one.status == "in_doubt")


def _stuck(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    runs = agent.runs.list("interrupted", limit=100_000)
    late = agent.runs._overdue(_LATE)

    def items() -> Iterator[Item]:
        yield from (Item(one.id, "run", "interrupted, and not resumed") for one in runs)
        yield from (Item(one.id, "run", "due for over a minute, and not resumed") for one in late)

    return "Interrupted and due runs", items()


def _overdue(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    now = datetime.fromtimestamp(agent.kernel.now(), UTC)
    asked = agent.inbox.list(limit=100_000)
    late = (one for one in asked if one.deadline is not None and one.deadline < now)
    return f"{len(asked):,} open questions", (
        Item(one.id, "question", f"due {one.deadline:%Y-%m-%d %H:%M} UTC, to {one.to}: {one.text[:80]}") for one in late
    )


def _dead(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    found = dead_tasks(agent.kernel)
    return "Tasks of all queues", (
        Item(task_id, "task", f"in queue {one.queue!r}, after {one.attempts} attempts") for task_id, one in found
    )


def _lost_context(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    threads = sorted(agent.threads.list(limit=100_000), key=lambda one: one.created_at, reverse=True)[:_THREADS]

    def items() -> Iterator[Item]:
        for one in threads:
            if agent.thread(one.id).count() <= _MESSAGES:
                for sign in agent.guard(one.id, user=one.user).scan():
                    kind = sign.kind.replace("_", " ")
                    yield Item(
                        one.id, "thread", f"{kind} in message {sign.message}: {sign.text[:60]} ({sign.evidence[:80]})"
                    )

    return f"The newest {len(threads)} conversations of up to {_MESSAGES} messages", items()


def _given_up(agent: Tenuto) -> tuple[str, Iterator[Item]]:
    return "The notification outbox", (
        Item(one.id, "notification", f"to {one.name} after {one.attempts} attempts: {one.error}")
        for one in agent.notify.dead()
    )
