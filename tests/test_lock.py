"""What the two commands of the README install must be there for every Python that tenuto says it runs on."""

from importlib.metadata import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

LOCK = Path(__file__).parent.parent / "requirements.lock"
OLDEST = "3.11.0"


def test_nothing_that_is_locked_needs_a_newer_python() -> None:
    names = [line.split("==")[0] for line in LOCK.read_text().splitlines() if "==" in line]
    wanted = {name: metadata(name).get("Requires-Python") for name in names}
    assert len(names) > 100
    assert {name: needs for name, needs in wanted.items() if needs and OLDEST not in SpecifierSet(needs)} == {}
