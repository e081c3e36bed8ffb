"""Encode values to bytes and decode them, in one closed format: MessagePack with a few extension types.

Plain data (`dict list str int float bool None bytes`) and `tuple set frozenset Decimal UUID datetime
date time timedelta` round-trip with equal value and type; so do application types passed to `register`.
Any other type raises `NotStorable` with its path. No type is converted silently to another one, except
`bytearray` and `memoryview` to `bytes`. Decoding imports nothing and calls only functions that the
program registered.

Every stored value begins with a format byte. Readers accept every format ever written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import ormsgpack

from tenuto.errors import Damaged, InvalidInput, NotStorable, TenutoError, UnknownType
from tenuto.kernel.packing_errors import is_passing, noted, of_other_format, raised
from tenuto.kernel.unregistered import Unregistered, unregistered

FORMAT: Final = 1
_PREFIX: Final = bytes([FORMAT])
MAX_DEPTH: Final = 250
"""Maximum nesting of lists and dicts; the encoder's own limit is 255."""
MAX_WRAPPED: Final = 64
"""Maximum nesting of extension types (a tuple in a tuple): each level uses Python's stack."""

_TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA, _PAIRS, _HELD = range(1, 12)
_MARK: Final = bytes([_HELD])  # precedes each reference to a blob; without this byte a value has none
_REGISTERED: Final = 32
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

T = TypeVar("T")


def digest(*parts: bytes) -> bytes:
    """Return the 16-byte digest of the content: truncated BLAKE2b, which is fast on every processor."""
    return hashlib.blake2b(b"".join(parts)).digest()[:16]


def encode(value: Any) -> bytes:
    """Encode a value, or raise `NotStorable` naming the path of the part that cannot be stored."""
    try:  # `pack` inlined: every commit runs this
        body = ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except TypeError as error:
        return _PREFIX + _pack_again(value, error)
    if body.find(_FLOAT) >= 0 and _may_hold_nan(body):
        body = _pack_walked(value)
    return _PREFIX + body


def encode_plain(value: Any) -> bytes:
    """Encode lists, text, bytes and finite numbers without validation; tuples become lists."""
    return _PREFIX + ormsgpack.packb(value)


def pack(value: Any) -> bytes:
    """Encode a value without the format byte."""
    try:
        body = ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except TypeError as error:
        return _pack_again(value, error)
    if body.find(_FLOAT) >= 0 and _may_hold_nan(body):
        return _pack_walked(value)
    return body


def fast_pack(value: Any) -> bytes:
    """Return bytes to compare two values by. Never store them: NaN is not rejected."""
    try:
        return ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except TypeError as error:
        return _pack_again(value, error)


def _may_hold_nan(body: bytes) -> bool:
    """Return whether the encoding may contain NaN, which the encoder accepts: 0xcb starts a float, 0x7f or 0xff a NaN."""
    at = body.find(_FLOAT)
    for _ in range(16):  # searching for one byte is much faster than for two
        if at < 0:
            return False
        if body[at + 1 : at + 2] in _NAN:
            return True
        at = body.find(_FLOAT, at + 1)
    return at >= 0 and (body.find(b"\xcb\x7f", at) >= 0 or body.find(b"\xcb\xff", at) >= 0)


_FLOAT: Final = b"\xcb"
_NAN: Final = (b"\x7f", b"\xff")


def unpack_plain(body: bytes) -> Any:
    """Decode to plain data; extension types stay encoded, and encode again to the same bytes."""
    try:
        return ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext)
    except (ValueError, TypeError) as error:
        raise _undecodable(error) from None


def decode(data: bytes, find: Find | None = None) -> Any:
    """Decode a stored value, or raise `Damaged` or `UnknownType`.

    `find` loads each large part that is stored separately; without it, the `Held` reference is returned in its place.
    """
    if not data or data[0] != FORMAT:
        raise of_other_format(data)
    try:  # `unpack` inlined: every read runs this
        return ormsgpack.unpackb(data[1:], ext_hook=_LIFT[0] if find is None or _MARK not in data else _finder(find))
    except (ValueError, TypeError) as error:
        raise _undecodable(error) from None


def unpack(body: bytes, find: Find | None = None) -> Any:
    """Decode a value that was encoded without the format byte."""
    try:
        return ormsgpack.unpackb(body, ext_hook=_LIFT[0] if find is None else _finder(find))
    except (ValueError, TypeError) as error:
        raise _undecodable(error) from None


class Held(NamedTuple):
    """A reference to a large text or bytes that is stored separately."""

    digest: bytes
    size: int
    text: bool


Find = Callable[[Held], "str | bytes"]
"""Return the content that a `Held` refers to."""


def held(digest: bytes, size: int, *, text: bool) -> bytes:
    """Return the encoding of a reference to separately stored content."""
    return ormsgpack.packb(stand_in(Held(digest, size, text)))


def stand_in(part: Held) -> ormsgpack.Ext:
    """Return the reference to put into a value in place of separately stored content."""
    return ormsgpack.Ext(_HELD, ormsgpack.packb(list(part)))


def held_in(body: bytes) -> set[bytes]:
    """Return the digests of all references in an encoding, without decoding the values."""
    found: set[bytes] = set()

    @noted
    def note(code: int, data: bytes) -> None:
        if code == _HELD:
            found.add(Held(*ormsgpack.unpackb(data)).digest)

    try:
        ormsgpack.unpackb(body, ext_hook=note)
    except (ValueError, TypeError) as error:
        raise _undecodable(error) from None
    return found


def _finder(find: Find) -> Callable[[int, bytes], Any]:
    @noted
    def lift(code: int, data: bytes) -> Any:
        return find(Held(*ormsgpack.unpackb(data))) if code == _HELD else _LIFT[0](code, data)

    return lift


def _undecodable(error: Exception) -> BaseException:
    cause = raised(error)
    if isinstance(cause, TenutoError) or is_passing(cause):
        return cause
    return Damaged(f"A stored value cannot be decoded ({cause}). Restore it from a backup.")


# -- application types -------------------------------------------------------------------------


class _Registration(NamedTuple):
    name: str
    cls: type
    lower: Callable[[Any], Any]
    lift: Callable[[Any], Any]


_by_type: dict[type, _Registration] = {}
_by_name: dict[str, _Registration] = {}


def register(
    cls: type[T],
    *,
    name: str | None = None,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]:
    """Register `cls` so that its instances can be stored and are decoded as `cls`. Return `cls`, for use as a decorator.

    Dataclasses, enums, exceptions, msgspec structs and pydantic models need no more. For other classes pass
    `encode`, which returns plain data, and `decode`, which accepts it. `name` is stored instead of an import
    path: do not change it when the class is renamed or moved.
    """
    label = name or cls.__name__
    known = _by_name.get(label)
    if known is not None and known.cls is not cls and known.cls.__qualname__ != cls.__qualname__:
        raise InvalidInput(
            f"The name {label!r} is already registered for {known.cls.__qualname__}. Give {cls.__qualname__} another name."
        )
    if (encode is None) != (decode is None):
        raise InvalidInput("Pass both encode and decode, or neither.")
    if encode is not None and decode is not None:
        lower, lift = encode, decode
    else:
        lower, lift = _conversions(cls)
    entry = _Registration(label, cls, lower, lift)
    _by_name[label] = entry
    _by_type[cls] = entry
    return cls


def is_registered(cls: type) -> bool:
    """Return whether instances of a class can be stored and decoded as that class."""
    return cls in _by_type


def registered() -> list[type[Any]]:
    """Return every registered class."""
    return list(_by_type)


def _conversions(cls: type[Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        return lambda value: {n: getattr(value, n) for n in names}, lambda data: cls(**data)
    if issubclass(cls, Enum):
        return lambda value: value.value, cls
    if issubclass(cls, BaseException):
        return lambda value: list(value.args), lambda data: cls(*data)
    if hasattr(cls, "__struct_fields__"):
        fields = cls.__struct_fields__
        return lambda value: {n: getattr(value, n) for n in fields}, lambda data: cls(**data)
    if hasattr(cls, "model_dump") and hasattr(cls, "model_validate"):
        return lambda value: value.model_dump(), cls.model_validate
    raise InvalidInput(
        f"{cls.__qualname__} is neither a dataclass, an enum, a msgspec struct nor a pydantic model. "
        "Pass encode and decode."
    )


# -- encoding: called by the encoder for everything that is not plain data ------------------------


def _lowerer(depth: int) -> Callable[[Any], ormsgpack.Ext]:
    """Return the encoder hook for one level of nesting; the level limits how deep values may nest."""

    @noted
    def lower(value: Any) -> ormsgpack.Ext:
        if depth >= MAX_WRAPPED:
            raise TypeError("nested too deep")

        def pack(inner: Any) -> bytes:
            try:
                return ormsgpack.packb(inner, default=_LOWER[depth + 1], option=_OPTIONS)
            except TypeError as error:
                raise raised(error) from None

        lowered = _lower(value, pack)
        if lowered is None:
            raise TypeError(f"{type(value).__name__} has no stored form")
        return lowered

    return lower


_LOWER: Final = [_lowerer(depth) for depth in range(MAX_WRAPPED + 1)]


def _lower(value: Any, pack: Callable[[Any], bytes]) -> ormsgpack.Ext | None:  # noqa: C901, PLR0911 - one branch a type
    kind = type(value)
    if kind is tuple:
        return ormsgpack.Ext(_TUPLE, pack(list(value)))
    if kind is set or kind is frozenset:
        # Sets have no order: sort the encoded members so that equal sets get equal bytes.
        members = sorted(pack(member) for member in value)
        return ormsgpack.Ext(_SET if kind is set else _FROZENSET, _array(members))
    if kind is datetime:
        return ormsgpack.Ext(_DATETIME, pack(_lower_datetime(value)))
    if kind is date:
        return ormsgpack.Ext(_DATE, value.isoformat().encode())
    if kind is time:
        _zone_name(value.tzinfo)
        return ormsgpack.Ext(_TIME, pack([value.isoformat(), value.fold, _zone_name(value.tzinfo)]))
    if kind is timedelta:
        return ormsgpack.Ext(_TIMEDELTA, pack([value.days, value.seconds, value.microseconds]))
    if kind is Decimal:
        return ormsgpack.Ext(_DECIMAL, str(value).encode())
    if kind is UUID:
        return ormsgpack.Ext(_UUID, value.bytes)
    known = _by_type.get(kind)
    if known is not None:
        return ormsgpack.Ext(_REGISTERED, pack([known.name, known.lower(value)]))
    if kind is Unregistered:
        return ormsgpack.Ext(_REGISTERED, pack([value.name, value.data]))
    return None


def _array(members: list[bytes]) -> bytes:
    count = len(members)
    if count < 16:
        head = bytes([0x90 | count])
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(members)


def _lower_datetime(value: datetime) -> list[Any]:
    return [value.isoformat(), value.fold, _zone_name(value.tzinfo)]


def _zone_name(zone: Any) -> str | None:
    if zone is None or type(zone) is timezone:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise TypeError(f"the time zone {zone!r} is neither datetime.timezone nor a named zoneinfo.ZoneInfo")


# -- decoding: called by the decoder for extension types -------------------------------------------


def _lifter(depth: int) -> Callable[[int, bytes], Any]:
    """Return the decoder hook for one level of nesting, like `_lowerer`."""

    def unpack(inner: bytes) -> Any:
        try:
            return ormsgpack.unpackb(inner, ext_hook=_LIFT[depth + 1])
        except (ValueError, TypeError) as error:
            raise _undecodable(error) from None

    return noted(functools.partial(_raise_up if depth < MAX_WRAPPED else _refuse, unpack))


def _refuse(*_: Any) -> Any:
    raise ValueError("nested too deep")


def _raise_up(unpack: Callable[[bytes], Any], code: int, data: bytes) -> Any:  # noqa: C901, PLR0911, PLR0912 - one branch a type
    if code == _TUPLE:
        return tuple(unpack(data))
    if code == _SET:
        return set(unpack(data))
    if code == _FROZENSET:
        return frozenset(unpack(data))
    if code == _DECIMAL:
        return Decimal(data.decode())
    if code == _UUID:
        return UUID(bytes=bytes(data))
    if code == _DATETIME:
        text, fold, zone = unpack(data)
        moment = datetime.fromisoformat(text)
        return moment.replace(fold=fold, tzinfo=_zone(zone) if zone else moment.tzinfo)
    if code == _DATE:
        return date.fromisoformat(data.decode())
    if code == _TIME:
        text, fold, zone = unpack(data)
        at = time.fromisoformat(text)
        return at.replace(fold=fold, tzinfo=_zone(zone) if zone else at.tzinfo)
    if code == _TIMEDELTA:
        days, seconds, micros = unpack(data)
        return timedelta(days, seconds, micros)
    if code == _PAIRS:
        return dict(unpack(data))
    if code == _HELD:
        return Held(*unpack(data))
    if code == _REGISTERED:
        name, lowered = unpack(data)
        known = _by_name.get(name)
        if known is None:
            return unregistered(name, lowered)
        try:
            return known.lift(lowered)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise UnknownType(
                f"A stored {name!r} cannot be decoded as {known.cls.__qualname__} ({error}). "
                "Make its decode accept data that older versions of the program stored."
            ) from error
    raise ValueError(f"extension type {code} is unknown")


_LIFT: Final = [_lifter(depth) for depth in range(MAX_WRAPPED + 1)]


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError:
        raise UnknownType(
            f"A stored time is in the zone {key!r}, which is unknown on this machine. Install tzdata."
        ) from None


# -- the slow path: walks the value to find the path of what cannot be stored -----------------------


def _pack_again(value: Any, error: TypeError) -> bytes:
    """Encode what the fast path rejected (such as a dict with non-text keys), or raise `NotStorable` with the path."""
    cause = raised(error)
    if is_passing(cause):
        raise cause from None
    return _pack_walked(value)


def _pack_walked(value: Any) -> bytes:
    return ormsgpack.packb(_walk(value, "", 0, []), option=_OPTIONS)


def _walk(value: Any, path: str, wrapped: int, above: list[int]) -> Any:  # noqa: C901, PLR0912 - one branch a type
    kind = type(value)
    where = path or "the value"
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotStorable(f"{where} contains a lone surrogate, which is not text. Store bytes.", path) from None
        return value
    if kind is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise NotStorable(f"{where} is an int of more than 64 bits. Store a Decimal or a str.", path)
        return value
    if kind is float:
        if math.isnan(value):
            raise NotStorable(f"{where} is NaN, which never equals itself. Store None instead.", path)
        return value
    if value is None or kind in (bool, bytes, bytearray, memoryview, ormsgpack.Ext):
        return value
    if id(value) in above:
        raise NotStorable(f"{where} contains itself. Store a copy without the cycle.", path)
    if len(above) >= MAX_DEPTH or wrapped >= MAX_WRAPPED:
        raise NotStorable(
            f"The value is nested deeper than {MAX_DEPTH} levels, or {MAX_WRAPPED} of tuples, sets and "
            f"application types, at {path:.80}…. Flatten it.",
            path,
        )
    above.append(id(value))
    try:
        if kind is list:
            return [_walk(v, f"{path}[{i}]", wrapped, above) for i, v in enumerate(value)]
        if kind is dict:
            return _walk_dict(value, path, wrapped, above)

        def pack(inner: Any) -> bytes:
            return ormsgpack.packb(_walk(inner, path, wrapped + 1, above), option=_OPTIONS)

        try:
            lowered = _lower(value, pack)
        except NotStorable:
            raise
        except (TypeError, AttributeError) as error:
            raise NotStorable(f"{where} cannot be stored: {error}.", path) from error
        if lowered is None:
            raise NotStorable(
                f"{where} is of type {kind.__module__}.{kind.__qualname__}, which cannot be stored. "
                "Register it with tenuto.register, or store plain data.",
                path,
            )
        return lowered
    finally:
        above.pop()


def _walk_dict(value: dict[Any, Any], path: str, wrapped: int, above: list[int]) -> Any:
    pairs = []
    for key, inner in value.items():
        step = f".{key}" if type(key) is str and key.isidentifier() else f"[{key!r:.80}]"
        here = (path + step).removeprefix(".")
        pairs.append([_walk(key, f"{here} (the key)", wrapped, above), _walk(inner, here, wrapped, above)])
    if all(type(key) is str for key in value):
        return dict(pairs)
    return ormsgpack.Ext(_PAIRS, ormsgpack.packb(pairs, option=_OPTIONS))
