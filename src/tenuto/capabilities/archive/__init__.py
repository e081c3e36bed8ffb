"""The archive: old threads, runs and checkpoints in a folder or bucket, read again as if they were in the store."""

from tenuto.capabilities.archive.archive import ENVIRONMENT, TenantArchive
from tenuto.capabilities.archive.parts import AWAY, COPYING, GONE, HERE, LEAVING, LOGS, Part

__all__ = [
    "AWAY", "COPYING", "ENVIRONMENT", "GONE", "HERE", "LEAVING", "LOGS", "Part", "TenantArchive",
]  # fmt: skip
