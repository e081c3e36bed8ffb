"""The disk says no: errors are tenuto's own, what was acknowledged stays, and the store recovers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from crash_harness import Child, run
from fault_judge import problems, read_notes
from support.long import size

from tenuto import StorageFull, StorageUnavailable, Tenuto
from tenuto.backends.sqlite import errors
from tenuto.kernel import keys


@pytest.mark.slow
@pytest.mark.parametrize("armed", ["before opening", "after opening"])
@pytest.mark.parametrize(("point", "action"), [("sync", "io"), ("write", "io"), ("write", "full")])
@pytest.mark.scorecard(5)
def test_an_error_at_any_write_or_sync_is_typed_and_settled_by_its_request_id(
    path, tmp_path, point, action, armed, figures
):
    # given a writer, when its first, second, … write or sync fails once
    met, wrong, at, kinds = 0, [], 1, set()
    with Child("worker_faults.py") as nursery:
        while True:
            store, notes = path.with_name(f"{at}.db"), tmp_path / f"{at}.notes"
            order = {"point": point, "at": at, "armed": armed, "action": action, "commits": 4, "checkpoint": True}
            nursery.tell(json.dumps({**order, "store": str(store), "notes": str(notes)}))
            ended = int(nursery.says())
            told = read_notes(notes)
            # then the same call with the same request id succeeds, each commit is there once, in order
            if ended or not told.closed:
                wrong.append((at, f"the writer ended with {ended}, after {told.errors}"))
            else:
                wrong += [(at, problem) for problem in problems(store, told)]
            if not told.met:  # a fault after the commit, as of a WAL checkpoint, is met without an error
                break
            met += 1
            kinds |= {tuple(error) for error in told.errors}
            at += 1 if met < size(16, 10**6) else size(5, 1)
        complaints = nursery.ends()[1]
    print(f"{action} error at each {point}, armed {armed}: met as {sorted(map(str, kinds))}; {wrong[:5]} {complaints}")
    figures(errors_met=met, wrong=len(wrong))
    assert met > 3
    assert {kind for kind, _ in kinds} <= {"StorageUnavailable", "StorageFull"}


@pytest.mark.slow
@pytest.mark.scorecard(5, planted=True)
def test_a_client_that_takes_a_failed_commit_for_a_success_is_found_out(path, tmp_path):
    # given the planted bug, when a sync fails
    found = []
    with Child("worker_faults.py") as nursery:
        for at in range(1, 9):
            store, notes = path.with_name(f"{at}.db"), tmp_path / f"{at}.notes"
            order = {"point": "sync", "at": at, "armed": "after opening", "action": "io", "commits": 4}
            nursery.tell(json.dumps({**order, "planted": "errors ignored", "store": str(store), "notes": str(notes)}))
            assert nursery.says() == "0"
            found += problems(store, read_notes(notes))
        nursery.ends()
    # then the same judgement that finds nothing above finds the loss
    print(found[:3])
    assert any("acknowledged" in one for one in found)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(agent):
    """Write until the disk is full; return what was acknowledged, and the error."""
    written = {}
    for number in range(10_000):
        key = f"k{number:04}"
        try:
            agent.state.set("s", key, [number, b"x" * 3_000])
        except StorageUnavailable as error:
            return written, error
        written[key] = [number, b"x" * 3_000]
    raise AssertionError("the disk was never full")


@pytest.mark.scorecard(6)
def test_a_full_disk_is_a_typed_error_and_writing_goes_on_when_there_is_room(small_disk, figures):
    fill_and_make_room(small_disk, figures)


@pytest.mark.scorecard(6, planted=True)
def test_a_full_disk_that_is_reported_as_damage_is_found_out(small_disk, monkeypatch):
    # given the planted bug: no error is known to mean a full disk
    monkeypatch.setattr(errors, "_is_full", lambda error: False)
    with pytest.raises(AssertionError, match="StorageFull"):
        fill_and_make_room(small_disk, lambda **told: None)


def fill_and_make_room(small_disk, figures):
    # given a small disk with something on it that can be removed
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200 * 1024))
    with Tenuto("writer", small_disk / "store.db") as agent:
        # when it is filled up, then the error says so, and nothing of the failed write is there
        written, error = fill_up(agent)
        print(f"full disk: {type(error).__name__} after {len(written)} writes: {error}")
        assert isinstance(error, StorageFull)
        assert agent.state.items("s") == written
        with pytest.raises(StorageFull):
            agent.state.set("s", "again", bytes(200_000))
        figures(disks_filled=1, acknowledged=len(written), lost=len(written.keys() - agent.state.items("s").keys()))
        assert agent.state.items("s") == written
        assert agent.store.check().ok
        # when there is room again, then writing goes on with the same client
        ballast.unlink()
        assert agent.state.set("s", "more", 1) == 1
    with Tenuto("reader", small_disk / "store.db") as agent:
        assert agent.state.items("s") == {**written, "more": 1}
        assert agent.store.check().ok


@pytest.mark.scorecard(6)
def test_a_store_on_a_full_disk_can_be_opened_and_read(small_disk):
    # given a store on a disk that others then filled to the last byte
    with Tenuto("writer", small_disk / "store.db") as agent:
        agent.state.set("s", "k", 1)
    subprocess.run(f"cat /dev/zero > {small_disk}/ballast", shell=True, capture_output=True, check=False)
    # when it is opened, then it can be read, or the error is typed and reading works as soon as there is room
    agent = Tenuto("reader", small_disk / "store.db")
    try:
        said = f"read {agent.state.get('s', 'k')}"
    except StorageUnavailable as error:
        said = f"{type(error).__name__}: {error}"
    print(f"opening on a full disk: {said}")
    (small_disk / "ballast").unlink()
    assert agent.state.get("s", "k") == 1
    assert agent.state.set("s", "k", 2) == 2
    agent.close()


@pytest.mark.scorecard(6)
def test_a_new_store_on_a_full_disk_is_refused_and_made_when_there_is_room(small_disk):
    # given a full disk, when a store is made there, then the error is typed
    subprocess.run(f"cat /dev/zero > {small_disk}/ballast", shell=True, capture_output=True, check=False)
    agent = Tenuto("writer", small_disk / "store.db")
    with pytest.raises(StorageFull) as refused:
        agent.state.set("s", "k", 1)
    print(f"new store on a full disk: {refused.value}")
    # and with room the same client goes on
    (small_disk / "ballast").unlink()
    assert agent.state.set("s", "k", 1) == 1
    agent.close()


@pytest.mark.scorecard(6)
def test_an_opening_that_was_refused_leaves_no_file_open(small_disk):
    # given a full disk, when a client tries again and again to make its store there
    subprocess.run(f"cat /dev/zero > {small_disk}/ballast", shell=True, capture_output=True, check=False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    agent = Tenuto("writer", small_disk / "store.db")
    for _ in range(20):
        with pytest.raises(StorageUnavailable):
            agent.open()
    # then it holds no more files open than before
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


_LIMITED = """
import json, logging, resource, sys
from tenuto import StorageUnavailable, Tenuto
logging.disable(logging.WARNING)  # upkeep that meets the limit first says so, and is tried again
agent = Tenuto("limited", sys.argv[1])
agent.state.set("s", "first", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (600 * 1024, resource.RLIM_INFINITY))
made = 0
try:
    while made < 10_000:
        agent.state.set("s", "n", [made, "x" * 2000])
        made += 1
except StorageUnavailable as error:
    readable = agent.state.get("s", "n")[0] in (made - 1, made)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    agent.state.set("s", "after", 1)
    print(json.dumps([type(error).__name__, error.outcome, made, readable]))
    agent.close()
"""


@pytest.mark.scorecard(6)
def test_a_limit_on_file_size_is_a_typed_error_and_writing_goes_on_without_it(path):
    # given a process that may write small files only, when its log reaches the limit
    ended = run(path, code=_LIMITED)
    assert ended.stderr == ""
    kind, outcome, made, readable = json.loads(ended.stdout)
    # then the error is typed, what was acknowledged can be read, and without the limit writing goes on
    print(f"file size limit: {kind} ({outcome}) after {made} writes")
    assert kind in ("StorageUnavailable", "StorageFull")
    assert readable
    with Tenuto("judge", path) as agent:
        assert agent.state.get("s", "n")[0] in (made - 1, made)
        assert (agent.state.get("s", "first"), agent.state.get("s", "after")) == (1, 1)
        assert agent.store.check().ok


_SYNCED = """
import json, sys
from tenuto import StorageUnavailable, Tenuto
from tenuto.kernel import keys
from tenuto.kernel.contract import Append
from tenuto.kernel.transact import new_request
agent = Tenuto("traced", sys.argv[1])
stream = keys.pack("s", "lines")
made, errors = 0, []
while made < 8:
    request = new_request(agent.kernel.now())
    for _ in range(3):
        try:
            agent.kernel.commit([], [Append(stream, str(made).encode())], request=request)
            break
        except StorageUnavailable as error:
            errors.append([type(error).__name__, error.outcome])
    made += 1
agent.close()
print(json.dumps([made, errors]))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("at", range(1, size(13, 40), 3))
@pytest.mark.scorecard(5)
def test_a_real_sync_that_fails_in_the_kernel_is_typed_and_settled(path, at):
    # given a writer under strace, when its Nth fdatasync says EIO
    fault = f"inject=fdatasync:error=EIO:when={at}"
    strace = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", fault]
    ended = subprocess.run(
        [*strace, os.path.realpath(sys.executable), "-c", _SYNCED, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "ptrace" in ended.stderr.lower():
        pytest.skip(f"strace may not trace here: {ended.stderr.strip()}")
    # then the error is typed, and each commit is there once; upkeep or a WAL checkpoint may have met it first, and says so
    assert [
        line for line in ended.stderr.splitlines() if "failed and will be retried: disk I/O error" not in line
    ] == []
    made, errors = json.loads(ended.stdout)
    print(f"EIO at fdatasync {at}: {errors}")
    assert {kind for kind, _ in errors} <= {"StorageUnavailable"}
    with Tenuto("judge", path) as agent:
        stored = [entry.value for entry in agent.kernel.entries(keys.pack("s", "lines"))]
        assert stored == [str(number).encode() for number in range(made)]
        assert agent.store.check().ok
