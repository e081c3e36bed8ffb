"""`tenuto encryption` and `tenuto spool`: output, JSON and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tenuto import Encryption, Spool, Tenuto
from tenuto.backends import connect
from tenuto.cli import group
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put


def run(*words: Any, **environment: str) -> Any:
    return CliRunner().invoke(group, [str(word) for word in words], env=environment)


def test_a_key_is_made_used_rotated_and_a_user_forgotten(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    old, new = (run("encryption", "new").stdout.strip() for _ in range(2))
    assert json.loads(run("encryption", "new", "--json").stdout)["key"] not in (old, new)
    with Tenuto("a", store, encryption_key=Encryption(old, user_keys=True)) as agent:
        agent.user("ann").set("city", "Lisbon")
        agent.state.set("s", "k", 1)
    state = ("state", "get", "s", "k", "--url", store, "--json")
    assert run(*state).exit_code == 1
    assert "no key was given" in run(*state).stderr
    assert run(*state, TENUTO_ENCRYPTION_KEY=new).exit_code == 1
    assert run(*state, TENUTO_ENCRYPTION_KEY=old).exit_code == 0
    rotated = run("encryption", "rotate", "--url", store, "--json", TENUTO_ENCRYPTION_KEY=f"{new},{old}")
    assert json.loads(rotated.stdout) == {"data_keys": 2, "user_keys": 2}
    assert run(*state, TENUTO_ENCRYPTION_KEY=old).exit_code == 1
    assert run(*state, TENUTO_ENCRYPTION_KEY=new).exit_code == 0
    forget = ("encryption", "destroy-user-key", "ann", "--url", store)
    assert run(*forget, TENUTO_ENCRYPTION_KEY=new).exit_code == 2, "without a terminal it takes --yes"
    assert run(*forget, "--yes", TENUTO_ENCRYPTION_KEY=new).stdout.strip() == "the key of ann is destroyed"
    assert run(*forget, "--yes", TENUTO_ENCRYPTION_KEY=new).exit_code == 3
    with Tenuto("a", store, encryption_key=new) as agent:
        assert agent.user("ann").get("city") is None
    assert run("encryption", "rotate", "--url", store).exit_code == 1, "without a key"


def test_a_spool_is_shown_replayed_and_a_conflict_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, file, log, a = (
        tmp_path / "store.db",
        tmp_path / "spool.db",
        keys.pack("t", "s", "log"),
        keys.pack("t", "s", "a"),
    )
    spool = Spool(connect(url), file, retry=3600)
    spool.commit([], [Append(log, b"1"), Put(a, b"1")])
    spool._away_until = float("inf")
    spool.commit([], [Append(log, b"2")])
    spool.commit([], [Put(a, b"mine")])
    spool.close()
    assert run("spool", "show", file, "--url", url).stdout.strip() == "2 kept, 0 conflicts"
    away = run("spool", "replay", file, "--url", "postgresql://127.0.0.1:1/x?timeout=0.5")
    assert (away.exit_code, "It" in away.stderr or "away" in away.stderr) == (6, True)
    store = connect(url)
    store.commit([], [Put(a, b"theirs")])
    replayed = run("spool", "replay", file, "--url", url, "--json")
    assert (replayed.exit_code, json.loads(replayed.stdout)) == (1, {"applied": 1, "conflicts": 1, "pending": 0})
    shown = json.loads(run("spool", "show", file, "--url", url, "--json").stdout)
    assert shown["conflicts"][0]["keys"] == ["t/s/a"]
    number = shown["conflicts"][0]["number"]
    assert run("spool", "discard", file, number, "--url", url).exit_code == 2
    assert run("spool", "discard", file, number, "--url", url, "--yes").exit_code == 0
    assert run("spool", "discard", file, number, "--url", url, "--yes").exit_code == 3
    assert run("spool", "show", file, "--url", url).exit_code == 0
    assert [entry.value for entry in store.entries(log)] == [b"1", b"2"]
