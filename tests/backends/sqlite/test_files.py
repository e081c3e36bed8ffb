"""What people and programs do to the files of a store: links, copies, backups, removals, upgrades, full and read-only disks.

Each is served, or refused by an error that says what happened. None of it is mistaken for something else, and no
client goes on writing into a file that nobody will find.
"""

import os
import pwd
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Damaged, NewerFormat, StorageFull, StorageUnavailable, Tenuto
from tenuto.errors import TenutoError

NEWER = 99


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def beside(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)


def filled(path: Path, count: int = 20, **options: Any) -> Tenuto:
    """Return an open client of a store with some values."""
    agent = Tenuto("writer", path, **options)
    for number in range(count):
        agent.state.set("s", f"k{number}", "x" * 500)
    assert len(agent.state.keys("s")) == count
    return agent


def keys_of(path: Path) -> int:
    with Tenuto("judge", path) as agent:
        assert agent.store.check().ok
        return len(agent.state.keys("s"))


# -- two names ---------------------------------------------------------------------------------------


def test_two_names_of_one_file_are_one_store(path: Path) -> None:
    with filled(path, 1) as one:
        beside(path, ".link").symlink_to(path)
        with Tenuto("other", beside(path, ".link")) as other:
            for number in range(20):
                one.state.set("s", "k0", number)
                assert other.state.get("s", "k0") == number
                other.state.update("s", "k0", lambda value: value + 100)
                assert one.state.get("s", "k0") == number + 100
            assert other.store.check().ok
        assert [file.name for file in path.parent.glob("*-lock")] == ["store.db-lock"]


# -- backups and copies ------------------------------------------------------------------------------


@pytest.mark.scorecard(17)
def test_a_backup_of_a_busy_store_ends_and_is_of_one_moment(path: Path) -> None:
    # given a store of several thousand pages that is written to all the time
    agent, over, moment = filled(path, 3, durability="process"), threading.Event(), []
    for number in range(200):
        agent.state.set("large", f"k{number}", os.urandom(60_000))

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            agent.state.set("pair", "left", number)
            agent.state.set("pair", "right", number)

    writer = threading.Thread(target=write)
    writer.start()
    # when it is backed up, and a commit is made between any two steps of it
    made: list[int] = []

    def progress(done: int, _pages: int) -> None:
        agent.state.set("between", "steps", done)
        moment.append(agent.state.get("pair", "left"))
        made.append(done)
        assert len(made) < 100, "the backup starts over and over"

    agent.store.backup(beside(path, ".copy"), progress=progress)
    over.set()
    writer.join()
    agent.close()
    # then each step came further than the one before, and the copy holds nothing that was written after the first
    assert made == sorted(set(made))
    with Tenuto("judge", beside(path, ".copy")) as judge:
        assert judge.store.check().ok
        assert len(judge.state.keys("large")) == 200
        left, right = judge.state.get("pair", "left", default=0), judge.state.get("pair", "right", default=0)
        assert right <= left <= right + 1
        assert left <= moment[0]
        assert judge.state.get("between", "steps") is None


def test_a_backup_is_complete_and_not_in_use(path: Path) -> None:
    # given a backup made while the store was in use
    with filled(path) as agent:
        agent.store.backup(beside(path, ".copy"))
    # when it is moved elsewhere, alone; then it opens, and holds everything
    shutil.copyfile(beside(path, ".copy"), beside(path, ".moved"))
    assert keys_of(beside(path, ".moved")) == 20


@pytest.mark.scorecard(17, planted=True)
def test_a_copy_of_the_file_alone_from_a_running_store_is_refused(path: Path) -> None:
    # given a client that has written, when the file alone is copied
    agent = filled(path)
    shutil.copyfile(path, beside(path, ".copy"))
    # then the copy is refused: what it lacks is in the write-ahead log
    with pytest.raises(Damaged, match=r"copied while it was in use.*tenuto backup"):
        Tenuto("judge", beside(path, ".copy")).open()
    agent.close()
    assert keys_of(path) == 20


def test_a_copy_of_the_file_alone_from_a_closed_store_opens(path: Path) -> None:
    filled(path).close()
    shutil.copyfile(path, beside(path, ".copy"))
    assert keys_of(beside(path, ".copy")) == 20


def test_a_copy_with_its_write_ahead_log_opens(path: Path) -> None:
    agent = filled(path)
    shutil.copyfile(path, beside(path, ".copy"))
    shutil.copyfile(beside(path, "-wal"), beside(path, ".copy-wal"))
    assert keys_of(beside(path, ".copy")) == 20
    agent.close()


# -- files that go away ------------------------------------------------------------------------------


def test_a_lock_file_that_is_truncated_under_a_client_harms_nobody(path: Path) -> None:
    # given a client, when its lock file is cut to nothing; in a process of its own, since that may be killed by it
    code = """
        import os, sys
        from tenuto import Tenuto
        with Tenuto("a", sys.argv[1]) as agent:
            agent.state.set("s", "k", 1)
            os.truncate(sys.argv[1] + "-lock", 0)
            assert agent.state.get("s", "k") == 1
            agent.state.set("s", "k", 2)
            assert agent.store.check().ok
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), path], capture_output=True, text=True, check=False
    )
    # then it goes on
    assert (done.returncode, done.stderr) == (0, "")
    assert keys_of(path) == 1


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copyfile(path, beside(path, ".new"))
    beside(path, ".new").replace(path)


def replace_all(path: Path) -> None:
    """Restore a backup while the store is in use."""
    with Tenuto("backup", path) as agent:
        agent.store.backup(beside(path, ".new"))
    beside(path, "-wal").unlink()
    beside(path, ".new").replace(path)


@pytest.mark.parametrize(
    ("what", "part"), [(remove, ""), (remove, "-wal"), (replace, ""), (replace, "-wal"), (replace_all, "")]
)
def test_files_that_are_removed_or_replaced_are_noticed_by_the_next_commit(
    path: Path, what: Callable[[Path], None], part: str
) -> None:
    # given a client, when a file of its store is removed or replaced
    agent = filled(path)
    what(beside(path, part))
    # then nothing is written into a file that nobody will find
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="removed or replaced"):
            agent.state.set("s", "late", 1)
    agent.close()


def test_another_client_of_a_removed_file_is_told_that_it_was_removed(path: Path) -> None:
    # given a client with commits in its -wal, when the file is removed and another process opens the path
    agent = Tenuto("a", path).open()
    for number in range(50):
        agent.state.set("s", f"k{number}", number)
    path.unlink()
    code = """
        import sys
        from tenuto import StorageUnavailable, Tenuto
        try:
            Tenuto("b", sys.argv[1]).state.get("s", "k1")
        except StorageUnavailable as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), path], capture_output=True, text=True, check=True
    )
    # then it does not blame the disk
    assert "removed, replaced or cut" in done.stdout
    agent.close()


def test_a_folder_that_is_removed_is_noticed_by_the_next_commit(tmp_path: Path) -> None:
    agent = filled(tmp_path / "folder" / "store.db")
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        agent.state.set("s", "late", 1)
    agent.close()
    assert not (tmp_path / "folder").exists()


# -- newer versions ----------------------------------------------------------------------------------


def upgrade(path: Path, sql: str) -> None:
    """Do what a newer version does to a store that is in use."""
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(f"{sql}; INSERT INTO migrations VALUES ({NEWER}, 'newer', 0)")
    connection.close()


def test_a_running_client_stops_writing_when_a_newer_version_raises_min_writer(path: Path) -> None:
    agent = filled(path)
    upgrade(path, f"UPDATE meta SET value = {NEWER} WHERE name = 'min_writer'")
    with pytest.raises(NewerFormat, match=r"Nothing was written.*[Uu]pgrade"):
        agent.state.set("s", "late", 1)
    assert len(agent.state.keys("s")) == 20  # it may still read
    agent.close()


def test_a_running_client_is_told_why_when_a_newer_version_renames_a_table(path: Path) -> None:
    agent = filled(path)
    upgrade(
        path,
        f"ALTER TABLE records RENAME TO records{NEWER}; ALTER TABLE requests RENAME TO requests{NEWER}; "
        f"UPDATE meta SET value = {NEWER} WHERE name IN ('min_reader', 'min_writer')",
    )
    calls: list[Callable[[], object]] = [
        lambda: agent.state.set("s", "late", 1),
        lambda: agent.state.get("s", "k0"),
        lambda: agent.state.keys("s"),
    ]
    for call in calls:
        with pytest.raises(NewerFormat, match=r"newer version.*Upgrade"):
            call()
    agent.close()


# -- rights ------------------------------------------------------------------------------------------


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that everybody may use, unlike pytest's own."""
    place = Path("/tmp") / f"tenuto-files-{os.getpid()}-{threading.get_ident()}"
    place.mkdir()
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


AS_NOBODY = """
    import os, sys
    import tenuto.backends.sqlite
    from pathlib import Path
    from tenuto import Tenuto
    os.setgid({gid}); os.setuid({uid})
    path = Path(sys.argv[1])
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 1)
    path.chmod(0o444)
    reader = Tenuto("reader", path)
    assert reader.state.get("s", "k") == 1
    if sys.argv[2] == "closed":
        reader.close()
    path.chmod(0o644)
    with Tenuto("b", path) as agent:
        agent.state.set("s", "k", 2)
        assert agent.state.get("s", "k") == 2
    reader.close()
    with Tenuto("c", path) as agent:
        agent.state.set("s", "k", 3)
        assert agent.store.check().ok
"""


@pytest.mark.parametrize("reader", ["closed", "open"])
def test_a_store_that_was_read_only_for_a_while_can_be_written_again(open_place: Path, reader: str) -> None:
    # a reader of a read-only store makes its -wal and -shm with the same rights; root would have all rights
    user = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    code = textwrap.dedent(AS_NOBODY.format(uid=user.pw_uid, gid=user.pw_gid))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(open_place / "store.db"), reader]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- disks -------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a file system needs root: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(filler: Path, left: int) -> None:
    """Leave so many bytes free."""
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4_096)):
                pass
        except OSError:
            pass
    os.truncate(filler, max(0, filler.stat().st_size - left))


def test_a_nearly_full_disk_is_never_mistaken_for_damage(disk: Path) -> None:
    # given disks with 0, 1, 2, … pages left, when a store is made there
    said = []
    for pages in range(48):
        for file in disk.iterdir():
            file.unlink()
        fill(disk / "filler", pages * 4_096)
        agent = Tenuto("a", disk / "store.db")
        try:
            agent.state.set("s", "k", pages)
        except TenutoError as error:
            said.append(error)
        agent.close()
        # then it is there once there is room
        (disk / "filler").unlink()
        with Tenuto("b", disk / "store.db") as agent:
            agent.state.set("s", "k2", pages)
            assert agent.store.check().ok
    assert 0 < len(said) < 48
    assert {type(error) for error in said} == {StorageFull}


def test_a_closed_store_on_a_read_only_disk_is_read(disk: Path) -> None:
    filled(disk / "store.db").close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with Tenuto("reader", disk / "store.db") as agent:
        assert len(agent.state.keys("s")) == 20
        assert agent.store.check().ok
        with pytest.raises(TenutoError, match="cannot be written"):
            agent.state.set("s", "late", 1)
