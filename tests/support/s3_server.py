"""A server that speaks S3, on loopback: `rclone serve s3` from its wheel, with one bucket in a folder."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.redis_servers import free_port, wait_until

KEY, SECRET = "test-key", "test-secret"


class S3Server:
    """A bucket named `bucket`; its objects are files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bucket"
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self._root = folder
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        binary = Path(sys.executable).with_name("rclone")
        self._process = subprocess.Popen(
            [
                str(binary), "serve", "s3", str(self._root), "--addr", f"127.0.0.1:{self.port}",
                "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._listens, what="rclone serve s3")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def url(self, prefix: str) -> str:
        """Return the place of an archive in the bucket."""
        return f"s3://bucket/{prefix}?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"

    def stop(self) -> None:
        """Stop the server."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def credentials() -> Iterator[None]:
    """Give this process, and those that it starts, the key of the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield
