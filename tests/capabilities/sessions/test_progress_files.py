"""Progress files of several processes, after crashes, and edited while they are written."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenuto import StaleLease, Tenuto
from tenuto.capabilities.sessions import files


class Died(BaseException):
    """The process is gone."""


def dies_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Let the next write of a file end before or after the file is replaced."""
    name = {"before the file": "_replace", "after the file": "_remember"}[point]
    once = getattr(files, name)

    def dead(*_: Any) -> Any:
        monkeypatch.setattr(files, name, once)
        raise Died

    monkeypatch.setattr(files, name, dead)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("point", ["before the file", "after the file"])
@pytest.mark.parametrize("first", [False, True])
def test_what_changes_after_a_crash_is_merged_with_the_text_that_the_file_really_has(
    agent: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, point: str, edited: bool, first: bool
) -> None:
    path = tmp_path / "PROGRESS.md"
    p = agent.progress("job", goal="Ship")
    p.plan(["one", "two", "three"])
    if not first:
        p.write(path)
    p.complete("one", evidence="ok")
    p.next("A")
    dies_at(monkeypatch, point)
    with pytest.raises(Died):
        p.write(path)
    p.next("B")
    p.complete("two", evidence="ok")
    if edited and path.exists():
        path.write_text(path.read_text() + "\n## My own\nkeep this\n")
    assert p.write(path)
    assert p.markdown() == path.read_text()
    info = p.get()
    assert (info.next_action, [one.done for one in info.items]) == ("B", [True, True, False])
    assert path.read_text().count("## Next Action") == 1
    assert ("keep this" in path.read_text()) == (edited and not (first and point == "before the file"))
    assert not p.write(path)


def test_several_agents_write_one_file_and_no_item_is_undone(tmp_path: Path) -> None:
    path, store = tmp_path / "PROGRESS.md", tmp_path / "store.db"  # a clock that runs: they wait for each other
    with Tenuto("lead", store) as agent:
        p = agent.progress("job", goal="Ship")
        p.plan([f"item {n}" for n in range(16)])
        begin = threading.Barrier(4)

        def work(one: int) -> None:
            with Tenuto(f"w{one}", store) as mine:
                begin.wait()
                for n in range(one, 16, 4):
                    mine.progress("job").complete(f"item {n}", evidence="ok")
                    mine.progress("job").write(path)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert not p.write(path), "the file is up to date"
        assert path.read_text().count("[x]") == 16
        assert "edited" not in [one.what for one in p.history()], "no text of another agent was taken for an edit"


def test_an_older_text_cannot_replace_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, store = tmp_path / "PROGRESS.md", tmp_path / "store.db"
    replace, ready, go = files._replace, threading.Event(), threading.Event()

    def slow(place: Path, text: str) -> None:
        monkeypatch.setattr(files, "_replace", replace)
        ready.set()
        go.wait(30)
        replace(place, text)

    with Tenuto("one", store) as one, Tenuto("two", store) as two:
        one.progress("job").plan(["first", "second"])
        monkeypatch.setattr(files, "_replace", slow)
        older = threading.Thread(target=one.progress("job").write, args=(path,))
        older.start()
        ready.wait(30)
        two.progress("job").complete("first", evidence="ok")
        newer = threading.Thread(target=two.progress("job").write, args=(path,))
        newer.start()
        newer.join(0.2)  # it waits, however long
        go.set()
        for thread in (older, newer):
            thread.join(30)
        assert "[x] first" in path.read_text()
        assert not one.progress("job").write(path)
        assert two.progress("job").get().items[0].done


def test_an_edit_between_the_look_and_the_write_is_kept(
    agent: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "PROGRESS.md"
    p = agent.progress("job", goal="Ship")
    p.plan(["one"])
    p.write(path)
    p.next("ship it")
    taken_in = files._taken_in

    def edited(*given: Any) -> Any:
        monkeypatch.setattr(files, "_taken_in", taken_in)
        after = yield from taken_in(*given)
        path.write_text(path.read_text() + "\n## My own\nkeep this\n")
        return after

    monkeypatch.setattr(files, "_taken_in", edited)
    p.write(path)
    assert "keep this" in path.read_text()
    assert "ship it" in path.read_text()
    assert p.markdown() == path.read_text()


def test_a_writer_that_lost_its_turn_writes_nothing(
    agent: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "PROGRESS.md"
    p = agent.progress("job", goal="Ship")
    p.plan(["one"])
    taken_in = files._taken_in

    def stalled(progress: Any, place: Path, before: Any) -> Any:
        after = yield from taken_in(progress, place, before)
        agent.kernel.commit([], [files.Put(files.keys.pack("job", "file", "token"), b"")])  # another one has it now
        return after

    monkeypatch.setattr(files, "_taken_in", stalled)
    with pytest.raises(StaleLease):
        p.write(path)
    assert not path.exists()
