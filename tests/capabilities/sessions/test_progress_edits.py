"""Random edits of a progress file by people, with changes by agents between them: no line is lost, no tick undone."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from support.long import size

from tenuto import Conflict, Tenuto
from tenuto.capabilities.sessions.markdown import Markdown

LINES = st.sampled_from(
    [
        "# Progress: x", "## Current Goal", "## completed steps", "## Current Blocker:", "### Next Action ##", "## Context",
        "## Ruled Out", "#hash", "## Mine", "", "  ", "text", "1. [x] one", "2. [ ] two", "   - Test: t", "   - Evidence: e",
        "* [ ] three", "  - [X] nested", "- key: value", "- free", "```", "~~~~", "    indented", "None", "雪 é\u2028ü", "\ttab", "\\# a",
    ]
)  # fmt: skip
TEXTS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n"])), max_size=25).map(
    lambda lines: "".join(line + ending for line, ending in lines)
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda text: text.strip())


def lines(text: str) -> list[str]:
    return text.split("\n")


def is_subsequence(few: list[str], many: list[str]) -> bool:
    left = iter(many)
    return all(one in left for one in few)


@settings(max_examples=size(80, 3000), deadline=None)
@given(TEXTS | st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_any_text_is_a_document_and_stays_as_it_is(text: str, cut: bool) -> None:
    text = text.rstrip("\n") if cut else text
    doc = Markdown(text)
    doc.items(), doc.context(), doc.reasoned("decisions"), doc.paragraph("goal"), doc.title
    assert doc.text == text


@settings(max_examples=size(80, 3000), deadline=None)
@given(TEXTS, WORDS, WORDS)
def test_a_change_keeps_every_other_line_and_is_read_back(text: str, word: str, other: str) -> None:
    word, other = " ".join(word.split()), " ".join(other.split())
    before = lines(text)
    doc = Markdown(text)
    count = len(doc.items())
    added = doc.add(word, other)
    assert (added.text, added.test, added.done, len(doc.items())) == (word, other, False, count + 1)
    ticked = doc.tick(added, other)
    assert (ticked.text, ticked.test, ticked.evidence, ticked.done) == (word, other, other, True)
    doc.bullet("ruled out", f"a{word}")
    assert f"a{word}" in doc.bullets("ruled out")
    doc.bullet("context", f"k: {word}", "k")
    assert doc.context()["k"] == word
    assert is_subsequence([line for line in before[:-1] if not line.startswith("- key")], lines(doc.text))
    doc.write("blocker", f"x{word}\n{other}")
    assert doc.paragraph("blocker") == f"x{word}\n{other}"
    items = doc.items()
    doc.write("next", "go")
    assert (doc.paragraph("next"), doc.items()) == ("go", items)


EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "item", "heading", "endings", "move", "done", "note", "plan"]), st.integers(0, 40)),
    max_size=8,
)  # fmt: skip


@settings(max_examples=size(20, 1000), deadline=None)
@given(EDITS)
def test_edits_by_people_and_agents_between_writes_are_all_kept(edits: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, Tenuto("a", "volatile:") as agent:
        path = Path(folder) / "PROGRESS.md"
        p = agent.progress("x", goal="Do it")
        p.plan(["first", "second"])
        p.write(path)
        written: list[str] = []
        done: set[str] = set()
        for number, (what, at) in enumerate(edits):
            mine = path.read_bytes().decode().split("\n")
            place = at % len(mine)
            items = p.get().items
            if what == "done" and items:
                item = items[at % len(items)]
                p.complete(item.number, evidence=f"proof {number}")
                done.add(item.text)
            elif what == "note":
                p.note(f"key{number}", at)
                written.append(f"- key{number}: {at}")
            elif what == "plan":
                p.plan([f"planned {number}"])
                written.append(f"] planned {number}")
            elif what == "endings":
                ending = "\r\n" if at % 2 else "\n"
                path.write_bytes(ending.join(line.removesuffix("\r") for line in mine).encode())
            elif what in ("move", "done"):
                mine.insert(place, mine.pop(at * 7 % len(mine)))
                path.write_bytes("\n".join(mine).encode())
            else:
                fresh = {
                    "insert": f"by hand {number} ü",
                    "item": f"- [ ] hand {number}",
                    "heading": f"## Part {number}",
                }
                mine.insert(place, fresh[what])
                path.write_bytes("\n".join(mine).encode())
                written.append(fresh[what].removeprefix("- [ "))
            if number % 2:
                continue  # the next edit comes before the two meet
            before = path.read_bytes()
            try:
                p.write(path)
            except Conflict:  # both sides changed one line
                assert path.read_bytes() == before, "nothing was overwritten"
                return
            text = path.read_bytes().decode()
            assert text == p.markdown()
            for line in written:
                assert any(one.removesuffix("\r").endswith(line) for one in text.split("\n")), line
            assert [one for one in done if f"[x] {one}" not in text] == [], "a tick stays"
