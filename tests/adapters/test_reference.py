"""Reference behaviour: the same calls to a framework's own store and to ours have the same answers."""

from pathlib import Path

import pytest
import reference
import suites


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework", [name for name in reference.FRAMEWORKS if reference.installed(name)])
def test_calls_are_answered_as_by_the_frameworks_own_store(framework: str, tmp_path: Path) -> None:
    found = list(reference.FRAMEWORKS[framework][0](tmp_path))
    assert found
    for one in found:
        assert bool(one.differ) == (one.what in suites.REFERENCE), one


def test_an_answer_that_differs_is_found() -> None:
    one = reference.compared("s", [1, 2], [1, 3], [lambda s: s[0], lambda s: s[1], lambda s: s[2], lambda s: s.none])
    assert one == ("s", 4, ["call 2: theirs 2, ours 3"])
