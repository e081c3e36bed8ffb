"""The async API of playbooks."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.aio.workflows import AsyncWorkflow
from tenuto.capabilities.playbooks import Playbooks


class AsyncPlaybooks(Mirror[Playbooks]):
    """`Playbooks`, awaited."""

    save = awaitable(Playbooks.save)
    get = awaitable(Playbooks.get)
    finish = awaitable(Playbooks.finish)
    suggest = awaitable(Playbooks.suggest)
    case = awaitable(Playbooks.case)
    cases = awaitable(Playbooks.cases)
    list = awaitable(Playbooks.list)
    _start = awaitable(Playbooks.start)

    async def start(
        self, name: str, as_: str, *, situation: str = "", user: str | None = None, version: int | None = None
    ) -> AsyncWorkflow:
        """Create a workflow from a playbook, durably, and record the case; see `Playbooks.start`."""
        workflow = await self._start(name, as_, situation=situation, user=user, version=version)
        return AsyncWorkflow(workflow, self._pools)
