"""Absorbing conversations, loading files, and recall as a tool."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto import AsyncTenuto, InvalidInput, Tenuto
from tenuto.capabilities.memory.search.words import meet, stem, terms, words


def test_rules_pick_what_people_state(agent: Tenuto) -> None:
    agent.thread("t", user="ann").append(
        {"role": "user", "content": "Hi! I prefer aisle seats. What is the weather? My dog is called Rex."},
        {"role": "assistant", "content": "I prefer to help. My name is Bot."},
        {"role": "user", "content": "Please remember that the code is 1234.\nNever call me before nine."},
    )
    found = agent.memory.absorb("t")
    assert [(one.text, one.kind, one.source.message) for one in found] == [  # type: ignore
        ("I prefer aisle seats.", "preference", 1),
        ("My dog is called Rex.", "fact", 1),
        ("the code is 1234.", "fact", 3),
        ("Never call me before nine.", "policy", 3),
    ]
    assert {(one.user, one.trust) for one in found} == {("ann", "person")}
    assert all(one.duplicate for one in agent.memory.absorb("t"))
    assert agent.memory.absorb("t", after=3) == []


def test_a_function_chooses_what_to_keep(agent: Tenuto) -> None:
    agent.thread("t").append({"role": "user", "content": "I moved to Faro"})

    def extract(messages: list[dict[str, Any]]) -> list[Any]:
        assert messages[0]["number"] == 1
        return [{"text": "The user lives in Faro", "message": 1, "about": "home"}, "They moved"]

    found = agent.memory.absorb("t", extract, user="ann")
    assert [(one.text, one.about, one.user, one.trust) for one in found] == [
        ("The user lives in Faro", "home", "ann", "model"),
        ("They moved", None, "ann", "model"),
    ]
    (lowered,) = agent.memory.absorb("t", lambda _: [{"text": "maybe", "trust": "unknown"}], user="bob")
    (raised,) = agent.memory.absorb("t", lambda _: [{"text": "surely", "trust": "person"}], user="bob")
    assert (lowered.trust, raised.trust) == ("unknown", "model")
    for wrong in ([7], [{"text": "x", "message": 9}], [{"no": "text"}], None, "one text", [{"text": "x", "zap": 1}]):
        with pytest.raises(InvalidInput, match="nothing was stored"):
            agent.memory.absorb("t", lambda _, wrong=wrong: wrong)
    assert len(agent.memory.list("ann")) == 2


def test_files_are_loaded_by_heading_and_only_changes_are_replaced(agent: Tenuto, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    file, notes = folder / "policy.md", folder / "notes.txt"
    file.write_text("Intro\n\n# Refunds\nWithin 30 days.\n\n```\n# not a heading\n```\n\n# Shipping\nBy train.\n")
    notes.write_text("First paragraph.\n\nSecond paragraph.\n")
    pattern = str(folder / "*.*")
    assert agent.memory.load([pattern], kind="policy")[:] == (2, 5, 0, 0)
    assert agent.memory.load([pattern], kind="policy")[:] == (2, 0, 5, 0)
    hit = agent.memory.recall("refunds days", kind="policy")[0]
    assert hit.memory.source is not None
    assert (hit.memory.source.heading, hit.memory.trust) == ("Refunds", "person")
    assert [one.text for one in hit.after] == ["By train."]
    file.write_text("Intro\n\n# Refunds\nWithin 14 days.\n")
    assert agent.memory.load(file, kind="policy")[:] == (1, 1, 1, 2)
    assert [one.memory.text for one in agent.memory.recall("refunds within days")] == ["Within 14 days."]
    assert agent.memory.recall("train") == []
    assert len(agent.memory.list()) == 4
    notes.unlink()
    assert agent.memory.load(pattern, kind="policy")[:] == (1, 0, 2, 2)
    assert len(agent.memory.list()) == 2


def test_files_that_cannot_be_loaded_change_nothing(agent: Tenuto, tmp_path: Path) -> None:
    good, binary, latin = tmp_path / "a.md", tmp_path / "b.md", tmp_path / "c.md"
    good.write_text("fine")
    binary.write_bytes(b"a\x00b")
    latin.write_bytes(b"caf\xe9")
    for files, says in (
        ([good, binary], "binary"),
        ([good, latin], "UTF-8"),
        ([good, tmp_path / "none*.md"], "No file matches"),
        ([good, tmp_path], "No file matches"),
        ([], "at least one"),
        (7, "takes files"),
    ):
        with pytest.raises(InvalidInput, match=says):
            agent.memory.load(files)  # type: ignore[arg-type]
    assert agent.memory.list() == []


def test_an_unreadable_file_changes_nothing(agent: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("fine")
    (tmp_path / "b.md").write_text("locked")
    read = Path.read_text

    def refused(path: Path, *given: Any, **options: Any) -> str:
        if path.name == "b.md":  # modes do not stop root
            raise PermissionError(13, "Permission denied")
        return read(path, *given, **options)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(InvalidInput, match=r"b\.md cannot be read \(Permission denied\); nothing was loaded"):
        agent.memory.load(str(tmp_path / "*.md"))
    assert agent.memory.list() == []


def test_recall_is_a_tool_for_one_user(agent: Tenuto) -> None:
    agent.memory.remember("Ann likes tea", user="ann")
    agent.memory.remember("Bob likes tea", user="bob")
    schema, call = agent.memory.tool(user="ann")
    assert schema["function"]["parameters"]["required"] == ["query"]
    assert agent.memory.tool(shape="anthropic")[0]["input_schema"]["type"] == "object"
    said = call(json.dumps({"query": "who likes tea?"}))
    assert "Ann likes tea" in said
    assert "Bob" not in said
    assert call({"query": "tea", "user": "bob"}).count("Bob") == 0
    assert call(query="zebra") == "nothing found"
    assert call("{").startswith("error:")
    assert call({}).startswith("error: pass what to search for")
    assert call("[1]").startswith("error:")
    with pytest.raises(InvalidInput, match="shape"):
        agent.memory.tool(shape="other")  # type: ignore[arg-type]


def test_the_async_face_does_the_same(client: Callable[..., Tenuto], tmp_path: Path) -> None:
    import asyncio

    async def main() -> None:
        async with AsyncTenuto("x", tmp_path / "a.db") as agent:
            memory = await agent.memory.remember("Ann likes tea", user="ann")
            assert [one.memory for one in await agent.memory.recall("tea", user="ann")] == [memory]
            _, call = agent.memory.tool(user="ann")
            assert "Ann likes tea" in await call(query="tea")
            async with agent.run("r", user="ann") as run:
                assert (await run.remember("Ann likes cake")).user == "ann"
            assert (await agent.memory.forget(user="ann")).records == 2

    asyncio.run(main())


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_words_of_ascii_are_its_letters_and_digits_in_lower_case(text: str) -> None:
    assert words(text) == re.findall(r"[^\W_]+", text.lower())


def test_words_that_are_met_together_have_the_stems_they_have_alone() -> None:
    meet("Xylophones xylophoned 4711 naïve the")
    assert terms("Xylophones 4711 NAÏVE the 4712") == [stem("xylophones"), "4711", stem("naive"), "4712"]
    assert stem("xylophones") == stem("xylophoned") == "xylophon"
