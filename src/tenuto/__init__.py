"""tenuto holds an agent's state, so that the agent can be killed at any line and carries on from there."""

from typing import TYPE_CHECKING, Any

from tenuto.capabilities.arguments import secret
from tenuto.capabilities.checkpoints import Restored
from tenuto.capabilities.lineage import Checkpoint
from tenuto.capabilities.questions import Happened, NotHappened, Question, Unknown
from tenuto.capabilities.retention import Retention
from tenuto.capabilities.run import Run, current_run
from tenuto.capabilities.stepping import Intent, Retry, idempotency_key
from tenuto.capabilities.task import Task
from tenuto.capabilities.taskbook import TaskInfo
from tenuto.client import Tenuto
from tenuto.errors import (
    AmbiguousStep,
    Cancelled,
    Closed,
    Conflict,
    Damaged,
    InDoubt,
    InvalidInput,
    LeaseHeld,
    MissingDriver,
    NewerFormat,
    NotFound,
    NotStorable,
    Paused,
    ReadOnly,
    RequestExpired,
    RequestReused,
    RunBusy,
    StaleLease,
    StateConflict,
    StepFailed,
    StepMismatch,
    StorageFull,
    StorageUnavailable,
    TaskFailed,
    TenutoError,
    TimedOut,
    TooLarge,
    UnknownType,
    Waiting,
)
from tenuto.kernel.codec import register

if TYPE_CHECKING:
    from tenuto._aio_runs import AsyncRun
    from tenuto.aio import AsyncTenuto

__all__ = [
    "AmbiguousStep",
    "AsyncRun",
    "AsyncTenuto",
    "Cancelled",
    "Checkpoint",
    "Closed",
    "Conflict",
    "Damaged",
    "Happened",
    "InDoubt",
    "Intent",
    "InvalidInput",
    "LeaseHeld",
    "MissingDriver",
    "NewerFormat",
    "NotFound",
    "NotHappened",
    "NotStorable",
    "Paused",
    "Question",
    "ReadOnly",
    "RequestExpired",
    "RequestReused",
    "Restored",
    "Retention",
    "Retry",
    "Run",
    "RunBusy",
    "StaleLease",
    "StateConflict",
    "StepFailed",
    "StepMismatch",
    "StorageFull",
    "StorageUnavailable",
    "Task",
    "TaskFailed",
    "TaskInfo",
    "Tenuto",
    "TenutoError",
    "TimedOut",
    "TooLarge",
    "Unknown",
    "UnknownType",
    "Waiting",
    "__version__",
    "current_run",
    "idempotency_key",
    "register",
    "secret",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "AsyncTenuto":  # asyncio is a third of what importing takes: only for those who use it
        from tenuto.aio import AsyncTenuto  # noqa: PLC0415

        return AsyncTenuto
    if name == "AsyncRun":
        from tenuto._aio_runs import AsyncRun  # noqa: PLC0415

        return AsyncRun
    if name == "durable_tool":  # for LangGraph, which is imported by those who have it
        from tenuto.adapters.langgraph import durable_tool  # noqa: PLC0415

        return durable_tool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
