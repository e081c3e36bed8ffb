"""A worker whose lease ran out while it worked: it ends its task, or learns that it lost it; it never takes itself over."""

from collections.abc import Callable

import pytest

from tenuto import Retry, Task, Tenuto
from tenuto.testing import HeldClock


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_stood_still_past_its_lease_ends_its_task(
    client: Callable[..., Tenuto], clock: HeldClock, fails: bool
) -> None:
    agent = client()
    for key in ("slow", "next"):
        agent.tasks.enqueue("q", key, key=key, retry=Retry(attempts=1))
    done = []

    def handler(task: Task) -> None:
        clock.advance(60)  # nobody extended the lease meanwhile, and nobody took the task
        done.append(task.id)
        if fails:
            raise ValueError("no")

    agent.tasks.work("q", handler, concurrency=1, lease=30, until_empty=True)
    assert done == ["slow", "next"]
    assert {agent.tasks.get(key).status for key in done} == {"dead" if fails else "completed"}
    assert agent.store.check().ok
