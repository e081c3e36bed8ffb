"""Every list takes `limit` and `after`: pages of two together are the whole list."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import InvalidInput, NotFound, Tenuto, Waiting
from tenuto.operations import OPERATIONS

IDS = ["a", "b", "c", "d", "e"]
LISTS: dict[str, Callable[[Tenuto], Callable[..., list[Any]]]] = {
    "runs": lambda agent: agent.runs.list,
    "threads": lambda agent: agent.threads.list,
    "workflows": lambda agent: agent.workflows.list,
    "checkpoints": lambda agent: agent.checkpoint.list,
    "inbox": lambda agent: agent.inbox.list,
    "pending": lambda agent: lambda **given: agent.tasks.pending("q", **given),
    "running": lambda agent: lambda **given: agent.tasks.running("held", **given),
    "dead": lambda agent: lambda **given: agent.tasks.dead("dead", **given),
    "memory": lambda agent: agent.memory.list,
}
BY_POSITION = {"checkpoints", "inbox", "pending", "running", "dead"}
"""Lists whose order is not that of their ids."""


@pytest.fixture
def filled(agent: Tenuto) -> Tenuto:
    for one in IDS:
        with agent.run(one) as run:
            run.step("s", str, 1)
        agent.thread(one).append({"role": "user", "content": "hi"})
        agent.workflows.create(one, [{"step": 1, "action": "x"}])
        agent.checkpoint.create(one, {"n": one})
        with pytest.raises(Waiting), agent.run(f"asks-{one}") as run:
            run.ask(one)
        agent.tasks.enqueue("q", one, delay="1h" if one in "de" else None)
        agent.tasks.enqueue("held", one)
        agent.tasks.claim("held")
        agent.tasks.enqueue("dead", one)
        claimed = agent.tasks.claim("dead")
        assert claimed is not None
        claimed.fail("no", retry=False)
        agent.memory.remember(f"fact {one}")
    return agent


def name_of(row: Any) -> str:
    return str(row.name if type(row).__name__ == "Workflow" else row.id)


@pytest.mark.parametrize("which", LISTS)
def test_pages_together_are_the_whole_list(filled: Tenuto, which: str) -> None:
    listed = LISTS[which](filled)
    whole = [name_of(row) for row in listed()]
    assert len(whole) >= len(IDS)
    found: list[str] = []
    while page := listed(limit=2, after=found[-1] if found else None):
        assert len(page) <= 2
        found += [name_of(row) for row in page]
    assert found == whole
    with pytest.raises(InvalidInput, match="limit must be at least 1"):
        listed(limit=0)
    if which in BY_POSITION:
        with pytest.raises(NotFound, match="no 'other' in this list"):
            listed(after="other")


def test_views_have_aware_times(filled: Tenuto) -> None:
    for row in (filled.tasks.dead("dead")[0], filled.workflows.list()[0].info(), filled.runs.list()[0]):
        for at in (row.created_at, row.updated_at):
            assert isinstance(at, datetime)
            assert at.tzinfo is UTC
    assert filled.checkpoint.list()[0].created_at.tzinfo is UTC
    assert filled.threads.list()[0].created_at.tzinfo is UTC
    assert filled.tasks.dead("dead")[0].finished_at is not None


def test_every_list_of_the_command_line_has_both_options() -> None:
    lists = [
        one for one in OPERATIONS.values() if one.name.endswith(" list") and one.name != "alerts list"
    ]  # a handful of rules
    assert len(lists) >= 8
    for one in lists:
        assert {"limit", "after"} <= {parameter.name for parameter in one.parameters}, one.name
