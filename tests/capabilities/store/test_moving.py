"""Export, import, copy and compare: whatever a store holds, it is equal on any other store afterwards."""

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from support.everything import every, fill, operations
from support.long import LONG
from support.stores import new_url

from tenuto import Conflict, Damaged, InvalidInput, NewerFormat, Tenuto
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record


@pytest.mark.slow
@settings(max_examples=60 if LONG else 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=operations)
@example(ops=every)
def test_a_store_is_equal_at_every_hop(ops: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """SQLite -> Postgres -> Valkey -> SQLite, by copy and by export, and into another tenant."""
    first = Tenuto("first", tmp_path / f"{uuid.uuid4()}.db")
    fill(first, ops)
    before, here = first.store.summary(), first
    for kind in ("postgres", "valkey", "sqlite"):
        url = new_url(kind, request, tmp_path / f"{uuid.uuid4()}.db")
        there = Tenuto("next", url, tenant="other" if kind == "valkey" else "default")
        if kind == "valkey":
            path = tmp_path / f"{uuid.uuid4()}.jsonl"
            exported = here.store.export(path)
            assert exported.digest == there.store.import_(path).digest == before.digest
        else:
            done = there.store.copy_from(here.store)
            assert done.new == before.records + before.entries
        assert there.store.compare(first.store) == []
        assert there.store.summary() == before
        assert there.store.check().findings == []
        here = there
    _use(here)
    for agent in (first, here):
        agent.close()


def _use(agent: Tenuto) -> None:
    """What was copied is not only equal but of use: it can be read and written."""
    agent.state.set("scope 0", "key0", "after")
    assert agent.state.get("scope 0", "key0") == "after"
    assert [line.number for line in agent.thread("t0").timeline()] == sorted(
        x.number for x in agent.thread("t0").timeline()
    )
    assert agent.inbox.list(to="ann") is not None
    assert agent.memory.list(user="user0") is not None
    agent.thread("t0").append({"role": "user", "content": "on"})


def _filled(path: Path) -> Tenuto:
    agent = Tenuto("agent", path)
    fill(agent, every[:6])
    return agent


def test_history_moves_with_its_times(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("b", "volatile:") as other:
        for n in range(3):
            agent.state.set("s", "k", n)
        other.store.copy_from(agent.store)
        assert list(other.state.history("s", "k")) == list(agent.state.history("s", "k"))


def test_an_export_continues_after_the_last_whole_line(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent:
        whole = agent.store.export(tmp_path / "whole.jsonl")
        body = (tmp_path / "whole.jsonl").read_bytes()
        lines = body.splitlines(keepends=True)
        for cut in {10, len(lines[0]), len(body) // 3, len(body) - 20, len(body) - len(lines[-1]) - 1}:
            (tmp_path / "again.jsonl.partial").write_bytes(body[:cut])
            done = agent.store.export(tmp_path / "again.jsonl")
            assert done.digest == whole.digest
            assert done.resumed == max(0, body[:cut].count(b"\n") - 1)
            assert (tmp_path / "again.jsonl").read_bytes().splitlines()[1:] == body.splitlines()[1:]
            (tmp_path / "again.jsonl").unlink()
        with pytest.raises(InvalidInput):
            agent.store.export(tmp_path / "whole.jsonl")


def test_a_damaged_export_is_refused_and_nothing_is_imported(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent:
        agent.store.export(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    changed = json.loads(lines[3])
    changed["value"] = changed["value"][:-8] + "AAAAAAA="
    other = json.loads(lines[3])
    other["version"] += 1
    bad = {
        "cut": lines[:-1],
        "line missing": [*lines[:3], *lines[4:]],
        "value changed": [*lines[:3], json.dumps(changed).encode() + b"\n", *lines[4:]],
        "version changed": [*lines[:3], json.dumps(other).encode() + b"\n", *lines[4:]],
        "no JSON": [*lines[:3], b"{\n", *lines[4:]],
        "more after the end": [*lines, lines[3]],
    }
    with Tenuto("b", "volatile:") as agent:
        for name, wrong in bad.items():
            (tmp_path / "bad.jsonl").write_bytes(b"".join(wrong))
            with pytest.raises(Damaged):
                agent.store.import_(tmp_path / "bad.jsonl")
            assert agent.store.summary().records == 0, name
        (tmp_path / "bad.jsonl").write_bytes(lines[0].replace(b'"format":1', b'"format":2'))
        with pytest.raises(NewerFormat):
            agent.store.import_(tmp_path / "bad.jsonl")
        (tmp_path / "bad.jsonl").write_bytes(b'{"kind":"else"}\n')
        with pytest.raises(InvalidInput):
            agent.store.import_(tmp_path / "bad.jsonl")


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("b", "volatile:") as other:
        other.state.set("scope 0", "key0", "mine")
        with pytest.raises(Conflict):
            other.store.copy_from(agent.store)
        assert other.state.get("scope 0", "key0") == "mine"


def test_differences_are_named(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("b", "volatile:") as other:
        other.store.copy_from(agent.store)
        agent.state.set("scope 0", "key0", "changed")
        other.state.set("new", "k", 1)
        kinds = {(one.kind, one.key) for one in agent.store.compare(other.store)}
        assert ("different", "('scope 0', 'state', 'key0')") in kinds
        assert ("missing", "('new', 'state', 'k')") in kinds
        assert ("extra", "('scope 0', 'state') entry 2") in kinds
        assert len(agent.store.compare(other.store, limit=2)) == 2


def test_what_was_trimmed_and_forgotten_moves_as_it_is(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("b", "volatile:") as other:
        for n in range(9):
            agent.state.set("s", "k", n)
        (stream,) = agent.kernel.streams(b"\x02s\x00")
        agent.kernel.trim(stream, 5)
        other.store.copy_from(agent.store)
        assert other.store.compare(agent.store) == []
        anchor = agent.kernel.entries(stream, limit=1)[0].previous
        assert other.kernel.entries(stream, limit=1)[0].previous == anchor, "the anchor is kept"


def test_equality_ignores_the_digests_of_the_store_and_nothing_else() -> None:
    from tenuto.capabilities.store.rows import Row

    entry = Entry(3, b"v", 5.0, b"d" * 16, b"p" * 16, (1, 2))
    row = Row(None, b"\x02s\x00", entry)
    assert row.content == Row(None, b"\x02s\x00", entry._replace(digest=b"x", previous=b"y")).content
    for other in (
        entry._replace(number=4),
        entry._replace(value=b"w"),
        entry._replace(written_at=5.1),
        entry._replace(versions=(1, 3)),
        entry._replace(forgotten=True),
    ):
        assert row.content != Row(None, b"\x02s\x00", other).content


# -- backup and restore --------------------------------------------------------------------------------


def test_a_backup_is_restored_into_a_new_place_and_nothing_is_overwritten(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent:
        agent.store.backup(tmp_path / "copy.db")
        agent.store.export(tmp_path / "copy.jsonl")
        held = agent.store.summary()
    assert Tenuto.restore(tmp_path / "copy.db", tmp_path / "new.db") == held
    assert Tenuto.restore(tmp_path / "copy.jsonl", tmp_path / "other.db") == held
    for backup in ("copy.db", "copy.jsonl"):
        with pytest.raises(InvalidInput):
            Tenuto.restore(tmp_path / backup, tmp_path / "new.db")
    body = bytearray((tmp_path / "copy.db").read_bytes())
    at = body.index(b"message 0")
    body[at] ^= 1
    (tmp_path / "bad.db").write_bytes(body)
    with pytest.raises(Damaged):
        Tenuto.restore(tmp_path / "bad.db", tmp_path / "third.db")
    assert not (tmp_path / "third.db").exists()


@pytest.mark.slow
def test_a_restore_into_a_server_is_completed_by_the_next_call(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent:
        agent.store.backup(tmp_path / "copy.db")
        held = agent.store.summary()
        url = new_url("postgres", request, tmp_path)
        with Tenuto("half", url) as half:
            half.kernel.load(agent.kernel.scan(b"", limit=5), {})
        assert Tenuto.restore(tmp_path / "copy.db", url) == held
        with Tenuto("half", url) as half:
            half.state.set("mine", "k", 1)
        with pytest.raises(InvalidInput):
            Tenuto.restore(tmp_path / "copy.db", url)


def test_a_backup_of_a_server_is_compared_with_it_too(tmp_path: Path) -> None:
    from tenuto.cli.backup import _wrong

    with _filled(tmp_path / "a.db") as agent, Tenuto("other", tmp_path / "b.db") as other:
        agent.store.export(tmp_path / "a.jsonl")
        agent.state.set("scope 0", "later", 1)
        assert _wrong(agent, tmp_path / "a.jsonl") == []
        other.store.import_(tmp_path / "a.jsonl")
        other.kernel.load([Record(keys.pack("x", "state", "k"), b"one", 1, 5.0)], {})
        other.store.export(tmp_path / "b.jsonl")
        agent.kernel.load([Record(keys.pack("x", "state", "k"), b"two", 1, 5.0)], {})
        assert ["x" in one and "differs" in one for one in _wrong(agent, tmp_path / "b.jsonl")] == [True]


def test_scheduled_backups_keep_the_newest_and_are_verified(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tenuto.cli import group

    _filled(tmp_path / "a.db").close()
    for name, age in (("tenuto-1.db.partial", 7_200), ("tenuto-2.db.partial", 60)):  # left by backups that were killed
        left = tmp_path / "kept" / name
        left.parent.mkdir(exist_ok=True)
        left.touch()
        os.utime(left, (time.time() - age,) * 2)
    words = ["backup", str(tmp_path / "kept"), "--keep", "2", "--verify", "--json", "--url", str(tmp_path / "a.db")]
    made = [json.loads(CliRunner().invoke(group, words, catch_exceptions=False).stdout) for _ in range(3)]
    assert [one["verified"] for one in made] == [True] * 3
    assert [len(one["removed"]) for one in made] == [0, 0, 1]
    assert [path.name for path in (tmp_path / "kept").glob("*.partial")] == ["tenuto-2.db.partial"], "being made"
    assert sorted(str(path) for path in (tmp_path / "kept").glob("*.db")) == sorted(one["path"] for one in made[1:])
