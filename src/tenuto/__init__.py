"""tenuto holds an agent's state, so that the agent can be killed at any line and carries on from there."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenuto._aio_runs import AsyncRun
    from tenuto.aio import AsyncTenuto
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

_HOMES = {
    "AsyncRun": "_aio_runs",
    "AsyncTenuto": "aio",
    "Checkpoint": "capabilities.lineage",
    "Happened": "capabilities.questions",
    "Intent": "capabilities.stepping",
    "NotHappened": "capabilities.questions",
    "Question": "capabilities.questions",
    "Restored": "capabilities.checkpoints",
    "Retention": "capabilities.retention",
    "Retry": "capabilities.stepping",
    "Run": "capabilities.run",
    "Task": "capabilities.task",
    "TaskInfo": "capabilities.taskbook",
    "Tenuto": "client",
    "Unknown": "capabilities.questions",
    "current_run": "capabilities.run",
    "durable_tool": "adapters.langgraph",
    "idempotency_key": "capabilities.stepping",
    "register": "kernel.codec",
    "secret": "capabilities.arguments",
}
"""Where a name comes from; the others are errors. Each is imported when it is first used, so that the command line
imports what a command needs, asyncio only comes to those who await, and LangGraph to those who have it."""


_MODULES = frozenset({"errors", "hooks", "testing"})
"""Parts of the package that people name without importing them: `tenuto.errors.NotFound`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tenuto.{name}")
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"tenuto.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
