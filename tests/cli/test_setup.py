"""`tenuto setup` on configuration files as they are found: dry run, apply, apply again, remove; what it leaves alone."""

import importlib
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.cli import group
from tenuto.cli.setup import jsonc, toml
from tenuto.cli.setup.files import BACKUP
from tenuto.cli.setup.hosts import HOSTS, is_own

SERVERS = {
    "claude": ".mcp.json", "codex": ".codex/config.toml", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json",
    "gemini": ".gemini/settings.json",
}  # fmt: skip
HOOKS = {
    "claude": ".claude/settings.json", "codex": ".codex/hooks.json", "cursor": ".cursor/hooks.json",
    "vscode": ".github/hooks/tenuto.json", "gemini": ".gemini/settings.json",
}  # fmt: skip
KEY = {"claude": "mcpServers", "cursor": "mcpServers", "vscode": "servers", "gemini": "mcpServers"}

JSON_FOUND = {
    "missing": None,
    "empty": "",
    "blank": "  \n\n",
    "only a comment": "// nothing here yet",
    "an empty object": "{}",
    "an open empty object": "{\n}\n",
    "no line break at the end": '{"theme": "dark"}',
    "an empty object of servers": '{\n  "KEY": {}\n}\n',
    "an empty object with a comment": '{\n  "KEY": {\n    // add servers here\n  }\n}\n',
    "other servers": '{\n  "KEY": {\n    "github": {\n      "command": "npx",\n      "args": ["-y", "server-github"]\n    }\n  },\n  "other": [1, 2]\n}\n',
    "comments and a trailing comma": (
        '// for all of us\n{\n  /* servers */\n  "KEY": {\n    "github": { "command": "npx" }, // pinned\n  },\n  "z": 1, // last\n}\n'
    ),
    "tabs": '{\n\t"KEY": {\n\t\t"a": {\n\t\t\t"command": "a"\n\t\t}\n\t}\n}\n',
    "four spaces": '{\n    "KEY": {\n        "a": { "command": "a" }\n    }\n}',
    "in one line": '{"KEY": {"a": {"command": "a"}}, "x": 1}',
    "windows": '{\r\n  "KEY": {\r\n    "a": {"command": "a"}\r\n  }\r\n}\r\n',
    "a byte order mark": '\ufeff{\n  "x": "é"\n}\n',
    "comment marks in strings": '{\n  "x": "http://a // no, /* no */ \\" }",\n  "KEY": {"a": {"url": "https://x//y"}}\n}\n',
    "hooks of others": (
        '{\n  "hooks": {\n    "SessionStart": [\n      {"matcher": "startup", "hooks": [{"type": "command", "command": "echo hi"}]}\n    ],\n'
        '    "sessionStart": [{"command": "./x.sh"}],\n    "PreToolUse": []\n  },\n  "version": 1\n}\n'
    ),
}
JSON_BROKEN = [
    '{"a": ',
    "[1, 2]",
    '{"a" 1}',
    "{'a': 1}",
    '{"a": 1}}',
    "nonsense",
    '{"a": "\n"}',
    '{"KEY": []}',
    '{"KEY": "x"}',
    "[" * 5_000,
]
TOML_FOUND = {
    "missing": None,
    "empty": "",
    "settings": 'model = "gpt-5"  # the one\n\n[features]\nhooks = true',
    "other servers": '# mine\nmodel = "x"\n\n[mcp_servers.github]\ncommand = "npx"\nargs = ["-y", "github"]\n[mcp_servers.github.env]\nA = "1"\n\n[profiles.fast]\nmodel = "y"\n',
    "text that looks like a header": 'note = """\n[mcp_servers.tenuto]\n"""\n[a]\nb = 1\n',
    "windows": 'model = "x"\r\n\r\n[a]\r\nb = 1\r\n',
    "dotted keys": "[mcp_servers]\nold.command = 'x'\n",
}
TOML_BROKEN = ["model = ", "[a\nb=1", "mcp_servers = {}", "mcp_servers = 3", "a = 1\na = 2"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "TENUTO_URL", "CLAUDE_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


def setup(*words: str) -> Result:
    return CliRunner().invoke(group, ["setup", *words])


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def loaded(host: str, path: Path) -> Any:
    text = path.read_bytes().decode()
    return toml.parse(text) if path.suffix == ".toml" else jsonc.parse(text).value


def place(project: Path, name: str, text: str | None) -> None:
    if text is not None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(text.encode())


LONG = bool(os.environ.get("TENUTO_LONG"))
CASES = [
    (host, found, text if text is None else text.replace("KEY", KEY.get(host, "")))
    for host in HOSTS
    for found, text in (TOML_FOUND if host == "codex" else JSON_FOUND).items()
    if host not in ("cursor", "vscode")
    or LONG
    or found in ("missing", "comments and a trailing comma", "hooks of others")
]


@pytest.mark.parametrize(("host", "found", "text"), CASES, ids=[f"{host}, {found}" for host, found, _ in CASES])
def test_apply_twice_and_remove_restores_every_byte(project: Path, host: str, found: str, text: str | None) -> None:
    place(project, SERVERS[host], text)
    if HOOKS[host] != SERVERS[host]:
        place(project, HOOKS[host], JSON_FOUND.get(found))
    before = files(project)
    known = {name: loaded(host, project / name) for name in before}
    dry = setup(host, "--hooks", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "tenuto" in dry.output
    assert files(project) == before, "a dry run changes nothing"

    done = setup(host, "--hooks")
    assert done.exit_code == 0, done.output
    after = files(project)
    of_servers = loaded(host, project / SERVERS[host])
    own = of_servers[HOSTS[host].servers[0]]["tenuto"]
    assert own["args"][:3] == ["mcp", "--name", host]
    for event in HOSTS[host].moments.values():
        entries = loaded(host, project / HOOKS[host])["hooks"][event]
        assert sum(map(is_own, entries)) == 1
    for name, data in known.items():
        assert _without_own(host, loaded(host, project / name)) == _without_own(host, data), "what others wrote stays"
    for name, raw in before.items():
        assert after[name + BACKUP] == raw
        if name == SERVERS[host] and text and text.strip():
            marked = () if "marks in strings" in found else ("#",) if host == "codex" else ("//", "/*")
            kept = [line for line in raw.decode().splitlines() if any(mark in line for mark in marked)]
            assert all(line.strip() in after[name].decode() for line in kept), "comments stay"

    again = setup(host, "--hooks")
    assert "nothing to do" in again.output
    assert files(project) == after

    gone = setup(host, "--remove")
    assert gone.exit_code == 0, gone.output
    assert files(project) == before, "removed: every file as it was, and no backup is left"
    assert "nothing to do" in setup(host, "--remove").output


def _without_own(host: str, data: Any) -> Any:
    data = json.loads(json.dumps(data))
    data.pop("version", None)
    for key in HOSTS[host].servers:
        data.get(key, {}).pop("tenuto", None)
        if not data.get(key):
            data.pop(key, None)
    hooks = data.get("hooks", {})
    if isinstance(hooks, dict):
        for event in list(hooks):
            hooks[event] = [one for one in hooks[event] if not is_own(one)]
        data["hooks"] = {event: entries for event, entries in hooks.items() if entries}
        if not data["hooks"]:
            del data["hooks"]
    return data


@pytest.mark.parametrize("host", HOSTS)
def test_a_person_edits_the_file_after_it_was_set_up(project: Path, host: str) -> None:
    text = (
        TOML_FOUND["other servers"]
        if host == "codex"
        else JSON_FOUND["comments and a trailing comma"].replace("KEY", KEY[host])
    )
    assert text
    place(project, SERVERS[host], text)
    setup(host, "--hooks")
    path = project / SERVERS[host]
    mine = "\n[mine]\na = 1\n" if host == "codex" else "\n// mine\n"
    path.write_text(path.read_text() + mine)
    assert setup(host, "--remove").exit_code == 0
    assert path.read_text() == text + mine, "the own entries are cut out, the edit stays"


@pytest.mark.parametrize("host", HOSTS)
def test_hooks_come_later_and_options_of_a_person_stay(project: Path, host: str) -> None:
    place(project, SERVERS[host], TOML_FOUND["settings"] if host == "codex" else '{\n  "x": 1\n}\n')
    before = files(project)
    setup(host)
    path = project / SERVERS[host]
    if host == "codex":
        path.write_text(path.read_text() + "startup_timeout_sec = 20\n")
    else:
        data = loaded(host, path)
        data[KEY[host]]["tenuto"] = {**data[KEY[host]]["tenuto"], "env": {"A": "1"}, "command": "old"}
        path.write_text(json.dumps(data, indent=2))
    assert setup(host, "--hooks").exit_code == 0
    own = loaded(host, path)[HOSTS[host].servers[0]]["tenuto"]
    assert own.get("env", own.get("startup_timeout_sec")) in ({"A": "1"}, 20)
    assert own["command"].endswith("tenuto")
    setup(host, "--remove")
    assert "tenuto" not in path.read_text()
    assert set(files(project)) >= set(before)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("hooks", [False, True], ids=["server", "hooks"])
def test_a_broken_file_is_left_alone_and_nothing_else_is_written(project: Path, host: str, hooks: bool) -> None:
    broken = TOML_BROKEN if host == "codex" and not hooks else JSON_BROKEN
    name = (HOOKS if hooks else SERVERS)[host]
    for text in [one.replace("KEY", "hooks" if hooks else KEY.get(host, "")) for one in broken]:
        place(project, name, text)
        before = files(project)
        for words in (
            (host, "--hooks"),
            (host, "--hooks", "--dry-run"),
            *([] if "hooks" in text else [(host, "--remove")]),
        ):
            done = setup(*words)
            if words[-1] == "--remove" and done.exit_code == 0:
                continue  # there is nothing of ours in it
            assert done.exit_code == 2, (text[:40], done.output)
            assert name in done.output
            assert "It was left alone" in done.output
        assert files(project) == before
    (project / name).write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in setup(host, "--hooks").output


def test_json_output_and_the_scope(project: Path, tmp_path: Path) -> None:
    found = json.loads(setup("claude", "--hooks", "--json", "--dry-run").stdout)
    assert [one["status"] for one in found["files"]] == ["created", "created"]
    assert found["store"] == str(project / ".tenuto" / "tenuto.db")
    os.chdir(project / ".git")
    assert json.loads(setup("claude", "--json", "--dry-run").stdout)["files"][0]["file"] == str(project / ".mcp.json")
    for host in HOSTS:
        assert setup(host, "--user", "--hooks").exit_code == 0
        assert setup(host, "--user", "--remove").exit_code == 0
    home = tmp_path / "home"
    assert [one for one in files(home) if "tenuto" in (home / one).read_text()] == []
    state = home / ".claude.json"
    state.write_text(json.dumps({"numStartups": 7, "projects": {"/x": {"history": ["a" * 1_000] * 50}}}))
    setup("claude", "--user")
    data = json.loads(state.read_text())
    assert (data["numStartups"], Path(data["mcpServers"]["tenuto"]["command"]).name) == (7, "tenuto")


def test_a_link_stays_a_link_and_the_mode_stays(project: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    real.chmod(0o600)
    (project / ".mcp.json").symlink_to(real)
    setup("claude")
    assert (project / ".mcp.json").is_symlink()
    assert "tenuto" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600
    setup("claude", "--remove")
    assert real.read_text() == "{}"


def test_the_copy_of_a_file_with_secrets_is_as_private_as_the_file(project: Path) -> None:
    secret = project / ".mcp.json"
    secret.write_text('{"mcpServers": {"x": {"env": {"TOKEN": "secret"}}}}')
    secret.chmod(0o600)
    setup("claude")
    copies = [one for one in project.iterdir() if one.is_file()]
    assert len(copies) == 2
    assert {one.stat().st_mode & 0o777 for one in copies} == {0o600}
    setup("claude", "--hooks")
    assert (project / ".claude" / "settings.json").stat().st_mode & 0o777 != 0o600, "a new file is as others are"


def test_a_file_that_cannot_be_written_is_named_and_the_setup_can_be_repeated(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (project / ".mcp.json").write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        said = setup("claude").output
    assert "No space left on device" in said
    assert (project / ".mcp.json").read_text() == "{}"
    assert [one.name for one in project.iterdir() if one.is_file()] == [".mcp.json"]
    setup("claude")
    assert "tenuto" in (project / ".mcp.json").read_text()


_names = st.sampled_from(["a", "b", "mcpServers", "hooks", "x y", "é"])
_plain = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "//", "/*", "}", '"', "\\", "é\n"])
_data = st.recursive(
    _plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=8
)


@settings(max_examples=1_000 if LONG else 60, deadline=None)
@given(
    st.dictionaries(_names, _data, max_size=4), st.sampled_from([None, 2, 4, "\t"]), st.randoms(use_true_random=False)
)
def test_an_edit_changes_one_value_alone(data: dict[str, Any], indent: Any, chance: Any) -> None:
    text = _with_comments(json.dumps(data, indent=indent, ensure_ascii=False), chance)
    assert jsonc.parse(text).value == data
    for path in (["mcpServers", "tenuto"], ["new", "deep", "tenuto"]):
        inner: Any = data.get(path[0], {})
        if not isinstance(inner, dict):
            with pytest.raises(ValueError, match="not an object"):
                jsonc.put(text, path, {"command": "x"})
            continue
        changed = jsonc.put(text, path, {"command": "x", "args": []})
        wanted = json.loads(json.dumps(data))
        around = wanted
        for key in path[:-1]:
            around = around.setdefault(key, {})
        around["tenuto"] = {"command": "x", "args": []}
        assert jsonc.parse(changed).value == wanted
        assert jsonc.put(changed, path, {"command": "x", "args": []}) == changed
        back = jsonc.parse(jsonc.remove(changed, path)).value
        assert {**back, path[0]: back.get(path[0], {})} == {**data, path[0]: data.get(path[0], {})}
        assert changed.count("/* c */") == text.count("/* c */")


def _with_comments(text: str, chance: Any) -> str:
    """Return JSON with comments between its parts; not inside of strings."""
    out, at = "", 0
    while at < len(text):
        if text[at] == '"':
            end = at + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            out, at = out + text[at : end + 1], end + 1
        else:
            out, at = out + text[at], at + 1
        if text[at - 1] in "{[,:" and chance.random() < 0.2:
            out += chance.choice([" /* c */ ", " // c, }\n"])
    return out


def test_a_table_of_toml_is_replaced_with_its_own_settings_kept() -> None:
    text = '[a]\nx = 1\n\n[mcp_servers.tenuto]\ncommand = "old"\nenabled = false\n[mcp_servers.tenuto.env]\nA = "1"\n\n[b]\ny = 2\n'
    with pytest.raises(ValueError, match="cannot be edited safely"):
        toml.put(text, ["mcp_servers", "tenuto"], {"command": "new"})
    plain = text.replace('[mcp_servers.tenuto.env]\nA = "1"\n', "")
    changed = toml.put(plain, ["mcp_servers", "tenuto"], {"command": "new"})
    assert tomllib.loads(changed)["mcp_servers"]["tenuto"] == {"command": "new", "enabled": False}
    assert tomllib.loads(toml.remove(text, ["mcp_servers", "tenuto"])) == {"a": {"x": 1}, "b": {"y": 2}}


def test_another_program_writes_at_the_same_moment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.cli.setup import files

    place(project, ".mcp.json", "{}")
    write: Callable[..., None] = files.write

    def late(planned: Any) -> None:
        (project / ".mcp.json").write_text('{"new": 1}')
        write(planned)

    monkeypatch.setattr(importlib.import_module("tenuto.cli.setup.command"), "write", late)
    done = setup("claude")
    assert done.exit_code == 2
    assert "changed by another program just now" in done.output
    assert (project / ".mcp.json").read_text() == '{"new": 1}'
