"""What the crash tests share: real processes, real kills, and waiting for events instead of sleeping."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("", "-wal", "-shm", "-lock")


def wait_until(true, *, timeout=20.0, what="it"):
    """Poll until `true()` is, and return it."""
    deadline = time.monotonic() + timeout
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.002)
    return found


def run(*command, timeout=60, **options):
    """Run a script of this folder, or code given with `code=`, to its end; return the finished process."""
    return subprocess.run(
        _command(command, options), capture_output=True, text=True, timeout=timeout, check=False, **options
    )


class Child:
    """A process that is spoken to line by line, and killed at the end of the block if it still runs."""

    def __init__(self, *command, **options):
        self.process = subprocess.Popen(
            _command(command, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            **options,
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def says(self):
        """Return the next line that the process prints."""
        line = self.process.stdout.readline()
        assert line, f"the process ended without a word: {self.process.stderr.read()}"
        return line.strip()

    def tell(self, line="go"):
        """Give the process a line, for which it waits."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """Stop the process and return when it stands still."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: _status(self.pid) == "T", what="the stop")

    def ends(self, timeout=60):
        """Wait for the end; return what it printed since, and its complaints."""
        self.process.stdin.close()
        out, complaints = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait(timeout)
        return out, complaints


def _command(command, options):
    if "code" in options:
        return [sys.executable, "-c", options.pop("code"), *map(str, command)]
    script, *arguments = command
    return [sys.executable, str(HERE / script), *map(str, arguments)]


def _status(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def copy_store(source, target):
    """Copy a store's files as they are, except the shared index, which belongs to running processes."""
    for part in ("", "-wal", "-lock"):
        beside(target, part).unlink(missing_ok=True)
        if beside(source, part).exists():
            shutil.copyfile(beside(source, part), beside(target, part))
    beside(target, "-shm").unlink(missing_ok=True)


def beside(path, part):
    return path.with_name(path.name + part)


def flip(path, bit):
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
