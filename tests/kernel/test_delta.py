"""Finding what changed: nothing may be missed, and what is stored must lead to the same state again."""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto import Damaged, NotStorable
from tenuto.kernel import codec, delta, tree
from tenuto.kernel.tree import Node


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits, so that small states have every kind of piece."""
    for module in (tree, delta):
        monkeypatch.setattr(module, "RUN", 4)
    monkeypatch.setattr(tree, "SMALL", 48)
    for module in (tree, delta):
        monkeypatch.setattr(module, "WIDE", 96)
    monkeypatch.setattr(tree, "LARGE", 200)


def whole(node: Node) -> bytes:
    return b"".join(node.pieces())


def stored(how: Any) -> Any:
    return codec.unpack(codec.pack(how))


def follow(old: Any, new: Any) -> list[Any] | None:
    """Go from one state to another by what is stored, and prove that it leads there. Return the change."""
    before, after = tree.grow(old), tree.grow(new, tree.grow(old))
    assert whole(after) == codec.pack(new)
    assert after.size == len(whole(after))
    assert after.digest == tree.grow(new).digest, "the tree depends on how it came about"
    how = delta.change(before, after)
    if how is None:
        assert codec.pack(old) == codec.pack(new)
        return None
    plain = delta.apply(codec.unpack_plain(whole(before)), stored(how))
    again = tree.regrow(plain)
    assert whole(again) == codec.pack(new)
    assert again.digest == after.digest
    return how


def messages(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"message {number} " * 20} for number in range(count)]


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an old element edited in place": lambda s: s["messages"][7].update(content="other"),
    "a reorder": lambda s: s["messages"].reverse(),
    "two elements exchanged": lambda s: s["messages"].insert(3, s["messages"].pop(90)),
    "an insertion": lambda s: s["messages"].insert(50, {"role": "system"}),
    "a removed element": lambda s: s["messages"].pop(20),
    "a removed key": lambda s: s.pop("notes"),
    "a removed inner key": lambda s: s["notes"].pop("k3"),
    "an int that became a bool": lambda s: s.update(step=True),
    "an int that became a float": lambda s: s.update(step=1.0),
    "a list that became a tuple": lambda s: s.update(pair=(1, 2)),
    "text that became bytes": lambda s: s["notes"].update(k1=b"v1"),
    "a list cut at its front": lambda s: s["messages"].__delitem__(slice(0, 30)),
    "an emptied list": lambda s: s["messages"].clear(),
    "a dict that became a list": lambda s: s.update(notes=[1, 2]),
    "an element doubled": lambda s: s["messages"].append(copy.deepcopy(s["messages"][5])),
    "keys in another order": lambda s: s.update(notes=dict(reversed(s["notes"].items()))),
    "an append": lambda s: s["messages"].append({"role": "user", "content": "new"}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_kind_of_change_is_found_and_leads_back(edit: Callable[[dict[str, Any]], Any]) -> None:
    old = {
        "messages": messages(100),
        "notes": {f"k{n}": f"v{n}" * 20 for n in range(40)},
        "step": 1,
        "pair": [1, 2],
    }
    new = copy.deepcopy(old)
    edit(new)
    assert follow(old, new) is not None


@pytest.mark.parametrize(
    ("edit", "most"),
    [
        ("an append", 100),
        ("an old element edited in place", 100),
        ("a list cut at its front", 60),
        ("two elements exchanged", 60),
        ("a removed key", 40),
    ],
)
def test_a_change_is_as_small_as_what_is_new(edit: str, most: int) -> None:
    old = {"messages": messages(1_000), "notes": {f"k{n}": f"v{n}" * 20 for n in range(400)}}
    new = copy.deepcopy(old)
    EDITS[edit](new)
    assert len(codec.pack(follow(old, new))) < most


def test_appends_stay_small_while_the_pieces_grow_beyond_one() -> None:
    state: dict[str, Any] = {"messages": []}
    old = tree.grow(state)
    for turn in range(150):
        state["messages"].append({"role": "user", "content": f"{turn} " * 400})
        new = tree.grow(state, old)
        assert len(codec.pack(delta.change(old, new))) < 4_000
        old = new


def test_a_large_element_of_a_list_changes_by_its_part() -> None:
    old = {"documents": [{"title": str(n), "lines": messages(200)} for n in range(5)]}
    new = copy.deepcopy(old)
    new["documents"][3]["lines"][77]["content"] = "edited"
    assert len(codec.pack(follow(old, new))) < 100


def test_an_element_that_moved_and_whose_old_place_holds_an_edit_of_it() -> None:
    old = {"documents": [{"title": str(n), "lines": messages(200)} for n in range(4)]}
    new = copy.deepcopy(old)
    new["documents"][0] = copy.deepcopy(old["documents"][3])
    new["documents"][3]["lines"][77]["content"] = "edited"
    follow(old, new)


def test_a_copied_element_that_is_edited_later_leaves_its_twin_alone() -> None:
    states = [{"list": [{"n": [number], "text": "x" * 2_000} for number in range(40)]}]
    for step in range(3):
        state = copy.deepcopy(states[-1])
        state["list"].append(copy.deepcopy(state["list"][2]))
        if step:
            state["list"][-2]["n"].append(step)
        states.append(state)
    plain = codec.unpack_plain(codec.pack(states[0]))
    for old, new in itertools.pairwise(states):
        how = delta.change(tree.grow(old), tree.grow(new))
        plain = delta.apply(plain, stored(how))
        assert ormsgpack.packb(plain) == codec.pack(new)


def test_what_did_not_change_is_the_same_piece_again() -> None:
    state = {"messages": messages(640), "step": 1}
    old = tree.grow(state)
    state["step"] = 2
    new = tree.grow(state, old)
    assert isinstance(old, tree.Fields)
    assert isinstance(new, tree.Fields)
    assert new.of["messages"] is old.of["messages"]


def test_what_cannot_be_stored_is_named_by_its_whole_path() -> None:
    with pytest.raises(NotStorable, match=r"messages\[70\].meta") as caught:
        tree.grow({"messages": [*messages(70), {"meta": object()}]})
    assert caught.value.path == "messages[70].meta"


def test_a_change_that_does_not_fit_is_damaged() -> None:
    for how in (
        [1, ["gone"], [], None],
        [2, [[5, 9]]],
        [2, [[0, [0, b""]]]],
        [9],
        [1, [], [["a", [2, [[0, 1]]]]], None],
    ):
        with pytest.raises(Damaged):
            delta.apply({"a": 1}, how)


# -- random states, random edits -------------------------------------------------------------------

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.floats(allow_nan=False, width=32),
    st.text(max_size=12),
    st.text(alphabet="ab", min_size=60, max_size=90),
    st.binary(max_size=8),
    st.just("x" * 250),
    st.just(b"y" * 250),
    st.just(Decimal("1.50")),
    st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    st.tuples(st.integers(0, 3)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=11),
        st.dictionaries(st.sampled_from("abcdefgh"), inner, max_size=6),
        st.dictionaries(st.integers(0, 3), inner, max_size=2),
    ),
    max_leaves=25,
)
states = st.dictionaries(st.sampled_from("abcdefgh"), values, max_size=6)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states, states)
def test_any_state_leads_to_any_other(narrow: None, old: dict[str, Any], new: dict[str, Any]) -> None:
    follow(old, new)


def held() -> tuple[dict[bytes, str | bytes], tree.Hold]:
    contents: dict[bytes, str | bytes] = {}

    def hold(value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        digest = codec.digest(raw)
        contents[digest] = value
        return codec.held(digest, len(raw), text=isinstance(value, str))

    return contents, hold


def inside(value: Any) -> Iterator[Any]:
    if type(value) in (dict, list) and value:
        yield value
        for inner in value.values() if type(value) is dict else value:
            yield from inside(inner)


def edit(chance: random.Random, state: Any, fresh: Any) -> None:
    """Change something somewhere, in place."""
    where = chance.choice(list(inside(state)) or [state])
    if type(where) is dict:
        key = chance.choice([*where, "new"])
        chance.choice([lambda: where.update({key: fresh}), lambda: where.pop(key, None)])()
    else:
        at = chance.randrange(len(where))
        chance.choice(
            [
                lambda: where.__setitem__(at, fresh),
                lambda: where.insert(at, fresh),
                lambda: where.append(copy.deepcopy(where[at])),
                lambda: where.pop(at),
                lambda: chance.shuffle(where),
                lambda: where.__delitem__(slice(0, at)),
            ]
        )()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states, st.lists(values, min_size=1, max_size=8), st.integers(0, 10**9))
def test_a_chain_of_edits_in_place_leads_to_the_last_state(
    narrow: None, state: dict[str, Any], fresh: list[Any], seed: int
) -> None:
    chance = random.Random(seed)
    contents, hold = held()
    grown = tree.grow(state, None, hold)
    plain = codec.unpack_plain(whole(grown))
    for value in fresh:
        edit(chance, state, copy.deepcopy(value))
        new = tree.grow(state, grown, hold)
        assert new.digest == tree.grow(state, None, hold).digest
        how = delta.change(grown, new)
        if how is not None:
            plain = delta.apply(plain, stored(how))
        assert tree.regrow(plain).digest == new.digest
        found = codec.unpack(ormsgpack.packb(plain), lambda one: contents[one.digest])
        assert codec.pack(found) == codec.pack(state)
        grown = new
