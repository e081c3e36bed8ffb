"""A disk of a few megabytes that a test may fill; mounting it takes root."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tiny_disk(size: str) -> Iterator[Path]:
    """Mount a file system of this size, or skip the test where that is not permitted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a disk to fill is mounted (tmpfs), which takes root")
    folder = Path(tempfile.mkdtemp(prefix="tenuto-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tenuto-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        if mounted.returncode:
            pytest.skip(f"a disk to fill cannot be mounted here: {mounted.stderr.strip()}")
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Take all the room that is left, and return the file that holds it."""
    ballast = folder / "ballast"
    for size in (65_536, 512):
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(size))
    return ballast
