"""Each command of operations is killed with -9 in the middle and run again: it completes, and nothing is lost."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.everything import every, fill
from support.long import LONG

from tenuto import Encryption, Tenuto, WrongKey
from tenuto.kernel import codec, keys

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="SIGKILL")]
SCRIPT = Path(__file__).parents[1] / "support" / "killed_at_call.py"
OLD, NEW = "a1" * 32, "b2" * 32
SECRET = "SECRET-of-ann"


def _fill(agent: Tenuto) -> None:
    fill(agent, every[:6])
    for user in ("ann", "ben"):
        text = SECRET if user == "ann" else "text of ben"
        thread = agent.thread(f"{user}-chat", user=user)
        for n in range(40):
            thread.append({"role": "user", "content": f"{text} {n}"})
        thread.append({"role": "user", "content": text * 8_000})
        thread.append({"role": "user", "content": text})
        with agent.run(f"{user}-run", user=user) as run:
            run.step("small", lambda text=text: text)
            run.step("large", lambda text=text: text * 8_000)
        for n in range(12):
            agent.checkpoint.create("auto", {"n": n, "list": [text] * n * 20}, thread=f"{user}-chat")
        for n in range(300):
            agent.user(user).set("count", f"{text} {n}")


def _view(agent: Tenuto) -> dict[str, Any]:
    """Everything that a program can read of threads, runs, checkpoints and state."""
    ids = [f"{user}-chat@{n}" for user in ("ann", "ben") for n in range(1, 13)]
    return {
        "threads": {one.id: agent.thread(one.id).messages(original=True) for one in agent.threads.list()},
        "timelines": {one.id: list(map(str, agent.thread(one.id).timeline())) for one in agent.threads.list()},
        "runs": {one.id: agent.runs.get(one.id) for one in agent.runs.list()},
        "checkpoints": {name: agent.checkpoint.restore(id=name, default=None) for name in ids},
        "state": {scope: agent.state.items(scope) for scope in ("scope 0", "scope 1")},
        "users": {user: agent.user(user).items() for user in ("ann", "ben")},
    }


def _run(number: int, words: list[str], **environment: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(number), *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    found = re.search(r"boundaries (\d+)", done.stderr)
    assert done.returncode in (0, -signal.SIGKILL) or number == 0, done.stderr
    return done.returncode, int(found[1]) if found else 0


def _values(archive: Path) -> bytes:
    """Return all values in the objects of an archive."""
    rows = [json.loads(line) for path in archive.iterdir() for line in path.read_bytes().splitlines()]
    return b"".join(base64.b64decode(row.get("value", "")) for row in rows)


class Story:
    """A store in a folder, the command on it, and what must hold when it has completed."""

    def __init__(
        self, words: list[str], judge: Callable[[Path, dict[str, Any]], None], kind: str = "plain", **environment: str
    ) -> None:
        self.words = words
        self.judge = judge
        self.kind = kind
        self.environment = environment

    def run(self, folder: Path, number: int) -> tuple[int, int]:
        words, environment = json.loads(json.dumps([self.words, self.environment]).replace("@", str(folder)))
        return _run(number, words, **environment)


def _equal(folder: Path, held: dict[str, Any], name: str = "b.db") -> None:
    with Tenuto("a", folder / "a.db") as one, Tenuto("b", folder / name) as other:
        assert other.store.compare(one.store) == []
        assert one.store.summary() == held["summary"]
        assert other.store.check().findings == []


def _backed_up(folder: Path, held: dict[str, Any]) -> None:
    made = sorted((folder / "kept").glob("*.db"))
    assert made
    for one in made:
        _equal(folder, held, f"kept/{one.name}")


def _exported(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("b", folder / "b.db") as agent:
        agent.store.import_(folder / "x.jsonl")
    _equal(folder, held)


def _pruned(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("a", folder / "a.db") as agent:
        assert agent.store.check().findings == []
        left = agent.store.prune("0s", dry_run=True)
        assert left.runs == left.tasks == left.checkpoints == left.threads == 0
        assert len(list(agent.state.history("scope 0", "key0"))) == 1
        now = _view(agent)
        assert (now["threads"], now["state"], now["users"]) == tuple(
            held["view"][name] for name in ("threads", "state", "users")
        )
        assert set(now["runs"]) == {name for name, one in held["view"]["runs"].items() if one.status == "waiting"}


def _archived(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("a", folder / "a.db") as agent:
        parts = agent.store.archived()
        assert {one.state for one in parts} == {"away"}
        assert {one.kind for one in parts} == {"thread", "run", "checkpoint"}
        assert len(list((folder / "archive").iterdir())) == len(parts), "no object is left over"
        _whole(agent, held)


def _returned(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("a", folder / "a.db", archive=folder / "archive") as agent:
        assert {one.state for one in agent.store.archived("thread", "ann-chat")} == {"here"}
        _whole(agent, held)


def _whole(agent: Tenuto, held: dict[str, Any]) -> None:
    """Everything is read as before, and every reference to a blob is counted once: with all deleted, none is left."""
    assert _view(agent) == held["view"]
    assert agent.store.check().findings == []
    for one in agent.threads.list():
        agent.checkpoint.delete(thread=one.id)
        agent.thread(one.id).delete()
    for run in agent.runs.list():
        agent.runs.delete(run.id)
    for head in agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000):
        assert codec.decode(head.value)[2] == 0


def _forgotten(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("a", folder / "a.db", archive=folder / "archive") as agent:
        now = _view(agent)
        for name in ("threads", "runs"):
            assert now[name]["ben-" + ("chat" if name == "threads" else "run")] is not None
            assert not [one for one in now[name] if one.startswith("ann")]
        assert now["users"] == {"ann": {}, "ben": held["view"]["users"]["ben"]}
        assert now["threads"]["ben-chat"] == held["view"]["threads"]["ben-chat"]
        assert agent.store.check().findings == []
        agent.store.backup(folder / "after.db")
        assert {one.name for one in agent.store.archived()} == {"ben-chat", "ben-run"} | {
            one.name for one in held["parts"] if not one.name.startswith("ann")
        }
    assert SECRET.encode() not in _values(folder / "archive")
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def _rotated(folder: Path, held: dict[str, Any]) -> None:
    with Tenuto("a", folder / "a.db", encryption_key=NEW) as agent:
        assert _view(agent) == held["view"]
    with pytest.raises(WrongKey), Tenuto("a", folder / "a.db", encryption_key=OLD) as agent:
        agent.state.items("scope 0")


STORIES = {
    "backup": Story(["backup", "@/kept", "--keep", "9", "--verify", "--url", "@/a.db"], _backed_up),
    "restore": Story(["restore", "@/copy.db", "@/b.db"], _equal),
    "export": Story(["export", "@/x.jsonl", "--url", "@/a.db"], _exported),
    "import": Story(["import", "@/copy.jsonl", "--url", "@/b.db"], _equal),
    "copy": Story(["copy", "@/a.db", "@/b.db"], _equal),
    "prune": Story(["prune", "--keep", "0s", "--url", "@/a.db"], _pruned),
    "archive": Story(["archive", "--older-than", "0s", "--to", "@/archive", "--url", "@/a.db"], _archived),
    "return": Story(
        ["thread", "show", "ann-chat", "--url", "@/a.db"], _returned, "archived", TENUTO_ARCHIVE="@/archive"
    ),
    "forget": Story(["forget", "--user", "ann", "--yes", "--url", "@/a.db"], _forgotten, "archived", TENUTO_ARCHIVE="@/archive"),
    "rotation": Story(
        ["encryption", "rotate", "--url", "@/a.db"], _rotated, "sealed", TENUTO_ENCRYPTION_KEY=f"{NEW},{OLD}"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A store, a backup and an export of it, the same in encrypted form, and what they hold."""
    folder = tmp_path_factory.mktemp("filled")
    for name, key in (("plain", None), ("sealed", Encryption(OLD, user_keys=True))):
        with Tenuto("agent", folder / name / "a.db", encryption_key=key) as agent:
            _fill(agent)
            held = {"view": _view(agent), "summary": agent.store.summary()}
            if key is None:
                agent.store.backup(folder / name / "copy.db")
                agent.store.export(folder / name / "copy.jsonl")
                view = held
    shutil.copytree(folder / "plain", folder / "archived")
    for copy in (folder / "archived").glob("copy.*"):
        copy.unlink()
    with Tenuto("agent", folder / "archived" / "a.db") as agent:
        agent.store.archive("0s", folder / "archived" / "archive")
        parts = agent.store.archived()
        assert SECRET.encode() in _values(folder / "archived" / "archive")
    return {"folder": folder, "plain": view, "sealed": held, "archived": {**view, "parts": parts}}


@pytest.mark.parametrize("name", STORIES)
def test_killed_in_the_middle_and_run_again_it_completes(name: str, filled: dict[str, Any], tmp_path: Path) -> None:
    story = STORIES[name]

    def fresh(at: object) -> Path:
        folder = tmp_path / str(at)
        shutil.copytree(filled["folder"] / story.kind, folder)
        return folder

    code, count = story.run(fresh("whole"), -1)
    assert code == 0
    assert count > 1
    points = range(1, count + 1, max(1, count // 60)) if LONG else [count * 2 // 3]
    for point in sorted(points):
        folder = fresh(point)
        assert story.run(folder, point)[0] == -signal.SIGKILL
        if name not in ("restore", "export") or not (folder / ("b.db" if name == "restore" else "x.jsonl")).exists():
            assert story.run(folder, -1)[0] == 0  # else it had just completed, and refuses to overwrite
        story.judge(folder, filled[story.kind])
        shutil.rmtree(folder)
    print(f"{name}: killed at {len(points)} of {count} boundaries, run again, complete")
