"""A folder in memory for a test's stores: what a kill leaves does not depend on the disk, but its syncs take most of the time.

The long form stays on the disk, as does a machine without `/dev/shm` or with little room in it. A power loss is not left to
either: it is replayed from recorded writes (`tests/crash/test_power_loss.py`).
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.long import LONG

MEMORY = Path("/dev/shm")
ROOM = 2 * 2**30


def folder() -> Path | None:
    """Return where to put what need not reach a disk, or None."""
    there = not LONG and MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return MEMORY if there and shutil.disk_usage(MEMORY).free >= ROOM else None


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, in memory where there is one."""
    where = folder()
    if where is None:
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(prefix="tenuto-test-", dir=where, ignore_cleanup_errors=True) as name:
        yield Path(name)
