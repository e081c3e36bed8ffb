"""The map in CONTRIBUTING is true: a stranger finds every file where it says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_names_every_file() -> None:
    block = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert block is not None
    shown: dict[str, list[str]] = {}
    for line in block[1].splitlines():
        if folder := re.match(r"(\S+)/ +\(.+\)$", line):
            names = shown.setdefault(folder[1], [])
        else:
            names.extend(line.split())
    source = ROOT / "src/tenuto"
    there: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        if path.stem != "__init__" and path.parent != source:
            there.setdefault(str(path.parent.relative_to(source)), []).append(path.stem)
    assert shown == there


def test_the_owners_of_keys_are_there() -> None:
    owners = set(re.findall(r"`((?:capabilities|adapters)/[\w/]+\.py)`", (ROOT / "docs/keys.md").read_text()))
    assert len(owners) > 15
    assert [owner for owner in sorted(owners) if not (ROOT / "src/tenuto" / owner).exists()] == []
