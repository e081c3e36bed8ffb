"""`check` notices values that are gone although their journal has them."""

from datetime import timedelta

import pytest

from tenuto import Tenuto
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Delete, Put
from tenuto.testing import HeldClock


@pytest.fixture
def filled(agent: Tenuto, clock: HeldClock) -> Tenuto:
    for n in range(3):
        agent.state.set("task", f"k{n}", n)
        agent.state.set("task", "k0", n)
    agent.state.set("task", "brief", 1, ttl=timedelta(seconds=5))
    agent.state.set("task", "deleted", 1)
    agent.state.delete("task", "deleted")
    with agent.state.transaction("task") as both:
        both["x"] = 1
        both["y"] = 2
        del both["k2"]
    agent.user("ann").set("seat", "aisle")
    agent.user("ann").set("food", "none")
    agent.thread("t").append({"role": "user", "content": "hi"})
    with agent.run("r") as run:
        run.step("s", str, 1)
    clock.advance(10)
    return agent


def removed(agent: Tenuto, *parts: str) -> None:
    """Remove a record without its journal, as a tool of the database would."""
    agent.kernel.commit([], [Delete(keys.pack(*parts))])


def test_an_intact_store_has_no_finding(filled: Tenuto) -> None:
    assert filled.store.check().findings == []


@pytest.mark.parametrize(
    ("parts", "named"),
    [(("task", "state", "k0"), "'k0' of 'task'"), (("ann", "user", "food"), "'food' of the user 'ann'")],
)
def test_a_removed_value_is_found_and_named(filled: Tenuto, parts: tuple[str, ...], named: str) -> None:
    removed(filled, *parts)
    (found,) = filled.store.check().findings
    assert found.kind == "missing"
    assert named in found.detail
    assert filled.state.at("task", "k1", version=1) == 1


def test_a_value_set_again_after_its_removal_is_no_finding(filled: Tenuto) -> None:
    removed(filled, "task", "state", "x")
    filled.state.set("task", "x", 3)
    assert filled.store.check().ok


def test_other_records_without_a_journal_are_no_finding(filled: Tenuto) -> None:
    filled.kernel.commit([], [Put(keys.pack("other", "lease", "token"), codec.encode(None))])
    assert filled.store.check().ok
