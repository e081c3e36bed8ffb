"""A SQLite store as a file: its settings, its format, and files that are no store or cannot be written."""

import os
import pwd
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Damaged, InvalidInput, NewerFormat, Tenuto, _machine
from tenuto.backends.sqlite import NetworkFilesystemWarning, SqliteBackend, schema
from tenuto.kernel import keys
from tenuto.kernel.contract import Delete, Put

A, B = keys.pack("t", "s", "a"), keys.pack("t", "s", "b")


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("process", 1)])
def test_every_connection_has_the_settings_that_the_promise_rests_on(path: Path, durability: Any, level: int) -> None:
    backend = SqliteBackend(path, durability=durability)
    backend.commit([], [Put(A, b"1")])
    backend.read([A])
    assert backend._store is not None
    handles = [backend._store.handle, *backend._readers.free]
    assert len(handles) >= 2
    for connection in (handle.connection for handle in handles):
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == level
        assert connection.pragma("secure_delete") == 1
        assert connection.pragma("cell_size_check") == 1
        assert connection.pragma("trusted_schema") == 0
        assert connection.pragma("wal_autocheckpoint") == 0
    assert apsw.sqlite_lib_version() >= "3.51.3"
    backend.close()


def test_deleted_values_leave_no_trace_in_the_file(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"SECRET" * 50), Put(B, b"other")])
    backend.commit([], [Delete(A)])
    backend.close()
    assert b"SECRETSECRET" not in path.read_bytes()


# -- the format ----------------------------------------------------------------------------------


NEXT = schema.Migration(
    len(schema.MIGRATIONS) + 1,
    "one more",
    "CREATE TABLE extra (x); INSERT INTO extra VALUES (1);",
    1,
    len(schema.MIGRATIONS) + 1,
)


def test_an_upgraded_store_has_the_tables_of_a_new_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(file: Path) -> list[Any]:
        SqliteBackend(file).open()
        connection = apsw.Connection(str(file))
        found: list[Any] = connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        assert connection.pragma("application_id") == schema.APPLICATION_ID
        connection.close()
        return found

    assert [m.number for m in schema.MIGRATIONS] == list(range(1, len(schema.MIGRATIONS) + 1))
    before = tables(path)
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
    assert tables(path) == tables(path.with_name("new.db")) != before


@pytest.mark.scorecard(17)
def test_an_older_store_is_upgraded_after_a_backup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", "kept")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
    with Tenuto("a", path) as agent:
        assert agent.state.get("s", "k") == "kept"
        assert agent.store.check().ok
    names = apsw.Connection(str(path)).execute("SELECT number, name FROM migrations").fetchall()
    assert names == [(one.number, one.name) for one in schema.MIGRATIONS]
    monkeypatch.undo()
    backup = path.with_name(f"store.db.format{schema.FORMAT}.backup")
    shutil.copy(backup, path.with_name("old.db"))
    with Tenuto("a", path.with_name("old.db")) as agent:
        assert agent.state.get("s", "k") == "kept"


@pytest.mark.scorecard(17)
def test_a_migration_that_fails_halfway_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", "kept")
    broken = NEXT._replace(sql="CREATE TABLE extra (x); INSERT INTO nowhere VALUES (1);")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, broken])
    with pytest.raises(Damaged):
        Tenuto("a", path).open()
    monkeypatch.undo()
    with Tenuto("a", path) as agent:
        assert agent.state.get("s", "k") == "kept"
    tables = apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall()
    assert ("extra",) not in tables


@pytest.mark.scorecard(17)
def test_a_newer_format_is_refused_and_left_untouched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
    Tenuto("a", path).open().close()
    before = path.read_bytes()
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match="Upgrade tenuto"):
        Tenuto("a", path).open()
    assert path.read_bytes() == before


def test_a_newer_format_that_older_versions_may_write_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT._replace(min_writer=1)])
    Tenuto("a", path).open().close()
    monkeypatch.undo()
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 1)


# -- files that are something else -----------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"a letter to somebody " * 300)
    with pytest.raises(InvalidInput, match="not a tenuto store"):
        Tenuto("a", path).open()
    assert path.read_bytes() == b"a letter to somebody " * 300


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(InvalidInput, match="another program"):
        Tenuto("a", path).open()
    assert apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a folder"):
        Tenuto("a", tmp_path).open()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with Tenuto("a", path) as agent:
        assert agent.state.set("s", "k", 1) == 1


AS_NOBODY = """
    import os, sys
    import tenuto.backends.sqlite
    from tenuto import Tenuto, TenutoError
    os.setgid({gid}); os.setuid({uid})
    agent = Tenuto("a", sys.argv[1])
    for call in (lambda: agent.state.get("s", "k"), lambda: agent.state.set("s", "k", 2)):
        try:
            print(call())
        except TenutoError as error:
            print(type(error).__name__, error)
"""


def as_nobody(path: Path) -> list[str]:
    """Use a store as a user without rights (root has them all, whatever a file's mode says)."""
    if os.getuid() != 0:
        uid, gid = os.getuid(), os.getgid()
    else:
        nobody = pwd.getpwnam("nobody")
        uid, gid = nobody.pw_uid, nobody.pw_gid
    code = textwrap.dedent(AS_NOBODY.format(uid=uid, gid=gid))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def open_place() -> Any:
    """A folder that everybody may enter, unlike pytest's own."""
    place = Path("/tmp") / f"tenuto-{os.getpid()}-{threading.get_ident()}"
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


def test_a_folder_that_cannot_be_written_is_said_to_be_so(open_place: Path) -> None:
    lines = as_nobody(open_place / "store.db")
    assert all(line.startswith(("StorageUnavailable", "ReadOnly", "InvalidInput")) for line in lines)
    assert all("permission" in line or "writable" in line or "written" in line for line in lines)
    assert list(open_place.iterdir()) == []


def test_a_file_that_cannot_be_written_can_be_read(open_place: Path) -> None:
    with Tenuto("a", open_place / "store.db") as agent:
        agent.state.set("s", "k", 1)
        # another process has it open: the log and its index are there
        for file in open_place.iterdir():
            file.chmod(0o444)
        lines = as_nobody(open_place / "store.db")
        assert lines[0] == "1"
        assert lines[1].startswith("ReadOnly")
        assert "permissions" in lines[1]
        assert agent.state.get("s", "k") == 1


def test_a_network_file_system_is_warned_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "network_filesystem", lambda _: "nfs4")
    with pytest.warns(NetworkFilesystemWarning, match="nfs4.*locks"):
        Tenuto("a", path).open()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tenuto("a", path).open()


def test_network_file_systems_are_known_by_what_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"1 2 0:1 / / rw - ext4 /dev/vda rw\n3 1 0:2 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n4 1 0:3 / {tmp_path}/s\\040p rw - fuse.sshfs x rw\n"
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: mounts)
    assert _machine.network_filesystem(tmp_path / "x") == "nfs4"
    assert _machine.network_filesystem(tmp_path / "s p" / "x") == "fuse.sshfs"
    assert _machine.network_filesystem(Path("/other")) is None


def test_folders_that_have_to_be_made_are_closed_to_others(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        Tenuto("a", tmp_path / "one" / "two" / "store.db").open().close()
    finally:
        os.umask(umask)
    assert [place.stat().st_mode & 0o777 for place in (tmp_path / "one", tmp_path / "one" / "two")] == [0o700, 0o700]
