"""The project writes plain English: private words and vague phrases fail in the docs, and only become rarer in the source.

Code blocks and inline code are not prose and are left out. For the source, comments, docstrings and other strings count; the
maximum of each pattern is what is left to rewrite. Lower it whenever a rewrite made the count smaller. Print all counts with
`pytest -s tests/docs/test_language.py`.
"""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BETTER = {
    r"whoever|whatever becomes|whomever": ("name the process, the caller or the worker", 0),
    r"somebody|everybody|nobody": ("name the process, the caller or the worker", 0),
    r"go(?:es|ing)? on|went on": ("resume, continue", 0),
    r"comes? to be|came to be|is to be|are to be": ("is created, must be", 0),
    r"behind": ("after", 6),
    r"beside": ("next to, concurrently, compared with", 2),
    r"as it was|as they were": ("unchanged, the earlier state", 2),
    r"inside of": ("inside", 0),
    r"in hand|in (?:his|its|their|one's) hands": ("held, claimed, running", 0),
    r"lies? (?:in|on)|stands? in": ("is in", 0),
    r"is told|are told|was told|tells (?:of|that|what)": ("gets an error, is notified, reports", 0),
    r"at the (?:most|least)|not .{1,30} any more|for so long": ("at most, at least, no longer", 1),
    r"taken away|what became of|has (?:his|its) turn": ("removed, result, priority", 0),
    r"(?:rings?|rang|rung) (?:his|its|a|the)|his bell": ("notifies", 0),
    r"tips|lives|bells?|shelf|crew|keeper": ("use a term of the field", 33),
}
"""What to avoid, what to write instead, and how often it may still occur in src/."""
NAMES = dict.fromkeys(("told", "in_hand", "lives", "nobody|somebody|everybody|whoever", "tips?|shelf|crews?|keeper"), 0)
"""Private words in names, and how often a name with one may still occur in src/."""


def words_of(path: Path) -> str:
    """Return the comments and strings of a source file."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_terms_of_the_field(page: Path) -> None:
    prose = CODE.sub(lambda code: "\n" * code[0].count("\n") + " ", page.read_text())
    wrong = [
        f"{page.name}:{number}: {hit[0]!r}; write: {better}"
        for number, line in enumerate(prose.splitlines(), start=1)
        for one, (better, _) in BETTER.items()
        for hit in re.finditer(rf"\b(?:{one})\b", line, re.IGNORECASE)
    ]
    assert wrong == [], "\n".join(wrong)


def test_the_source_does_not_gain_vague_words() -> None:
    text = "\n".join(words_of(path) for path in (ROOT / "src").rglob("*.py"))
    total = {one: len(re.findall(rf"\b(?:{one})\b", text, re.IGNORECASE)) for one in BETTER}
    print(*(f"{count:4} {one}" for one, count in total.items()), sep="\n")
    assert [f"{one}: {total[one]}, at most {most}" for one, (_, most) in BETTER.items() if total[one] > most] == []


def test_the_source_does_not_gain_private_names() -> None:
    files = [io.StringIO(path.read_text()).readline for path in (ROOT / "src").rglob("*.py")]
    tokens = [token for readline in files for token in tokenize.generate_tokens(readline)]
    names = [token.string for token in tokens if token.type == tokenize.NAME]
    whole = {one: re.compile(rf"(?:^|_)(?:{one})(?:_|$)", re.IGNORECASE) for one in NAMES}
    total = {one: sum(pattern.search(name) is not None for name in names) for one, pattern in whole.items()}
    print(*(f"{count:4} {one}" for one, count in total.items()), sep="\n")
    assert [f"{one}: {total[one]}, at most {most}" for one, most in NAMES.items() if total[one] > most] == []
