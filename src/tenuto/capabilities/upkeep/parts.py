"""The capabilities of one client on which upkeep works."""

from __future__ import annotations

from typing import Protocol

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities.alerts import Alerts
from tenuto.capabilities.archive import TenantArchive
from tenuto.capabilities.checkpoints import Checkpoints
from tenuto.capabilities.memory import Memories
from tenuto.capabilities.people import Inbox, Milestones, Notify
from tenuto.capabilities.runs import Runs
from tenuto.capabilities.store import Store
from tenuto.capabilities.tasks import Tasks
from tenuto.capabilities.threads import Threads
from tenuto.capabilities.workflows import Workflows


class Parts(Protocol):
    """A client."""

    _archive: TenantArchive
    _context: Context
    _retention: Retention | None
    store: Store
    runs: Runs
    tasks: Tasks
    checkpoint: Checkpoints
    threads: Threads
    memory: Memories
    workflows: Workflows
    inbox: Inbox
    milestones: Milestones
    notify: Notify
    alerts: Alerts
