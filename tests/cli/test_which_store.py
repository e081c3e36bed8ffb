"""The default store: the nearest one in this folder or above, as git finds its repository; commands say which it is."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenuto import Tenuto
from tenuto.backends import DEFAULT, default_path
from tenuto.cli import group


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store, in which nothing else is decided."""
    monkeypatch.delenv("TENUTO_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    (folder / "src" / "deep").mkdir(parents=True)
    with Tenuto("a", folder / DEFAULT) as agent:
        agent.state.set("s", "k", "of the project")
    return folder


def tenuto(*words: str) -> Result:
    return CliRunner().invoke(group, list(words))


def test_a_store_above_is_found_by_programs_and_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src" / "deep")
    assert default_path() == project / DEFAULT
    with Tenuto("b") as agent:
        assert agent.state.get("s", "k") == "of the project"
    assert "of the project" in tenuto("state", "list", "s").stdout
    assert not (project / "src" / "deep" / ".tenuto").exists()


def test_the_nearest_store_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tenuto("a", project / "src" / DEFAULT) as agent:
        agent.state.set("s", "k", "nearer")
    monkeypatch.chdir(project / "src" / "deep")
    assert default_path() == project / "src" / DEFAULT
    monkeypatch.chdir(project / "src")
    assert default_path() == Path(DEFAULT)


def test_the_search_ends_at_the_root_of_a_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "src" / ".git").mkdir()
    for folder in (project / "src" / "deep", project / "src"):
        monkeypatch.chdir(folder)
        assert default_path() == Path(DEFAULT)
    (project / "src" / ".git").rename(project / ".git")
    assert default_path() == project / DEFAULT, "the root itself is searched"


def test_the_home_folder_and_what_is_above_is_not_searched(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "src")
    for home in (project, project / "src"):
        monkeypatch.setenv("HOME", str(home))
        assert default_path() == Path(DEFAULT)


def test_a_store_that_others_may_have_put_there_is_not_used(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src")
    project.chmod(0o777)
    assert default_path() == Path(DEFAULT)
    project.chmod(0o755)
    monkeypatch.setattr("os.getuid", lambda: 4_711)
    assert default_path() == Path(DEFAULT)


def test_init_makes_a_store_in_this_folder_and_names_both(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src")
    said = tenuto("init")
    assert f"store {project}/src/{DEFAULT}" in said.stderr
    assert f"replaces {project}/{DEFAULT}" in said.stderr
    assert f"the store is {project}/src/{DEFAULT}" in tenuto("init").stderr
    assert tenuto("state", "list", "s").stdout == ""


def test_what_is_missing_is_said_with_the_store(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src" / "deep")
    for words in (["state", "get", "s", "none"], ["runs", "show", "none"], ["tasks", "show", "none"]):
        missing = tenuto(*words)
        assert missing.exit_code == 3
        assert f"(store: {project}/{DEFAULT})" in missing.stderr
    found = json.loads(tenuto("doctor", "--json").stdout)
    assert any(str(project / DEFAULT) in one["what"] for one in found if one["about"] == "store")


def test_where_there_is_no_store_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENUTO_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert f"no store at {tmp_path}/{DEFAULT}, nor in a folder above" in tenuto("runs", "list").stderr
    assert f"no store at {tmp_path}/x.db. Name" in tenuto("runs", "list", "--url", "x.db").stderr
