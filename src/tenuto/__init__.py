"""tenuto holds an agent's state, so that the agent can be killed at any line and carries on from there."""

from typing import TYPE_CHECKING, Any

from tenuto.capabilities.checkpoints import Restored
from tenuto.capabilities.lineage import Checkpoint
from tenuto.capabilities.retention import Retention
from tenuto.client import Tenuto
from tenuto.errors import (
    Closed,
    Conflict,
    Damaged,
    InvalidInput,
    LeaseHeld,
    MissingDriver,
    NewerFormat,
    NotFound,
    NotStorable,
    ReadOnly,
    RequestExpired,
    RequestReused,
    StaleLease,
    StateConflict,
    StorageFull,
    StorageUnavailable,
    TenutoError,
    TooLarge,
    UnknownType,
)
from tenuto.kernel.codec import register

if TYPE_CHECKING:
    from tenuto.aio import AsyncTenuto

__all__ = [
    "AsyncTenuto",
    "Checkpoint",
    "Closed",
    "Conflict",
    "Damaged",
    "InvalidInput",
    "LeaseHeld",
    "MissingDriver",
    "NewerFormat",
    "NotFound",
    "NotStorable",
    "ReadOnly",
    "RequestExpired",
    "RequestReused",
    "Restored",
    "Retention",
    "StaleLease",
    "StateConflict",
    "StorageFull",
    "StorageUnavailable",
    "Tenuto",
    "TenutoError",
    "TooLarge",
    "UnknownType",
    "__version__",
    "register",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "AsyncTenuto":  # asyncio is a third of what importing takes: only for those who use it
        from tenuto.aio import AsyncTenuto  # noqa: PLC0415

        return AsyncTenuto
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
