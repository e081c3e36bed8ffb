"""tenuto stores an agent's state durably: kill the agent at any line and it resumes from there."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenuto import errors as errors
    from tenuto import hooks as hooks
    from tenuto import testing as testing
    from tenuto.adapters.langgraph import durable_tool as durable_tool
    from tenuto.aio import AsyncRun, AsyncTenuto
    from tenuto.capabilities.checkpoints import Checkpoint, Restored, Retention
    from tenuto.capabilities.context import Tool
    from tenuto.capabilities.memory import Memory, Recalled, Source
    from tenuto.capabilities.people import Calendar, Happened, NoAnswer, NotHappened, Question, Rung, Unknown
    from tenuto.capabilities.runs import Intent, Price, Retry, Run, current_run, idempotency_key, secret
    from tenuto.capabilities.sessions import Verdict
    from tenuto.capabilities.tasks import Task, TaskInfo
    from tenuto.client import Tenuto
    from tenuto.errors import (
        AccessDenied,
        AmbiguousStep,
        Blocked,
        BudgetExceeded,
        Cancelled,
        Closed,
        Conflict,
        Damaged,
        Encrypted,
        InDoubt,
        InvalidInput,
        LeaseHeld,
        MissingDriver,
        NewerFormat,
        NotEncrypted,
        NotFound,
        NotStorable,
        Paused,
        ReadOnly,
        RequestExpired,
        RequestReused,
        RunBusy,
        RunFailed,
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
        WrongKey,
    )
    from tenuto.kernel.codec import register
    from tenuto.wrappers.encrypt import Encryption
    from tenuto.wrappers.spool import Spool, SpoolConflict

__all__ = [
    "AccessDenied",
    "AmbiguousStep",
    "AsyncRun",
    "AsyncTenuto",
    "Blocked",
    "BudgetExceeded",
    "Calendar",
    "Cancelled",
    "Checkpoint",
    "Closed",
    "Conflict",
    "Damaged",
    "Encrypted",
    "Encryption",
    "Happened",
    "InDoubt",
    "Intent",
    "InvalidInput",
    "LeaseHeld",
    "Memory",
    "MissingDriver",
    "NewerFormat",
    "NoAnswer",
    "NotEncrypted",
    "NotFound",
    "NotHappened",
    "NotStorable",
    "Paused",
    "Price",
    "Question",
    "ReadOnly",
    "Recalled",
    "RequestExpired",
    "RequestReused",
    "Restored",
    "Retention",
    "Retry",
    "Run",
    "RunBusy",
    "RunFailed",
    "Rung",
    "Source",
    "Spool",
    "SpoolConflict",
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
    "Tool",
    "Unknown",
    "UnknownType",
    "Verdict",
    "Waiting",
    "WrongKey",
    "__version__",
    "current_run",
    "idempotency_key",
    "register",
    "secret",
]

__version__ = "0.1.0"

_HOMES = {
    "AsyncRun": "aio",
    "AsyncTenuto": "aio",
    "Calendar": "capabilities.people",
    "Checkpoint": "capabilities.checkpoints",
    "Encryption": "wrappers.encrypt",
    "Happened": "capabilities.people",
    "Intent": "capabilities.runs",
    "Memory": "capabilities.memory",
    "NoAnswer": "capabilities.people",
    "NotHappened": "capabilities.people",
    "Question": "capabilities.people",
    "Recalled": "capabilities.memory",
    "Restored": "capabilities.checkpoints",
    "Retention": "capabilities.checkpoints",
    "Price": "capabilities.runs",
    "Retry": "capabilities.runs",
    "Run": "capabilities.runs",
    "Source": "capabilities.memory",
    "Spool": "wrappers.spool",
    "SpoolConflict": "wrappers.spool",
    "Rung": "capabilities.people",
    "Task": "capabilities.tasks",
    "TaskInfo": "capabilities.tasks",
    "Tenuto": "client",
    "Tool": "capabilities.context",
    "Unknown": "capabilities.people",
    "Verdict": "capabilities.sessions",
    "current_run": "capabilities.runs",
    "durable_tool": "adapters.langgraph",
    "idempotency_key": "capabilities.runs",
    "register": "kernel.codec",
    "secret": "capabilities.runs",
}
"""The module of each public name; all other names are errors. Modules are imported on first use, so that the CLI
starts fast, and asyncio and LangGraph are loaded only by programs that use them."""


_MODULES = frozenset({"errors", "hooks", "testing"})
"""Submodules that are reachable without an import: `tenuto.errors.NotFound`."""


if not TYPE_CHECKING:  # a type checker would accept any name through __getattr__

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
