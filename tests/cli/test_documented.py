"""Every command and every option stands in docs/command-line.md, where that command is described."""

import re
from pathlib import Path

import click
import pytest

from tenuto.cli import group

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
EVERYWHERE = {"--json", "--url", "--tenant", "--yes", "--help", "--import", "--limit", "--after"}
"""Options of many commands, described once at the top."""


def commands(of: click.Command, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(of, click.Group):
        return [(words, of)]
    context = click.Context(of)
    found = []
    for name in of.list_commands(context):
        inner = of.get_command(context, name)
        assert inner is not None
        found += commands(inner, (*words, name))
    return found


ALL = commands(group)


def test_there_are_commands() -> None:
    assert {" ".join(words) for words, _ in ALL} >= {"demo", "doctor", "runs fork", "inbox answer", "worker"}
    assert all(f"`{option}`" in PAGE for option in EVERYWHERE)


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda it: " ".join(it) if isinstance(it, tuple) else "")
def test_a_command_is_described_with_its_options(words: tuple[str, ...], command: click.Command) -> None:
    named = [one for one in SECTIONS if re.search(rf"(tenuto |`){' '.join(words)}\b", one)]
    assert named, "the command is not on the page"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in {*parameter.opts} - EVERYWHERE:
                assert any(option in one for one in named), f"{option} is not described beside {' '.join(words)}"


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda it: " ".join(it) if isinstance(it, tuple) else "")
def test_a_command_says_what_it_does_and_what_its_options_are(words: tuple[str, ...], command: click.Command) -> None:
    assert command.help, words
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(words)} {parameter.opts}"
        if "json" in (parameter.name or ""):
            assert parameter.name == "as_json"


def test_every_command_that_prints_data_has_json() -> None:
    without = {" ".join(words) for words, one in ALL if not any(p.name == "as_json" for p in one.params)}
    assert without == {"demo", "hook", "mcp", "schema", "serve", "worker"}, "those that play, print JSON anyway, or log"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_written_for_each_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import get_completion_class

    assert f"_TENUTO_COMPLETE={shell}_source tenuto" in PAGE
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(group, {}, "tenuto", "_TENUTO_COMPLETE")
    if shell != "bash":  # click asks the bash that is installed for its version
        assert "_TENUTO_COMPLETE" in completion.source()
    assert [one.value for one in completion.get_completions(["runs"], "sho")] == ["show"]
    assert "--occurrence" in [one.value for one in completion.get_completions(["runs", "fork", "a", "b"], "--o")]
