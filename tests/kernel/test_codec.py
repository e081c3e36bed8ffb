"""Values come back equal and of the same type, or the error says where the trouble is."""

import contextlib
import dataclasses
import enum
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Damaged, InvalidInput, NotStorable, UnknownType
from tenuto.kernel import codec

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
zones = st.sampled_from(
    [None, UTC, timezone(timedelta(hours=-5, minutes=-30)), ZoneInfo("Europe/Paris"), ZoneInfo("UTC")]
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | text
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=st.sampled_from([None, UTC]))
    | st.timedeltas()
)
hashable = st.recursive(plain, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """The value with every type spelled out, so that 1, True, 1.0 and (1,), [1] differ."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return kind, [shape(v) for v in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(shape(v)) for v in value)
    if isinstance(value, datetime | time):
        return kind, value.isoformat(), value.fold, repr(value.tzinfo)
    return kind, repr(value)


@given(values)
def test_every_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = codec.decode(codec.encode(value))

    assert back == value
    assert shape(back) == shape(value)


@given(st.sets(hashable, max_size=6))
def test_equal_sets_have_equal_bytes(value: set[Any]) -> None:
    assert codec.encode(value) == codec.encode({*sorted(value, key=repr)})


@given(st.binary(max_size=60))
def test_random_bytes_are_decoded_or_refused_and_run_nothing(data: bytes) -> None:
    with contextlib.suppress(Damaged, UnknownType):
        codec.decode(b"\x01" + data)


@given(values, st.data())
def test_a_cut_value_is_decoded_or_refused_and_never_crashes(value: Any, data: Any) -> None:
    whole = codec.encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with contextlib.suppress(Damaged, UnknownType):
        codec.decode(whole[:cut])


class Opaque:
    def __repr__(self) -> str:
        return "opaque"


class Zone(tzinfo):
    def utcoffset(self, when: Any) -> timedelta:
        return timedelta(0)

    def dst(self, when: Any) -> timedelta:
        return timedelta(0)

    def tzname(self, when: Any) -> str:
        return "odd"


def cyclic() -> list[Any]:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    return loop


def deep(levels: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"messages": [1, 2, 3, {"meta": {"when": Opaque()}}]}, "messages[3].meta.when"),
        ({"a": [float("nan")]}, "a[0]"),
        ({"a": {"b c": -float("nan")}}, "a['b c']"),
        ({"n": 2**64}, "n"),
        ({"n": -(2**63) - 1}, "n"),
        ({"n": 10**400}, "n"),
        ({"s": "\ud800"}, "s"),
        ({"\udfff": 1}, "['\\udfff'] (the key)"),
        (cyclic(), "[1].again"),
        ({1: {2: Opaque()}}, "[1][2]"),
        ([(1, {"x": Opaque()})], "[0][1].x"),
        ({"t": datetime(2026, 1, 1, tzinfo=Zone())}, "t"),
        (OrderedDict(a=1), ""),
        (Opaque(), ""),
        (lambda: 1, ""),
        (range(3), ""),
        (1j, ""),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_what_cannot_be_stored_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(NotStorable) as error:
        codec.encode(value)

    assert error.value.path == path
    assert (path or "the value") in str(error.value)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,), lambda v: {1: v}])
def test_endless_nesting_is_refused_and_reasonable_nesting_is_not(wrap: Any) -> None:
    assert codec.decode(codec.encode(deep(60, wrap))) == deep(60, wrap)
    with pytest.raises(NotStorable, match="nested deeper"):
        codec.encode(deep(5000, wrap))


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xc0", b"\x02\xc0", b"\x01", b"\x01\xc1", b"\x01\xdd\xff\xff\xff\xff", b"\x01\xd4\x63x"]
)
def test_a_malformed_record_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        codec.decode(data)


def test_infinities_and_signed_zero_are_numbers() -> None:
    back = codec.decode(codec.encode([math.inf, -math.inf, -0.0]))
    assert back[:2] == [math.inf, -math.inf]
    assert math.copysign(1, back[2]) == -1


@dataclasses.dataclass
class Invoice:
    number: int
    lines: tuple[str, ...]
    due: date | None = None


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return self.x

    def __repr__(self) -> str:
        return f"Point({self.x})"


class Struct:
    __struct_fields__ = ("a",)

    def __init__(self, a: int) -> None:
        self.a = a


class Model:
    def __init__(self, a: int) -> None:
        self.a = a

    def model_dump(self) -> dict[str, int]:
        return {"a": self.a}

    @classmethod
    def model_validate(cls, data: dict[str, int]) -> "Model":
        return cls(**data)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_by_type", {})
    monkeypatch.setattr(codec, "_by_name", {})


@pytest.mark.usefixtures("registry")
def test_registered_application_types_come_back_as_themselves() -> None:
    for cls in (Invoice, Colour, Level, Struct, Model):
        codec.register(cls)
    codec.register(Point, name="point", encode=lambda p: p.x, decode=Point)
    value = {"i": Invoice(7, ("a", "b"), date(2026, 1, 2)), "c": [Colour.RED, Level.HIGH], "p": {Point(3)}}

    back = codec.decode(codec.encode(value))

    assert back == value
    assert shape(back) == shape(value)
    assert codec.decode(codec.encode(Struct(5))).a == 5
    assert codec.decode(codec.encode(Model(6))).a == 6


@pytest.mark.usefixtures("registry")
def test_a_type_that_is_not_registered_here_is_an_error_and_never_imported() -> None:
    codec.register(Invoice)
    data = codec.encode([Invoice(1, ())])
    codec._by_name.clear()

    with pytest.raises(UnknownType, match="'Invoice'"):
        codec.decode(data)


@pytest.mark.usefixtures("registry")
def test_a_type_that_can_no_longer_be_rebuilt_is_not_called_damage() -> None:
    codec.register(Invoice, name="thing", encode=lambda i: [i.number], decode=lambda data: Invoice(*data, ()))
    data = codec.encode(Invoice(1, ()))
    codec.register(Invoice, name="thing", encode=lambda i: i.number, decode=lambda data: Invoice(data["number"], ()))

    with pytest.raises(UnknownType, match="older versions"):
        codec.decode(data)


@pytest.mark.usefixtures("registry")
def test_bad_registrations_are_refused() -> None:
    codec.register(Invoice, name="thing")
    with pytest.raises(InvalidInput, match="thing"):
        codec.register(Colour, name="thing")
    with pytest.raises(InvalidInput, match="both"):
        codec.register(Point, encode=lambda p: p.x)
    with pytest.raises(InvalidInput, match="encode and decode"):
        codec.register(Opaque)
    codec.register(Invoice, name="thing")  # again, as a reloaded module does


def test_known_stored_forms_are_still_read() -> None:
    """What was written once is read for ever: these bytes are of format 1."""
    stored = {
        b"\x01\x82\xa1a\x01\xa1b\xc4\x01x": {"a": 1, "b": b"x"},
        b"\x01\xc7\x03\x01\x92\x01\x02": (1, 2),
        b"\x01\xd6\x041.10": Decimal("1.10"),
        b"\x01\xd8\x05" + bytes(15) + b"\x05": UUID(int=5),
        b"\x01\xc7\x05\x0a\x91\x92\x01\xa1x": {1: "x"},
    }
    for data, value in stored.items():
        assert codec.decode(data) == value
        assert codec.encode(value) == data
