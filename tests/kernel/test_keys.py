"""Keys sort as the tuples do, and no name reaches out of its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import InvalidInput
from tenuto.kernel import keys

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
parts = st.lists(text | st.binary(max_size=8) | st.integers(-(2**64) + 1, 2**64 - 1), max_size=5)
texts = st.lists(text, min_size=1, max_size=4)


@given(parts)
def test_a_key_comes_back_as_its_parts(value: list[keys.Part]) -> None:
    assert keys.unpack(keys.pack(*value)) == tuple(value)


@given(texts, texts)
def test_bytes_sort_as_the_tuples_do(one: list[str], two: list[str]) -> None:
    encoded = [tuple(t.encode() for t in parts) for parts in (one, two)]
    assert (keys.pack(*one) < keys.pack(*two)) == (encoded[0] < encoded[1])


@given(st.integers(-(2**64) + 1, 2**64 - 1), st.integers(-(2**64) + 1, 2**64 - 1))
def test_numbers_sort_as_numbers(one: int, two: int) -> None:
    assert (keys.pack(one) < keys.pack(two)) == (one < two)


names = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12), max_size=5)
"""Names hold no NUL: `keys.name` refuses it. A part that ends where another goes on with NUL would be its prefix."""


@given(names, names)
def test_a_key_is_a_prefix_only_of_what_lies_below_it(one: list[str], two: list[str]) -> None:
    assert keys.pack(*two).startswith(keys.pack(*one)) == (two[: len(one)] == one)


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_end_of_a_prefix_lies_behind_all_of_it_and_nothing_else(prefix: bytes, key: bytes) -> None:
    end = keys.after_prefix(prefix)
    assert (key >= prefix and (end is None or key < end)) == key.startswith(prefix)


@given(text, text, parts)
def test_the_scope_of_a_key_is_its_first_two_parts(tenant: str, scope: str, rest: list[keys.Part]) -> None:
    assert keys.scope_of(keys.pack(tenant, scope, *rest)) == keys.pack(tenant, scope)


@pytest.mark.parametrize("bad", [b"", b"x", keys.pack("one"), keys.pack("one", 2), b"\x02no end"])
def test_a_key_without_tenant_and_scope_is_refused(bad: bytes) -> None:
    with pytest.raises(InvalidInput):
        keys.scope_of(bad)


@pytest.mark.parametrize("bad", [1.5, None, True, ["x"], "\ud800", 2**64, -(2**64)])
def test_a_part_that_is_no_part_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        keys.pack(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [b"\xff", b"\x02abc", b"\x01abc\x00\xff", b"\x50"])
def test_bytes_that_are_no_key_are_refused(bad: bytes) -> None:
    with pytest.raises(InvalidInput):
        keys.unpack(bad)


@pytest.mark.parametrize("bad", ["", "a\x00b", "x" * 513, "x" * 10_000_000, 5, None, b"bytes", "\ud800"])
def test_a_name_that_cannot_be_used_is_refused_with_a_sentence(bad: object) -> None:
    with pytest.raises(InvalidInput, match=r"A (scope|name)"):
        keys.name(bad, "scope")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "good", ["a/b", "..", "../../etc/passwd", "*", "[a-z]?", "'; DROP TABLE x; --", "%_", "é😀", " ", "\n"]
)
def test_a_name_may_contain_what_means_something_elsewhere(good: str) -> None:
    assert keys.name(good, "scope") == good
