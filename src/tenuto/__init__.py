"""tenuto holds an agent's state, so that the agent can be killed at any line and carries on from there."""

from tenuto.aio import AsyncTenuto
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

__all__ = [
    "AsyncTenuto",
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
