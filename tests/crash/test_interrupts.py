"""Control-C in the middle of a commit: the program goes on, and so does the store."""

import contextlib
import fcntl
import json
import signal
from pathlib import Path

import pytest
from crash_harness import Child, beside, wait_until
from support.long import size

from tenuto import Tenuto
from tenuto.kernel import keys


@contextlib.contextmanager
def waiting(path, program, value):
    """Let a program write while the lock is another's; the block begins when it waits, and its end lets it go on."""
    with beside(path, "-lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program.tell(value)
        assert program.says() == "writing"
        wait_until(lambda: _waits(program.pid), what="the waiting")
        yield


def _waits(pid):
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and "FLOCK" in line and f" {pid} " in line for line in lines)


def test_an_interrupt_while_waiting_for_the_lock_leaves_a_client_that_works(path):
    # given a program whose commit waits, since another process holds the lock
    with Child("worker_interrupted.py", path) as program:
        assert program.says() == "ready"
        for number in range(2):
            # when it is interrupted, and then goes on writing, with the lock free or not
            with waiting(path, program, f"in doubt {number}"):
                program.signal(signal.SIGINT)
                assert program.says() == "interrupted"
            for more in range(3):
                with waiting(path, program, f"waited {number}.{more}"):
                    pass
                assert program.says() == "written"
                program.tell(f"at once {number}.{more}")
                assert [program.says(), program.says()] == ["writing", "written"]
        out, complaints = program.ends()
    # then every later write is made and told truly, and an interrupted one happened once or not at all
    assert complaints == ""
    acknowledged, errors = json.loads(out)
    with Tenuto("judge", path) as judge:
        stored = [entry.value.decode() for entry in judge.kernel.entries(keys.pack("s", "lines"))]
        assert judge.store.check().ok
    print(f"interrupted twice; {len(acknowledged)} of 12 later writes acknowledged, {len(stored)} stored, {errors}")
    assert errors == []
    assert [value for value, _ in acknowledged] == [value for value in stored if "doubt" not in value]
    assert all(stored[version - 1] == value for value, version in acknowledged)
    assert len(stored) == len(set(stored))


_BESIDE = """
import itertools, sys
from tenuto import Tenuto
agent = Tenuto("beside", sys.argv[1], durability="process")
for number in itertools.count():
    agent.state.set("beside", "n", number)
"""


@pytest.mark.slow
@pytest.mark.timeout(size(120, 900))
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another process"])
def test_a_program_interrupted_at_any_moment_goes_on_and_so_do_its_threads(path, alone):
    # given a program whose three threads write, when Control-C comes hundreds of times, between any two lines
    Tenuto("first", path).open().close()
    other = contextlib.nullcontext() if alone else Child(path, code=_BESIDE)
    with other, Child("worker_interrupted_often.py", path, size(120, 5_000)) as program:
        out, complaints = program.ends()
    assert complaints == ""
    # then nobody waits for ever, what was acknowledged is there at its number, and nothing is there twice
    told = [line for lines in json.loads(out).values() for line in lines]
    with Tenuto("judge", path) as judge:
        stored = []
        while page := judge.kernel.entries(keys.pack("s", "lines"), after=len(stored), limit=10_000):
            stored += [entry.value.decode() for entry in page]
        assert judge.store.check().ok
    doubtful = [value for value, number in told if number is None]
    print(f"{len(told)} writes, {len(stored)} stored, {len(doubtful)} interrupted")
    assert len(stored) == len(set(stored))
    assert all(stored[number - 1] == value for value, number in told if number is not None)
    assert set(stored) <= {value for value, _ in told} | {"first"}
