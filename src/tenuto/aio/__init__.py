"""The async API: the same names as the blocking one, awaited. One file per capability."""

from tenuto.aio.checkpoints import AsyncCheckpoints, AsyncSaver
from tenuto.aio.client import AsyncTenuto
from tenuto.aio.leases import AsyncLease
from tenuto.aio.people import AsyncInbox, AsyncMilestones, AsyncNotify, AsyncRoutes
from tenuto.aio.runs import AsyncDurable, AsyncRun, AsyncRuns, AsyncRunState, AsyncRunThread
from tenuto.aio.sessions import AsyncHandoff, AsyncHandoffs, AsyncProgress, AsyncSession
from tenuto.aio.state import AsyncScopeView, AsyncState, AsyncTransaction
from tenuto.aio.store import AsyncKernel, AsyncStore
from tenuto.aio.tasks import AsyncTask, AsyncTasks
from tenuto.aio.threads import AsyncThread, AsyncThreads
from tenuto.aio.workflows import AsyncWorkflow, AsyncWorkflows

__all__ = [
    "AsyncCheckpoints",
    "AsyncDurable",
    "AsyncHandoff",
    "AsyncHandoffs",
    "AsyncInbox",
    "AsyncKernel",
    "AsyncLease",
    "AsyncMilestones",
    "AsyncNotify",
    "AsyncProgress",
    "AsyncRoutes",
    "AsyncRun",
    "AsyncRunState",
    "AsyncRunThread",
    "AsyncRuns",
    "AsyncSaver",
    "AsyncScopeView",
    "AsyncSession",
    "AsyncState",
    "AsyncStore",
    "AsyncTask",
    "AsyncTasks",
    "AsyncTenuto",
    "AsyncThread",
    "AsyncThreads",
    "AsyncTransaction",
    "AsyncWorkflow",
    "AsyncWorkflows",
]
