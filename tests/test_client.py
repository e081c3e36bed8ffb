"""Opening, closing, and the wrong ways to do either; the public surface."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tenuto
from tenuto import Closed, InvalidInput, Tenuto, errors
from tenuto.backends import connect
from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.volatile import VolatileBackend
from tenuto.kernel import contract
from tenuto.testing import Faults


def test_parts_of_the_package_are_there_without_an_import_of_their_own() -> None:
    code = "import tenuto; print(tenuto.errors.NotFound is tenuto.NotFound, tenuto.testing.HeldClock.__name__, 'Tenuto' in dir(tenuto))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "HeldClock", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tenuto.nothing  # type: ignore[attr-defined]


def test_the_public_surface_is_this_list() -> None:
    assert tenuto.__all__ == sorted(tenuto.__all__)
    assert all(hasattr(tenuto, name) for name in tenuto.__all__)
    assert set(errors.__all__) < set(tenuto.__all__)
    assert set(tenuto.__all__) - set(errors.__all__) == {
        "AsyncRun",
        "AsyncTenuto",
        "Calendar",
        "Checkpoint",
        "Encryption",
        "Spool",
        "SpoolConflict",
        "Happened",
        "Memory",
        "NoAnswer",
        "Recalled",
        "Rung",
        "Price",
        "Source",
        "Tool",
        "Verdict",
        "Intent",
        "NotHappened",
        "Question",
        "Restored",
        "Retention",
        "Retry",
        "Run",
        "Task",
        "TaskInfo",
        "Tenuto",
        "Unknown",
        "__version__",
        "current_run",
        "idempotency_key",
        "register",
        "secret",
    }


def test_every_error_is_in_the_drawing_and_has_its_base() -> None:
    for name in errors.__all__:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.TenutoError | errors.Paused)
        assert issubclass(cls, Exception) != issubclass(cls, errors.Paused)
        assert f" {name} " in errors.__doc__ or f"\n    {name} (" in errors.__doc__ or f"{name}\n" in errors.__doc__  # type: ignore[operator]
        assert cls.__doc__


def test_nothing_is_opened_before_the_first_call(tmp_path: Path) -> None:
    agent = Tenuto("a", tmp_path / "deep" / "store.db")
    assert repr(agent) == "<Tenuto 'a' of tenant 'default'>"
    assert list(tmp_path.iterdir()) == []
    agent.close()
    assert list(tmp_path.iterdir()) == []


def test_opening_creates_what_is_missing(tmp_path: Path) -> None:
    with Tenuto("a", tmp_path / "deep" / "store.db") as agent:
        assert (tmp_path / "deep" / "store.db").exists()
        assert agent.open() is agent


def test_the_default_store_is_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENUTO_URL", raising=False)
    with Tenuto() as agent:
        agent.state.set("s", "k", 1)
    assert (tmp_path / ".tenuto" / "tenuto.db").exists()
    monkeypatch.setenv("TENUTO_URL", f"sqlite:///{tmp_path}/other.db")
    with Tenuto() as agent:
        assert agent.state.get("s", "k") is None
    assert (tmp_path / "other.db").exists()


def test_git_ignores_a_new_folder_of_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENUTO_URL", raising=False)
    subprocess.run(["git", "init", "--quiet"], check=True)
    with Tenuto() as agent:
        agent.state.set("s", "k", 1)
    status = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True)
    assert status.stdout == ""


def test_other_folders_get_no_gitignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENUTO_URL", raising=False)
    (tmp_path / ".tenuto").mkdir()
    for url in (None, tmp_path / "deep" / "tenuto.db", tmp_path / ".tenuto" / "deep" / "tenuto.db"):
        with Tenuto("a", url) as agent:
            agent.state.set("s", "k", 1)
    assert list(tmp_path.rglob(".gitignore")) == []


@pytest.mark.parametrize("form", ["{}/a.db", "sqlite:///{}/a.db", "sqlite:///{}/a.db?durability=process&timeout=2"])
def test_a_file_is_named_by_a_path_or_a_url(tmp_path: Path, form: str) -> None:
    with Tenuto("a", form.format(tmp_path)) as agent:
        agent.state.set("s", "k", 1)
        assert agent.store.stats()["durability"] == ("process" if "process" in form else "full")
    with Tenuto("b", tmp_path / "a.db") as agent:
        assert agent.state.get("s", "k") == 1


def test_a_relative_url_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Tenuto("a", "sqlite:///sub/my%20store.db") as agent:
        agent.state.set("s", "k", 1)
    assert (tmp_path / "sub" / "my store.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://host/db",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/path",
        "sqlite:///a.db?unknown=1",
        "sqlite:///a.db?timeout=soon",
        "sqlite:///a.db?timeout=-1",
        "sqlite:///a.db?accept_loss=maybe",
        "sqlite:///a.db?durability=some",
        "volatile:x",
        "volatile:?a=1",
        "a\x00b",
        5,
        b"bytes",
        object(),
    ],
)
def test_a_wrong_url_is_refused_with_a_sentence(url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as error:
        Tenuto("a", url)
    assert str(error.value).endswith(".")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"name": ""}, {"tenant": ""}, {"name": "\ud800"}, {"durability": "some"}, {"hooks": [5]}]
)
def test_wrong_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Tenuto(**{"url": str(tmp_path / "a.db"), **options})


@pytest.mark.parametrize("url", ["volatile:", "file"])
def test_a_closed_client_says_so(url: str, tmp_path: Path) -> None:
    agent = Tenuto("a", url if url == "volatile:" else tmp_path / "a.db")
    agent.state.set("s", "k", 1)
    agent.close()
    agent.close()
    for call in (
        lambda: agent.state.get("s", "k"),
        lambda: agent.state.set("s", "k", 1),
        lambda: agent.lease("x").acquire(),
        agent.open,
        agent.store.check,
    ):
        with pytest.raises(Closed, match=r"[Oo]pen a new client"):
            call()


def test_a_client_closed_before_it_was_opened_says_so(tmp_path: Path) -> None:
    agent = Tenuto("a", tmp_path / "a.db")
    agent.close()
    with pytest.raises(Closed):
        agent.state.get("s", "k")


def test_one_client_serves_a_forked_child(tmp_path: Path) -> None:
    with Tenuto("a", tmp_path / "a.db") as agent:
        agent.state.set("s", "parent", 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                agent.state.set("s", "child", agent.state.get("s", "parent") + 1)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        agent.state.set("s", "after", 3)
        assert agent.state.items("s") == {"after": 3, "child": 2, "parent": 1}
        assert agent.store.check().ok


def test_a_backend_is_chosen_without_importing_the_others() -> None:
    code = "import sys, tenuto; tenuto.Tenuto('a', 'volatile:').state.set('s','k',1); print('apsw' in sys.modules, 'click' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False False"


def test_a_path_object_and_a_home_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = connect("~/a.db")
    assert isinstance(backend, SqliteBackend)
    assert backend.path == tmp_path / "a.db"


def test_the_command_tells_its_version() -> None:
    for command in (["-m", "tenuto"], ["-c", "from tenuto.cli import main; main()"]):
        told = subprocess.check_output([sys.executable, *command, "--version"], text=True)
        assert tenuto.__version__ in told


def test_a_store_that_is_a_file_is_copied_whatever_the_client_adds(tmp_path: Path) -> None:
    with Tenuto("agent", tmp_path / "s.db", hooks=[lambda _: None], tenant="one") as agent:
        agent.state.set("s", "k", 1)
        assert agent.for_tenant("two").store.backup(tmp_path / "copy.db") > 0
    with Tenuto("agent", tmp_path / "copy.db", tenant="one") as copy:
        assert copy.state.get("s", "k") == 1


@pytest.mark.parametrize("durable", [True, False], ids=["wrapped", "volatile"])
def test_a_store_that_cannot_be_copied_says_what_to_do_instead(tmp_path: Path, durable: bool) -> None:
    backend = Faults(connect(str(tmp_path / "s.db"))) if durable else VolatileBackend()
    with (
        Tenuto("agent", backend) as agent,
        pytest.raises(InvalidInput, match="a client opened by its path" if durable else "exists in this process only"),
    ):
        agent.store.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_the_page_for_backends_lists_the_verbs_of_the_contract() -> None:
    page = (Path(__file__).parent.parent / "docs" / "writing-a-backend.md").read_text()
    listed = re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)
    verbs = [name for name, verb in vars(contract.Backend).items() if inspect.isfunction(verb) and name[0] != "_"]
    assert sorted(listed) == sorted(verbs) == sorted(contract._VERBS)
    assert len(listed) == 12
    assert "twelve verbs" in page
