"""The doctor: each finding where it is made, on real files and real servers wherever there is such a thing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import jsonschema
import pytest
from click.testing import CliRunner
from support import pg_server, redis_servers

from tenuto import Tenuto, Waiting, _machine
from tenuto.cli import examinations, group
from tenuto.cli.examinations import Diagnosis
from tenuto.cli.schema import printed
from tenuto.operations.jsonable import schema
from tenuto.testing import HeldClock


def doctor(url: Any) -> dict[str, dict[str, Any]]:
    """Return the findings by what they are about, worst last; the text and the exit code are looked at too."""
    done = CliRunner().invoke(group, ["doctor", "--json", "--url", str(url)])
    found = json.loads(done.stdout)
    jsonschema.validate(found, schema(list[Diagnosis]))
    assert done.exit_code == (1 if any(one["status"] != "ok" for one in found) else 0)
    text = CliRunner().invoke(group, ["doctor", "--url", str(url)])
    assert text.exit_code == done.exit_code
    for one in found:
        assert (one["status"] == "ok") == (one["advice"] == "")
        assert one["advice"].split("\n")[0] in text.stdout
    order = {"ok": 0, "warning": 1, "error": 2}
    return {one["about"]: one for one in sorted(found, key=lambda one: order[one["status"]])}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Tenuto("agent", tmp_path / "store.db") as agent:
        agent.state.set("task", "page", 1)
    return tmp_path / "store.db"


def test_a_store_in_order_is_described(store: Path) -> None:
    found = doctor(store)
    assert {one["status"] for one in found.values()} == {"ok"}
    assert found["store"]["what"].startswith(f"{store}: sqlite 3.")
    assert "1 records, 1 journal entries" in found["store"]["what"]
    assert "free on the disk" in found["disk"]["what"]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found = doctor(tmp_path / "deep" / "none.db")
    assert found["store"]["status"] == "warning"
    assert "tenuto init" in found["store"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_cannot_be_used(tmp_path: Path) -> None:
    assert "is not a supported store" in doctor("mysql://x")["url"]["advice"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written(store: Path) -> None:
    store.parent.chmod(0o500)
    try:
        assert doctor(store)["folder"]["status"] == "error"
    finally:
        store.parent.chmod(0o700)


def test_a_folder_that_cannot_be_written_as_the_system_says_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != store.parent and real(path, mode))
    assert "right to write the file and its folder" in doctor(store)["folder"]["advice"]


def test_a_network_file_system(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "\n".join(["25 1 8:1 / / rw - ext4 /dev/sda1 rw", f"36 25 0:41 / {store.parent} rw - nfs4 files:/home rw"])
    real = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *a, **k: mounts if str(self) == "/proc/self/mountinfo" else real(self, *a, **k),
    )
    assert _machine.network_filesystem(store.parent) == "nfs4"
    found = doctor(store)
    assert found["network"]["status"] == "error"
    assert "(nfs4)" in found["network"]["what"]
    assert "postgresql://" in found["network"]["advice"]


@pytest.mark.parametrize(("free", "status"), [(100 * 2**20, "warning"), (2**20, "error")])
def test_a_disk_that_is_full_or_nearly(store: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=2**40 - free, free=free))
    found = doctor(store)["disk"]
    assert found["status"] == status
    assert f"only {free // 2**20}.0 MB" in found["what"]


def test_somebody_who_reads_for_a_long_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examinations, "LONG_LOG", 2**20)
    code = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN');"
        "c.execute('SELECT count(*) FROM records').fetchall(); print('reads', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "reads\n"
        with Tenuto("agent", store) as agent:
            for number in range(40):
                agent.state.set("task", "page", "x" * 50_000 + str(number))
            found = doctor(store)["log"]
        reader.stdin.close()
        assert found["status"] == "warning"
        assert f"{reader.pid} (" in found["advice"] or sys.platform != "linux"


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"not a database, and nothing that is like one" * 100)
    found = doctor(path)["store"]
    assert found["status"] == "error"
    assert "is not a tenuto store" in found["advice"]


def test_a_damaged_file(store: Path) -> None:
    with Tenuto("agent", store) as agent:
        for number in range(300):
            agent.state.set("task", f"key-{number}", "x" * 200)
    with apsw.Connection(str(store)) as raw:
        raw.pragma("wal_checkpoint", "truncate")
    data = bytearray(store.read_bytes())
    for at in range(4096 + 100, len(data), 97):
        data[at] ^= 0x55
    store.write_bytes(data)
    found = doctor(store)
    assert found["damage"]["status"] == "error"
    assert "keep a copy" in found["damage"]["advice"]


def test_a_store_of_a_newer_tenuto(store: Path) -> None:
    with apsw.Connection(str(store)) as raw:
        raw.execute("INSERT INTO migrations VALUES (999, 'of the future', 0)")
        raw.execute("UPDATE meta SET value = 999 WHERE name IN ('min_reader', 'min_writer')")
    found = doctor(store)["format"]
    assert found["status"] == "error"
    assert "Upgrade tenuto" in found["advice"]


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    clock = HeldClock(time.time() + 3_600)
    with Tenuto("agent", tmp_path / "store.db", clock=clock) as agent:
        agent.state.set("task", "page", 1)
    assert "in the future" in doctor(tmp_path / "store.db")["clock"]["what"]


class _Killed(BaseException):
    """The process ends here."""


def _dies() -> None:
    raise _Killed


def test_runs_with_which_nobody_goes_on(tmp_path: Path) -> None:
    clock = HeldClock(time.time() - 3_600)
    with Tenuto("agent", tmp_path / "store.db", clock=clock) as agent:
        with pytest.raises(_Killed), agent.run("cut-off") as run:
            run.step("a", _dies)
        with pytest.raises(Waiting), agent.run("asleep") as run:
            run.sleep("10m")
        for _ in range(2):
            with pytest.raises(BaseException), agent.run("doubtful") as run:  # noqa: B017 - killed, then in doubt
                run.step("charge", _dies, effect="once")

        @agent.durable
        def job(run: Any) -> None: ...

        job.start("job-1")
    found = doctor(tmp_path / "store.db")
    assert found["interrupted"]["what"] == "1 run is interrupted and not resumed: cut-off"
    assert found["overdue"]["what"] == "2 runs are due and not resumed: job-1, asleep"
    assert found["in_doubt"]["what"] == "1 run is in doubt: doubtful"
    assert "tenuto inbox" in found["in_doubt"]["advice"]


def test_a_driver_that_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = sys.modules['redis'] = None\n"
        "from tenuto.cli import main; main(['doctor', '--url', sys.argv[1]])"
    )
    for url, extra in (("postgresql://localhost/x", "tenuto[postgres]"), ("redis://localhost", "tenuto[redis]")):
        done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert "the driver of this store is not installed" in done.stdout
        assert f"pip install {extra}" in done.stdout
        assert "without the extras" in done.stdout


def test_a_server_that_is_away() -> None:
    assert doctor("redis://127.0.0.1:1/0?timeout=1")["away"]["status"] == "error"


@pytest.fixture
def valkey() -> Iterator[Any]:
    with redis_servers.Server("--appendonly", "no") as server:
        yield server


@pytest.mark.slow
def test_a_valkey_that_keeps_no_log(valkey: Any) -> None:
    refused = doctor(valkey.url())["store"]
    assert refused["status"] == "error"
    assert 'Set "appendonly yes" there' in refused["advice"]
    meant = doctor(valkey.url(durability="process"))
    assert meant["durability"]["status"] == "warning"
    assert "without appendonly" in meant["durability"]["what"]
    assert "valkey" in meant["store"]["what"].lower() or "redis" in meant["store"]["what"]


@pytest.mark.slow
def test_a_clock_that_differs_from_the_servers(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(examinations.time, "time", lambda: real() - 30)
    found = doctor(valkey.url(durability="process"))["clock"]
    assert found["status"] == "warning"
    assert "behind" in found["what"]


@pytest.mark.slow
def test_a_postgres_without_the_schema_is_told_and_not_changed(postgres: Any) -> None:
    url = pg_server.with_options(postgres.url, schema=pg_server.new_schema())
    for _ in range(2):
        found = doctor(url)["schema"]
        assert found["status"] == "error"
        assert "tenuto migrate" in found["advice"]
    for words, code in ((["--check"], 1), (["--sql"], 0), ([], 0), (["--check"], 0)):
        done = CliRunner().invoke(group, ["migrate", "--url", url, "--json", *words])
        assert done.exit_code == code
        jsonschema.validate(json.loads(done.stdout), schema(printed()["migrate"]))
    assert {one["status"] for one in doctor(url).values()} == {"ok"}
