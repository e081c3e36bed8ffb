"""The map in CONTRIBUTING is true: a stranger finds every file where it says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_names_every_file() -> None:
    block = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert block is not None
    shown = dict(re.findall(r"^(\S+)/ +([^(\n]*)$", block[1], re.MULTILINE))
    assert len(shown) > 9
    for folder, names in shown.items():
        there = sorted(path.stem for path in (ROOT / "src/tenuto" / folder).glob("*.py") if path.stem != "__init__")
        assert names.split() == there, folder


def test_the_owners_of_keys_are_there() -> None:
    owners = set(re.findall(r"`((?:capabilities|adapters)/[\w/]+\.py)`", (ROOT / "docs/keys.md").read_text()))
    assert len(owners) > 15
    assert [owner for owner in sorted(owners) if not (ROOT / "src/tenuto" / owner).exists()] == []
