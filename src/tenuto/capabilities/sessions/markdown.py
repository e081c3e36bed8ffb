"""The progress document as Markdown: read it as data, change one part, keep every other line. Pure functions.

The text is the document. A line with a checkbox is an item, in any section but those that hold other text; the
sections with known headings hold the goal, the blocker, the next action and so on. A change replaces only the lines
that it concerns, so unknown sections, the order, line endings and spacing stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tenuto.errors import InvalidInput, NotFound

Part = Literal["goal", "items", "blocker", "next", "context", "ruled out", "decisions", "questions"]
_HEADINGS: Final[dict[Part, tuple[str, ...]]] = {
    "goal": ("Current Goal", "Goal"),
    "items": ("Completed Steps", "Steps", "Open Steps", "Completed", "Items", "Features", "Tasks", "To Do", "Todo"),
    "blocker": ("Current Blocker", "Blocker", "Blockers", "Blocked"),
    "next": ("Next Action", "Next Step", "Next"),
    "context": ("Context", "Notes"),
    "ruled out": ("Ruled Out",),
    "decisions": ("Decisions",),
    "questions": ("Open Questions", "Questions"),
}
"""The headings of each part, in the order of a new document. The first one is written."""
_PART_OF: Final = {heading.casefold(): part for part, names in _HEADINGS.items() for heading in names}
_ORDER: Final = list(_HEADINGS)
_NOTHING: Final = {"", "none", "none.", "-", "n/a"}
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_HEADING: Final = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"([ \t]*)([-*+]|\d+[.)])[ \t]+\[([ xX])\][ \t]+(.*?)[ \t]*$")
_DETAIL: Final = re.compile(r"[ \t]+[-*+][ \t]+(test|evidence)[ \t]*:[ \t]*(.*?)[ \t]*$", re.IGNORECASE)
_BULLET: Final = re.compile(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]+(.*?)[ \t]*$")
_WHY: Final = re.compile(r"(.*?)(?: \(why: (.*)\))?$")
_STRUCTURE: Final = re.compile(r"^([ \t]*\\*)(?=#|```|~~~)")
_LONGEST: Final = 300


class ProgressItem(NamedTuple):
    """An item of a progress document: a checkbox with its acceptance test and its evidence."""

    number: int
    """Its place in the document, from 1."""
    text: str
    done: bool
    test: str | None
    """What must hold before it is done."""
    evidence: str | None
    """What showed that it is done; None for an item that was ticked by hand."""


class NewItem(NamedTuple):
    """An item to add to a document."""

    text: str
    test: str | None = None
    done: bool = False
    evidence: str | None = None


class Reasoned(NamedTuple):
    """A decision, or an option that was ruled out, with the reason."""

    text: str
    why: str | None


class Entry(NamedTuple):
    """A change of a document, for its history."""

    what: str
    text: str = ""
    detail: Any = None
    """The evidence, the reason or the value, whole."""


class _Section(NamedTuple):
    part: Part | None
    heading: int
    end: int


class _Place(NamedTuple):
    item: ProgressItem
    line: int
    end: int


class Markdown:
    """A progress document. Methods change it in place; `text` is the result."""

    def __init__(self, text: str) -> None:
        self._lines: list[str] = _LINE.findall(text)
        self._changed()
        self._ending = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"

    @classmethod
    def new(cls, name: str) -> Markdown:
        """Return an empty document."""
        return cls(f"# Progress: {one_line(name)}\n")

    @property
    def text(self) -> str:
        """Return the whole document."""
        return "".join(self._lines)

    def replace(self, text: str) -> None:
        """Replace the whole document."""
        Markdown.__init__(self, text)

    @property
    def title(self) -> str | None:
        """Return the title without the word "Progress:"; None if there is none."""
        for at, level, heading in self._headings():
            if level == 1:
                return re.sub(r"(?i)^progress:\s*", "", heading).strip() or None
            if at > 20:
                break
        return None

    # -- reading ---------------------------------------------------------------------------------------------------

    def items(self) -> list[ProgressItem]:
        """Return the items in the order of the document."""
        return [place.item for place in self._places()]

    def paragraph(self, part: Part) -> str | None:
        """Return the text of a part; None if it is missing, empty or "None"."""
        section = self._section(part)
        if section is None:
            return None
        lines = [self._bare(at) for at in range(section.heading + 1, section.end)]
        text = "\n".join(_STRUCTURE.sub(_unescape, line) for line in lines).strip()
        return None if text.casefold() in _NOTHING else text

    def bullets(self, part: Part) -> list[str]:
        """Return the list entries of a part."""
        section = self._section(part)
        if section is None:
            return []
        found = (_BULLET.match(self._bare(at)) for at in range(section.heading + 1, section.end))
        return [one[1] for one in found if one and one[1].casefold() not in _NOTHING]

    def reasoned(self, part: Part) -> list[Reasoned]:
        """Return the entries of a part, each with its reason."""
        found = [_WHY.fullmatch(one) for one in self.bullets(part)]
        return [Reasoned(one[1], one[2]) for one in found if one]

    def context(self) -> dict[str, str]:
        """Return the entries `- key: value` of the context."""
        split = [one.partition(":") for one in self.bullets("context")]
        return {key.strip(): value.strip() for key, colon, value in split if colon}

    # -- changing --------------------------------------------------------------------------------------------------

    def add(self, text: str, test: str | None = None, *, done: bool = False) -> ProgressItem:
        """Add an item after the last one; return it."""
        at = self.add_all([NewItem(text, test, done)])
        return next(place.item for place in self._places() if place.line == at)

    def add_all(self, items: Sequence[NewItem]) -> int:
        """Add items after the last one; return the line of the first."""
        places = self._places()
        sections = {section.heading: section for section in self._sections() if section.part == "items"}
        ours = [one for one in places if any(s.heading < one.line < s.end for s in sections.values())] or places
        if ours:
            last = _ITEM.match(self._bare(ours[-1].line))
            assert last is not None
            indent, marker, at = last[1], _following(last[2]), ours[-1].end
        else:
            heading = None if all(one.done for one in items) else "Steps"
            section = next(iter(sections.values()), None) or self._create("items", heading)
            indent, marker, at = "", "1.", self._body_end(section)
        lines: list[str] = []
        for one in items:
            lines.append(f"{indent}{marker} [{'x' if one.done else ' '}] {must_have(one.text, 'An item')}")
            details = {"Test": None if one.test is None else one_line(one.test), "Evidence": one.evidence}
            below = indent + " " * (len(marker) + 1)
            lines += [f"{below}- {name}: {text}" for name, text in details.items() if text is not None]
            marker = _following(marker)
        self._insert(at, lines)
        return at

    def index(self) -> dict[str, ProgressItem]:
        """Return the items by `key_of` their text: of equal ones the first open one, else the first."""
        found: dict[str, ProgressItem] = {}
        for one in self.items():
            before = found.get(key_of(one.text))
            if before is None or (before.done and not one.done):
                found[key_of(one.text)] = one
        return found

    def find(self, item: str | int) -> ProgressItem | None:
        """Return an item by number or text: the first open one, else the first one that is done."""
        if isinstance(item, int):
            found = [one for one in self.items() if one.number == item]
        else:
            return self.index().get(key_of(item))
        return found[0] if found else None

    def tick(self, item: ProgressItem, evidence: str) -> ProgressItem:
        """Mark an item as done and write its evidence below it; return it."""
        if not any(place.item.number == item.number for place in self._places()):
            raise NotFound(f"There is no item {item.number}. Read the items with p.get().")
        self.tick_all({item.number: evidence})
        return self._places()[item.number - 1].item

    def tick_all(self, evidence: Mapping[int, str]) -> None:
        """Mark the items of these numbers as done, and write the evidence below each."""
        for place in reversed(self._places()):  # from the end, so that the lines of the others keep their numbers
            if place.item.number in evidence:
                line = self._lines[place.line]
                box = line.index("[", len(line) - len(line.lstrip()))
                self._lines[place.line] = line[: box + 1] + "x" + line[box + 2 :]
                indent = " " * (len(line[:box].expandtabs(4)))
                self._insert(place.end, [f"{indent}- Evidence: {evidence[place.item.number]}"])

    def write(self, part: Part, text: str | None) -> None:
        """Replace the text of a part; None writes "None" if the part exists."""
        section = self._section(part)
        if section is None:
            if text is None:
                return
            section = self._create(part)
        lines = ["None"] if text is None else [_STRUCTURE.sub(r"\1\\", line) for line in text.split("\n")]
        first, last = section.heading + 1, self._body_end(section)
        while first < last and not self._bare(first).strip():
            first += 1
        del self._lines[first:last]
        self._changed()
        self._insert(first, lines)

    def bullet(self, part: Part, text: str, key: str | None = None) -> None:
        """Add a list entry to a part, or replace the entry `- key: …`; an equal entry is added once."""
        section = self._section(part) or self._create(part)
        for at in range(section.heading + 1, section.end):
            found = _BULLET.match(self._bare(at))
            if found and key is not None and found[1].partition(":")[0].strip() == key:
                start = found.start(1)
                self._lines[at] = self._lines[at][:start] + text + self._end_of(at)
                self._changed()
                return
            if found and key is None and found[1] == text:
                return
        self._insert(self._body_end(section), [f"- {text}"])

    # -- lines -----------------------------------------------------------------------------------------------------

    def _bare(self, at: int) -> str:
        return self._lines[at].removesuffix("\n").removesuffix("\r")

    def _end_of(self, at: int) -> str:
        return self._lines[at][len(self._bare(at)) :]

    def _changed(self) -> None:
        """Forget what was read of the lines: they have changed."""
        self._read_sections: list[_Section] | None = None
        self._read_places: list[_Place] | None = None

    def _insert(self, at: int, lines: Sequence[str]) -> None:
        if at and not self._lines[at - 1].endswith("\n"):
            self._lines[at - 1] += self._ending
        self._lines[at:at] = [line + self._ending for line in lines]
        self._changed()

    def _code(self) -> Iterator[tuple[int, bool]]:
        """Yield each line's number, and whether it is part of a fenced code block; a fence without an end is text."""
        fences = [(at, found[1]) for at in range(len(self._lines)) if (found := _FENCE.match(self._bare(at)))]
        start, last = -1, -1
        blocks: set[int] = set()
        for index, (at, fence) in enumerate(fences):
            if at <= last:
                continue
            ends = (end for end, other in fences[index + 1 :] if self._closes(end, other, fence))
            start, last = at, next(ends, at - 1)
            blocks.update(range(start, last + 1))
        yield from ((at, at in blocks) for at in range(len(self._lines)))

    def _closes(self, at: int, fence: str, opening: str) -> bool:
        return fence.startswith(opening) and not self._bare(at).strip(" `~")

    def _headings(self) -> Iterator[tuple[int, int, str]]:
        for at, code in self._code():
            found = None if code else _HEADING.match(self._bare(at).removeprefix("\ufeff"))
            if found:
                yield at, len(found[1]), found[2] or ""

    def _sections(self) -> list[_Section]:
        if self._read_sections is None:
            self._read_sections = self._all_sections()
        return self._read_sections

    def _all_sections(self) -> list[_Section]:
        headings = [
            (at, level, _PART_OF.get(title.strip().rstrip(":").casefold()) if level > 1 else None)
            for at, level, title in self._headings()
        ]
        found: list[_Section] = []
        for index, (at, level, part) in enumerate(headings):
            after = (line for line, other, known in headings[index + 1 :] if other <= level or known is not None)
            found.append(_Section(part, at, next(after, len(self._lines))))
        return found

    def _section(self, part: Part) -> _Section | None:
        return next((one for one in self._sections() if one.part == part), None)

    def _places(self) -> list[_Place]:
        if self._read_places is None:
            self._read_places = self._all_places()
        return self._read_places

    def _all_places(self) -> list[_Place]:
        text_only = [one for one in self._sections() if one.part not in (None, "items")]
        found: list[_Place] = []
        lines = [(at, code) for at, code in self._code() if not any(s.heading < at < s.end for s in text_only)]
        usable = {at for at, code in lines if not code}
        for at in sorted(usable):
            match = _ITEM.match(self._bare(at))
            if match:
                found.append(self._place(at, match, len(found) + 1, usable))
        return found

    def _place(self, at: int, match: re.Match[str], number: int, usable: set[int]) -> _Place:
        """Return the item of a line, with the indented lines below it."""
        details: dict[str, str] = {}
        end = at + 1
        while end in usable:
            line = self._bare(end)
            indented = len(line) - len(line.lstrip(" \t")) > len(match[1])
            if not line.strip() or not indented or _ITEM.match(line) or _HEADING.match(line):
                break
            detail = _DETAIL.match(line)
            if detail:
                details[detail[1].casefold()] = detail[2]
            end += 1
        done = match[3] != " "
        item = ProgressItem(number, match[4], done, details.get("test") or None, details.get("evidence") or None)
        return _Place(item, at, end)

    def _body_end(self, section: _Section) -> int:
        """Return where the section's text ends, before its trailing blank lines."""
        end = section.end
        while end > section.heading + 1 and not self._bare(end - 1).strip():
            end -= 1
        return end

    def _create(self, part: Part, heading: str | None = None) -> _Section:
        """Create a section before the next one in the usual order, else at the end."""
        later = _ORDER[_ORDER.index(part) + 1 :]
        at = next((one.heading for one in self._sections() if one.part in later), len(self._lines))
        lines = [f"## {heading or _HEADINGS[part][0]}"]
        if at and self._bare(at - 1).strip():
            lines.insert(0, "")
        if at < len(self._lines):
            lines.append("")
        self._insert(at, lines)
        found = self._section(part)
        assert found is not None
        return found


def _following(marker: str) -> str:
    return f"{int(marker[:-1]) + 1}{marker[-1]}" if marker[:-1].isdigit() else marker


def _unescape(found: re.Match[str]) -> str:
    return found[1].removesuffix("\\")


def one_line(text: Any) -> str:
    """Return a text as one line, with single spaces."""
    return " ".join(str(text).split())


def key_of(text: str) -> str:
    """Return what two texts of the same item have in common."""
    return one_line(text).casefold()


def must_have(text: Any, what: str) -> str:
    """Return a text as one line; `InvalidInput` if it is empty or no text."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{what} must be a text that is not empty, not {text!r:.80}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} must be valid Unicode, not {text!r:.80}: {error.reason}.") from error
    return one_line(text)


def paragraph(text: Any, what: str) -> str:
    """Return a text of several lines in its stored form; `InvalidInput` if it is empty or no text."""
    must_have(text, what)
    return str(text).replace("\r\n", "\n").replace("\r", "\n").strip()


def shown(value: Any) -> str:
    """Return a value as one line of at most 300 characters: text unchanged, other data as JSON."""
    said = one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr))
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def with_reason(text: str, why: str | None) -> str:
    """Return an entry with its reason."""
    return text if why is None else f"{text} (why: {one_line(why)})"
