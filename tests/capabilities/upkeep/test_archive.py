"""The archive: what is old is elsewhere, complete and verified there, and read again as if it had never left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.long import LONG
from support.s3_server import S3Server, credentials

from tenuto import (
    AccessDenied,
    Damaged,
    Encrypted,
    Encryption,
    InvalidInput,
    NotFound,
    StorageUnavailable,
    Tenuto,
    Waiting,
)
from tenuto.backends import connect
from tenuto.capabilities.archive import places
from tenuto.capabilities.archive.places import Folder
from tenuto.capabilities.store.rows import every_row
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock
from tenuto.wrappers.confine import Confine

DAY = 86_400.0
KEY = "c1" * 32
LARGE = "large text of ann " * 8_000


@pytest.fixture
def agent(backend: Backend, clock: HeldClock) -> Tenuto:
    return Tenuto("agent", backend, clock=clock)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def _fill(agent: Tenuto, user: str = "ann", lines: int = 30) -> None:
    thread = agent.thread(f"{user}-chat", user=user)
    for n in range(lines):
        thread.append({"role": "user", "content": f"message {n}"}, key=f"k{n}")
    thread.append({"role": "user", "content": LARGE})
    thread.decide("take the train", why="cheaper")
    thread.tool_call("search", {"q": "x"}, ["y"])
    with agent.run(f"{user}-run", user=user) as run:
        run.step("search", lambda: "found")
        run.step("large", lambda: LARGE)
        run.step("packed", lambda: list(range(200)))
    with suppress(ValueError), agent.run(f"{user}-failed", user=user) as run:
        run.step("broken", int, "x")
    for n in range(12):
        agent.checkpoint.create("auto", {"n": n, "text": LARGE if n == 3 else "", "list": [n] * 40 * n}, thread="t")


def _view(agent: Tenuto, user: str = "ann") -> dict[str, Any]:
    thread = agent.thread(f"{user}-chat")
    return {
        "messages": thread.messages(),
        "timeline": list(thread.timeline()),
        "decisions": list(thread.decisions()),
        "runs": [agent.runs.get(name) for name in (f"{user}-run", f"{user}-failed")],
        "history": agent.runs.history(f"{user}-run"),
        "checkpoints": [agent.checkpoint.restore(id=f"t@{n}") for n in range(1, 13)],
    }


def _values(agent: Tenuto) -> bytes:
    rows = every_row(agent.kernel)
    return b"".join(row.record.value if row.record else row.entry.value if row.entry else b"" for row in rows)


def _states(agent: Tenuto) -> set[tuple[str, str]]:
    return {(one.kind, one.state) for one in agent.store.archived()}


def test_what_is_archived_leaves_the_store_and_is_read_as_before(
    agent: Tenuto, clock: HeldClock, place: Path, check_nothing_left: Callable[[Tenuto], None]
) -> None:
    _fill(agent)
    before = _view(agent)
    with suppress(Waiting), agent.run("waits") as run:
        run.ask("Pay?", to="ann")
    agent.thread("new").append({"role": "user", "content": "new"})
    assert agent.store.archive("1d", place)[:4] == (0, 0, 0, 0), "nothing is old yet"
    clock.advance(2 * DAY)
    agent.thread("new").append({"role": "user", "content": "newer"})
    dry = agent.store.archive("1d", place, dry_run=True)
    assert not place.exists()
    done = agent.store.archive("1d", place)
    assert done[:3] == dry[:3]
    assert (done.threads, done.runs) == (1, 2)
    assert 0 < done.checkpoints < 12
    assert len(list(place.iterdir())) == done.objects
    assert sum(one.stat().st_size for one in place.iterdir()) == done.bytes
    assert {state for _, state in _states(agent)} == {"away"}
    assert b"message 3" not in _values(agent)
    clock.advance(2 * 3_600)
    agent.store.archive("1d", place)  # blobs without a reference stay for an hour
    assert LARGE.encode()[:900] not in _values(agent)
    assert agent.store.check().findings == []
    # Listed, counted, appended to and read at its end without the archive.
    assert "ann-chat" in [one.id for one in agent.threads.list()]
    assert agent.thread("ann-chat").count() == 31
    assert [one.status for one in agent.runs.list(user="ann")] == ["failed", "completed"]
    assert agent.checkpoint.restore(thread="t")["n"] == 11
    # Read as before.
    assert _view(agent) == before
    assert agent.thread("ann-chat").append({"role": "user", "content": "message 3"}, key="k3") == 4, "the key is known"
    assert ("run", "here") in _states(agent)
    assert not [one for one in agent.store.archived() if one.kind == "checkpoint"], "moved back as a whole"
    assert agent.store.check().findings == []
    # And out again, by the same objects: only what is still old and was not read for an hour.
    assert agent.store.archive("1d", place)[:3] == (0, 0, done.checkpoints)
    clock.advance(2 * DAY)
    assert agent.store.archive("1d", place)[:3] == (2, 2, 0)
    assert _view(agent)["messages"] == before["messages"]
    # Every reference to a blob is counted once: with all deleted, none is left.
    agent.thread("ann-chat").delete()
    agent.checkpoint.delete(thread="t")
    for name in ("ann-run", "ann-failed"):
        agent.runs.delete(name)
    check_nothing_left(agent)


def test_an_archived_run_is_replayed_and_not_executed_again(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    calls: list[int] = []

    def act() -> str:
        calls.append(1)
        return "done"

    def body() -> Any:
        with agent.run("trip") as run:
            return run.step("book", act, effect="once")

    def fail() -> str:
        if len(calls) < 3:
            calls.append(2)
            raise ValueError
        return "done"

    assert body() == "done"
    with suppress(ValueError), agent.run("broken") as run:
        run.step("book", act)
        run.step("fail", fail)
    clock.advance(DAY)
    assert agent.store.archive("1h", place).runs == 2
    assert body() == "done"
    with agent.run("broken") as run:
        run.step("book", act)
        assert run.step("fail", fail) == "done"
    assert len(calls) == 3
    clock.advance(DAY)
    agent.store.archive("1h", place)
    assert agent.runs.fork("trip", "again").status == "queued"
    clock.advance(DAY)
    agent.store.archive("1h", place)
    assert [one.what for one in agent.runs.follow("trip", after=0, timeout=0)] == [
        one.what for one in agent.runs.history("trip")
    ]


def test_a_thread_goes_on_while_the_archive_is_away(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    thread = agent.thread("chat")
    for n in range(20):
        thread.append({"role": "user", "content": f"m{n}"})
    clock.advance(DAY)
    agent.store.archive("1h", place)
    place.rename(place.with_name("moved"))
    assert thread.append({"role": "user", "content": "m20"}) == 21
    assert thread.messages(1)[0]["content"] == "m20"
    with pytest.raises(StorageUnavailable, match="archive"):
        thread.messages()
    clock.advance(DAY)
    with pytest.raises(StorageUnavailable):
        agent.store.archive("1h", "/dev/null/archive")
    # A second part follows the first. `archive=` replaces the recorded place.
    other = Tenuto("other", agent.kernel._backend, clock=clock, archive=place.with_name("moved"))  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="replaces every place"):
        other.store.archive("1h", place)
    assert other.store.archive("1h").objects == 1
    assert [(one.first, one.last) for one in other.store.archived("thread", "chat")] == [(1, 20), (21, 21)]
    assert [one["content"] for one in other.thread("chat").messages(2)] == ["m19", "m20"]
    assert [one["content"] for one in other.thread("chat").messages()] == [f"m{n}" for n in range(21)]
    assert other.store.check().findings == []


def test_lines_that_a_fork_shares_are_read_through_the_archive(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    first = agent.thread("first")
    for n in range(6):
        first.append({"role": "user", "content": f"m{n}"})
    fork = first.fork("fork", 4)
    fork.append({"role": "user", "content": "own"})
    clock.advance(DAY)
    assert agent.store.archive("1h", place).threads == 1, "a fork stays, what it shares does not"
    shared = ["m0", "m1", "m2", "m3", "own"]
    assert [one["content"] for one in fork.messages()] == shared
    clock.advance(DAY)
    agent.store.archive("1h", place)
    first.delete()
    agent.store.archive("1h", place)
    assert [one["content"] for one in fork.messages()] == shared, "its object stays while the fork needs it"
    first.append({"role": "user", "content": "begins again"})
    clock.advance(DAY)
    assert agent.store.archive("1h", place).threads == 0, "below it are lines that a fork shares"
    assert [one["content"] for one in fork.messages()] == shared
    fork.delete()
    assert agent.store.archive("1h", place).removed == 1
    assert agent.store.check().findings == []


def test_what_is_deleted_leaves_the_archive_too(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    _fill(agent)
    agent.checkpoint.create("other", {"n": 1}, thread="t")
    clock.advance(DAY)
    agent.store.archive("1h", place)
    agent.thread("ann-chat").delete()
    agent.runs.delete("ann-run")
    agent.checkpoint.delete(thread="t")
    with pytest.raises(NotFound):
        agent.checkpoint.restore(id="t@1")
    kinds = {one.kind for one in agent.store.archived() if one.name != "ann-failed"}
    assert agent.store.archive("1h", place).removed >= len(kinds) == 3
    assert {one.name for one in agent.store.archived()} == {"ann-failed"}
    assert len(list(place.iterdir())) == 1
    assert agent.thread("ann-chat").messages() == []
    agent.thread("ann-chat").append({"role": "user", "content": "again"})
    assert agent.thread("ann-chat").count() == 1


def test_one_name_of_a_thread_is_deleted_in_the_archive_too(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    for n in range(20):
        agent.checkpoint.create("a" if n % 2 else "b", {"n": n, "list": [n] * 50 * n}, thread="t")
    clock.advance(DAY)
    assert agent.store.archive("1h", place).checkpoints > 5
    assert agent.checkpoint.delete("a", thread="t") == 10
    with pytest.raises(NotFound):
        agent.checkpoint.restore(id="t@2")
    assert agent.checkpoint.restore(id="t@1") == {"n": 0, "list": []}
    clock.advance(DAY)
    agent.store.archive("1h", place)
    with pytest.raises(NotFound):
        agent.checkpoint.restore(id="t@2")
    assert agent.checkpoint.restore("b", thread="t")["n"] == 18


def test_checkpoints_of_langgraph_stay(clock: HeldClock, place: Path) -> None:
    with Tenuto("agent", "volatile:", clock=clock) as agent:
        for n in range(12):
            meta = {"langgraph": "", "metadata": {}} if n % 4 == 0 else None
            agent.checkpoint.create("auto", {"n": n, "list": [n] * 90 * n}, thread="t", meta=meta)
        clock.advance(DAY)
        agent.store.archive("1h", place)
        kept = {one.meta["langgraph"] for one in agent.checkpoint.list(thread="t") if one.meta is not None}
        assert kept == {""}
        assert sum(one.meta is not None for one in agent.checkpoint.list(thread="t")) == 3
        assert [agent.checkpoint.restore(id=f"t@{n}")["n"] for n in range(1, 13)] == list(range(12))


def test_forgetting_a_user_covers_the_archive(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    _fill(agent)
    _fill(agent, "ben")
    for n in range(12):
        agent.checkpoint.create("auto", {"n": n, "list": [n] * 40 * n}, user="ann")
    clock.advance(DAY)
    agent.store.archive("1h", place)
    objects = {one.object: one for one in agent.store.archived()}
    assert "snapshot" in {one.kind for one in objects.values()}
    place.rename(place.with_name("moved"))
    assert agent.forget_user("ann", dry_run=True).archived == 4
    done = agent.forget_user("ann")
    assert agent.verify_receipt(done)
    assert done.archived == 0
    assert len(done.left_in_archive) == 4, "two runs, the thread and the snapshot"
    assert all(str(place) in one for one in done.left_in_archive), "the receipt says what is left, and why"
    place.with_name("moved").rename(place)
    done = agent.forget_user("ann")
    assert (done.archived, done.left_in_archive) == (4, [])
    left = {path.stem for path in place.iterdir()}
    assert left == {name for name, one in objects.items() if one.name in ("ben-chat", "ben-run", "ben-failed", "t")}
    assert not [one for one in agent.store.archived() if one.user == "ann"]
    assert agent.thread("ben-chat").messages()[0]["content"] == "message 0"
    assert agent.store.check().findings == []


@pytest.mark.parametrize("harm", ["cut", "changed", "swapped", "other tenant", "lost"])
def test_of_a_damaged_object_nothing_is_stored(harm: str, clock: HeldClock, tmp_path: Path, place: Path) -> None:
    with Tenuto("agent", tmp_path / "a.db", clock=clock) as agent:
        for name in ("a", "b"):
            for n in range(5):
                agent.thread(name).append({"role": "user", "content": f"{name}{n}"})
        clock.advance(DAY)
        agent.store.archive("1h", place)
        one, other = (place / f"{part.object}.jsonl" for part in agent.store.archived())
        lines = one.read_bytes().splitlines(keepends=True)
        if harm == "cut":
            one.write_bytes(b"".join(lines[:-1]))
        elif harm == "changed":
            row = json.loads(lines[2])
            row["written_at"] += 1
            one.write_bytes(b"".join([*lines[:2], json.dumps(row).encode() + b"\n", *lines[3:]]))
        elif harm == "swapped":
            one.write_bytes(other.read_bytes())
        elif harm == "other tenant":
            one.write_bytes(b"".join([lines[0].replace(b'"default"', b'"acme"'), *lines[1:]]))
        else:
            one.unlink()
        before = agent.store.summary()
        with pytest.raises(Damaged):
            agent.thread("a").messages()
        assert agent.store.summary() == before
        assert len(agent.thread("b").messages()) == 5


def test_nothing_is_removed_unless_the_copy_is_read_back_as_written(
    clock: HeldClock, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Folder.put

    def losing(self: Folder, name: str, file: Path) -> None:
        put(self, name, file)
        path = place / f"{name}.jsonl"
        path.write_bytes(path.read_bytes()[:-5])

    with Tenuto("agent", tmp_path / "a.db", clock=clock) as agent:
        _fill(agent)
        before = _view(agent)
        clock.advance(DAY)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "put", losing)
            with pytest.raises(StorageUnavailable, match="Nothing was removed"):
                agent.store.archive("1h", place)
        assert _states(agent) == {("thread", "copying")}
        assert _view(agent) == before
        assert agent.store.archive("1h", place).threads == 1
        assert len(list(place.iterdir())) == len(agent.store.archived()), "the interrupted copy has the same name"


def test_an_encrypted_store_has_encrypted_objects(clock: HeldClock, tmp_path: Path, place: Path) -> None:
    key = Encryption(KEY, user_keys=True)
    with Tenuto("agent", tmp_path / "a.db", clock=clock, encryption_key=key) as agent:
        _fill(agent)
        _fill(agent, "ben")
        before = _view(agent)
        clock.advance(DAY)
        agent.store.archive("1h", place)
        stored = b"".join(path.read_bytes() for path in place.iterdir())
        assert b"message" not in stored
        assert b"bGFyZ2UgdGV4" not in stored, "in base64"
        assert _view(agent) == before
        assert agent.store.check().findings == []
        clock.advance(DAY)
        agent.store.archive("1h", place)
        kept = {path.name: path.read_bytes() for path in place.iterdir()}
        # A user's key opens the user's objects, also a copy of them.
        assert agent.store.destroy_user_key("ann")
        assert agent.thread("ann-chat").messages() == []
        assert agent.runs.list(user="ann") == []
        assert len(agent.thread("ben-chat").messages()) == 31
        done = agent.forget_user("ben")
        assert done.key_destroyed
        assert not agent.forget_user("ben").key_destroyed
        assert done.archived == 3
        assert set(kept) - {path.name for path in place.iterdir()}


def test_a_client_without_the_key_does_not_write_plain_objects(clock: HeldClock, tmp_path: Path, place: Path) -> None:
    with Tenuto("agent", tmp_path / "a.db", clock=clock, encryption_key=KEY) as agent:
        _fill(agent)
        clock.advance(DAY)
        with pytest.raises(Encrypted):
            Tenuto("other", tmp_path / "a.db", clock=clock).store.archive("1h", place)

        class Wrapped:
            """A wrapper that hides that the store seals."""

            def __getattr__(self, name: str) -> Any:
                if name in ("rotate", "seal_object"):
                    raise AttributeError(name)
                return getattr(agent._backend, name)

        with pytest.raises(InvalidInput, match="encrypted"):
            Tenuto("other", Wrapped(), clock=clock).store.archive("1h", place)  # type: ignore[arg-type]
        assert not place.exists()


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("ftp://host/x", InvalidInput),
        ("s3://key:secret@bucket/x", InvalidInput),
        ("s3://", InvalidInput),
        ("s3://bucket/x?secret=1", InvalidInput),
        (__file__, InvalidInput),
        (None, InvalidInput),
    ],
)
def test_bad_input_is_refused(to: Any, problem: type[Exception]) -> None:
    with Tenuto("agent", "volatile:") as agent:
        with pytest.raises(problem):
            agent.store.archive("1d", to)
        with pytest.raises(InvalidInput):
            agent.store.archive("soon", "archive")
        with pytest.raises(InvalidInput):
            agent.store.archive("1d", "archive", kinds=["memories"])
        with pytest.raises(InvalidInput):
            agent.store.archived(name="x")


def test_a_process_may_be_forbidden_to_read_archives(clock: HeldClock, tmp_path: Path, place: Path) -> None:
    """As `tenuto serve` is: a tenant's records must not make a server open what they name."""
    with Tenuto("agent", tmp_path / "a.db", clock=clock) as agent:
        _fill(agent)
        clock.advance(DAY)
        agent.store.archive("1h", place)
    with Tenuto("served", tmp_path / "a.db", clock=clock, archive="") as served:
        with pytest.raises(InvalidInput, match="TENUTO_ARCHIVE"):
            served.thread("ann-chat").messages()
        assert served.thread("ann-chat").count() == 31


def test_an_api_key_confined_to_scopes_misses_what_is_not_there_as_before(clock: HeldClock, place: Path) -> None:
    backend = connect("volatile:", clock=clock)
    with Tenuto("agent", backend, clock=clock) as agent:
        _fill(agent)
        clock.advance(DAY)
        agent.store.archive("1h", place)
        confined = Tenuto("confined", Confine(backend, "default", "ann"), clock=clock)
        assert confined.thread("ann-chat").count() == 31
        with pytest.raises(AccessDenied):
            confined.thread("ann-chat").messages()
        with pytest.raises(NotFound):
            confined.checkpoint.restore(id="ann-chat@7")


@pytest.mark.races
def test_readers_and_archivers_at_once_lose_nothing(agent: Tenuto, clock: HeldClock, place: Path) -> None:
    count = 600 if LONG else 60
    for name in ("a", "b"):
        for n in range(count):
            agent.thread(name).append({"role": "user", "content": f"{name}{n}"})
    over = threading.Event()
    wrong: list[Any] = []

    def read(name: str) -> None:
        while not over.is_set():
            try:
                found = [one["content"] for one in agent.thread(name).messages()]
            except Exception as error:
                found = [repr(error)]
            if found != [f"{name}{n}" for n in range(count)]:
                wrong.append(found[:3])
                return

    readers = [threading.Thread(target=read, args=(name,)) for name in ("a", "b", "a")]
    clock.advance(DAY)
    for reader in readers:
        reader.start()
    moved = 0
    for _ in range(20 if LONG else 4):
        clock.advance(2 * 3_600)
        moved += agent.store.archive("1h", place).threads
    over.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    for name in ("a", "b"):
        assert len(agent.thread(name).messages()) == count
    assert agent.store.check().findings == []


@pytest.mark.slow
def test_a_bucket_is_an_archive_and_its_absence_is_a_clear_error(clock: HeldClock, tmp_path: Path) -> None:
    server = S3Server(tmp_path / "s3")
    try:
        with credentials(), Tenuto("agent", tmp_path / "a.db", clock=clock) as agent:
            _fill(agent)
            before = _view(agent)
            clock.advance(DAY)
            done = agent.store.archive("1h", server.url("some/prefix"))
            assert len(list((server.folder / "some" / "prefix").iterdir())) == done.objects
            assert _view(agent) == before
            clock.advance(DAY)
            agent.store.archive("1h", server.url("some/prefix"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
                with pytest.raises(AccessDenied):
                    agent.thread("ann-chat").messages()
            agent.runs.delete("ann-run")
            assert agent.store.archive("1h", server.url("some/prefix")).removed == 1
            for part in agent.store.archived():
                places.opened(part.place).delete(part.object)
            with pytest.raises(Damaged, match="has lost the object"):
                agent.thread("ann-chat").messages()
            server.stop()
            with pytest.raises(StorageUnavailable):
                agent.thread("ann-chat").messages()
            assert agent.thread("ann-chat").count() == 31
    finally:
        server.stop()
