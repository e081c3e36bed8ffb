"""Request ids on a SQLite store: applied once, whoever uses one first, and what a failed commit says of itself."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import StorageUnavailable
from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.sqlite.commit import CommitJob, Writer
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Put
from tenuto.kernel.transact import new_request, own_request

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))
Quiet = Callable[..., SqliteBackend]

COMMIT_ONCE = """
    import sys
    from tenuto.backends.sqlite import SqliteBackend
    from tenuto.kernel.contract import Put
    backend = SqliteBackend(sys.argv[1])
    backend.commit([], [Put(bytes.fromhex(sys.argv[2]), b"once")], request=bytes.fromhex(sys.argv[3]))
    backend.close()
"""


def run(code: str, *arguments: object) -> None:
    """Run code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_retry_is_known_by_what_it_says_not_by_the_objects_that_hold_it(quiet: Quiet) -> None:
    backend = quiet()
    request, value = new_request(backend.now()), b"value" * 3
    done = backend.commit([], [Put(A, value), Append(LOG, value)], request=request)
    equal = bytes(bytearray(value))
    assert equal is not value
    assert backend.commit([], [Put(A, value), Append(LOG, equal)], request=request) == done._replace(repeated=True)


def test_a_request_that_changes_nothing_is_remembered_too(quiet: Quiet) -> None:
    backend = quiet()
    request = new_request(backend.now())
    done = backend.commit([Check(A, 0)], [], request=request)
    backend.commit([], [Put(A, b"1")])
    # it would be a conflict now
    assert backend.commit([Check(A, 0)], [], request=request) == done._replace(repeated=True)


def test_a_request_made_here_and_used_by_another_process_first_is_applied_once(path: Path, quiet: Quiet) -> None:
    # given a request id that this process made, and another has used
    backend = quiet()
    request = new_request(backend.now())
    run(COMMIT_ONCE, path, A.hex(), request.hex())
    # when this process asks what became of it
    again = backend.commit([], [Put(A, b"once")], request=request)
    # then it is told, and nothing is applied a second time
    assert (again.versions, again.repeated) == ((1,), True)
    # and the store goes on
    assert backend.commit([], [Put(B, b"x" * 70_000)]).versions == (1,)
    assert backend.check() == []


def test_a_request_that_two_threads_use_for_the_first_time_is_applied_once(quiet: Quiet) -> None:
    backend = quiet()
    request = own_request(backend.now())
    jobs = [CommitJob([], [Put(A, b"1")], request) for _ in range(2)]
    assert [backend._group.submit(job).repeated for job in reversed(jobs)] == [False, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_request_made_before_a_fork_is_applied_once(quiet: Quiet) -> None:
    # given a request id that parent and child have
    backend = quiet()
    request = new_request(backend.now())
    pid = os.fork()
    if pid == 0:
        try:
            backend.commit([], [Put(A, b"once")], request=request)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    # when the child has used it, then the parent is told of its commit
    assert backend.commit([], [Put(A, b"once")], request=request).repeated
    assert backend.check() == []


def test_a_commit_that_failed_before_it_was_written_is_not_in_doubt(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client whose last commit was made
    backend = quiet()
    backend.commit([], [Put(A, b"1")])

    def fails(_: Writer) -> Any:
        raise apsw.IOError("the disk is gone")

    # when the disk fails before anything of the next one is written
    monkeypatch.setattr(Writer, "_begin", fails)
    with pytest.raises(StorageUnavailable) as caught:
        backend.commit([], [Put(A, b"2")])
    assert caught.value.outcome == "not applied"
    # then the next one goes on from there
    monkeypatch.undo()
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
