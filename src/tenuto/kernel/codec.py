"""Values to bytes and back, in one closed format: MessagePack with a few extension types.

Plain data (`dict list str int float bool None bytes`) and `tuple set frozenset Decimal UUID datetime
date time timedelta` come back equal and of the same type; so do application types that were given to
`register`. Anything else is `NotStorable`, an error that names its path. Nothing is ever lowered to a
neighbouring type without being asked (`bytearray` and `memoryview`, which are bytes, excepted), and
reading imports nothing and calls nothing but what the program itself registered.

Every stored value begins with a format byte. Readers accept every format ever written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import threading
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import ormsgpack

from tenuto.errors import Damaged, InvalidInput, NotStorable, TenutoError, UnknownType

FORMAT: Final = 1
_PREFIX: Final = bytes([FORMAT])
MAX_DEPTH: Final = 250
"""How deep lists and dicts may nest; the encoder itself ends at 255."""
MAX_WRAPPED: Final = 64
"""How deep extension types (a tuple in a tuple) may nest: each level takes Python's own stack."""

_TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA, _PAIRS, _HELD = range(1, 12)
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
    """Return the 16 bytes by which content is recognised: SHA-256, cut short."""
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def encode(value: Any) -> bytes:
    """Return the stored form of a value, or raise `NotStorable` naming the part that has none."""
    try:  # `pack`, written out as far as most values go: this is on every commit's path
        body = ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except (TypeError, RecursionError):
        return _PREFIX + _pack_walked(value)
    if body.find(_FLOAT) >= 0 and _may_hold_nan(body):
        body = _pack_walked(value)
    return _PREFIX + body


def encode_plain(value: Any) -> bytes:
    """Return the stored form of lists, text, bytes and finite numbers; tuples become lists. Nothing is looked at twice."""
    return _PREFIX + ormsgpack.packb(value)


def pack(value: Any) -> bytes:
    """Return a value as one piece of a stored form, without the format byte before it."""
    try:
        body = ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except (TypeError, RecursionError):
        # Rare or wrong: the walk either finds a form for what the fast path has none for
        # (dicts with keys other than text), or says where the trouble is.
        return _pack_walked(value)
    return _pack_walked(value) if _may_hold_nan(body) else body


def fast_pack(value: Any) -> bytes:
    """Return bytes by which two values are told apart, not to be stored: what `pack` refuses may be in them."""
    try:
        return ormsgpack.packb(value, default=_LOWER[0], option=_OPTIONS)
    except (TypeError, RecursionError):
        return _pack_walked(value)


def _may_hold_nan(body: bytes) -> bool:
    """Suspect NaN, which goes through the encoder unseen: 0xcb begins a float, and these two bytes end its search."""
    at = body.find(_FLOAT)
    for _ in range(16):  # one byte is searched for much faster than two
        if at < 0:
            return False
        if body[at + 1 : at + 2] in _NAN:
            return True
        at = body.find(_FLOAT, at + 1)
    return at >= 0 and (body.find(b"\xcb\x7f", at) >= 0 or body.find(b"\xcb\xff", at) >= 0)


_FLOAT: Final = b"\xcb"
_NAN: Final = (b"\x7f", b"\xff")


def unpack_plain(body: bytes) -> Any:
    """Return a piece of a stored form as plain data; everything else in it stays packed, and packs again as it was."""
    try:
        return ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext)
    except (ValueError, TypeError, RecursionError) as error:
        raise _undecodable(error) from error


def decode(data: bytes, find: Find | None = None) -> Any:
    """Return the value of a stored form, or raise `Damaged` or `UnknownType`.

    What is held apart in it is looked for by `find`; without one, the `Held` itself stands in its place.
    """
    if not data or data[0] != FORMAT:
        seen = data[0] if data else "none"
        raise Damaged(
            f"A stored value has format {seen}, which this version of tenuto does not know. "
            "If a newer version wrote it, upgrade; else restore it from a backup."
        )
    try:  # `unpack`, written out: this is on every read's path
        return ormsgpack.unpackb(data[1:], ext_hook=_lift if find is None else _finder(find))
    except (ValueError, TypeError, RecursionError) as error:
        raise _undecodable(error) from error


def unpack(body: bytes, find: Find | None = None) -> Any:
    """Return the value of a piece of a stored form, one without the format byte."""
    hook = _lift if find is None else _finder(find)
    try:
        return ormsgpack.unpackb(body, ext_hook=hook)
    except (ValueError, TypeError, RecursionError) as error:
        raise _undecodable(error) from error


class Held(NamedTuple):
    """What stands in a stored form for a large text or bytes that is held apart."""

    digest: bytes
    size: int
    text: bool


Find = Callable[[Held], "str | bytes"]
"""Returns what a `Held` stands for."""


def held(digest: bytes, size: int, *, text: bool) -> bytes:
    """Return the piece of a stored form that stands for something held apart."""
    return ormsgpack.packb(stand_in(Held(digest, size, text)))


def stand_in(part: Held) -> ormsgpack.Ext:
    """Return what to put into a value in place of something held apart."""
    return ormsgpack.Ext(_HELD, ormsgpack.packb(list(part)))


def held_in(body: bytes) -> set[bytes]:
    """Return the digests of what is held apart in a piece of a stored form; nothing of it is made."""
    found: set[bytes] = set()

    def note(code: int, data: bytes) -> None:
        if code == _HELD:
            found.add(Held(*ormsgpack.unpackb(data)).digest)

    try:
        ormsgpack.unpackb(body, ext_hook=note)
    except (ValueError, TypeError, RecursionError) as error:
        raise _undecodable(error) from error
    return found


def _finder(find: Find) -> Callable[[int, bytes], Any]:
    def lift(code: int, data: bytes) -> Any:
        if code != _HELD:
            return _lift(code, data)
        try:
            return find(Held(*ormsgpack.unpackb(data)))
        except Exception as error:
            _failed.error = error
            raise

    return lift


def _undecodable(error: Exception) -> TenutoError:
    # The decoder keeps the hook's error to itself; the hook has left it here.
    cause = getattr(_failed, "error", None) or error
    _failed.error = None
    if isinstance(cause, TenutoError):
        return cause
    return Damaged(f"A stored value cannot be decoded ({cause}); restore it from a backup.")


_failed = threading.local()


def _lift(code: int, data: bytes) -> Any:
    try:
        return _raise_up(code, data)
    except Exception as error:
        _failed.error = error
        raise


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
    """Let instances of `cls` be stored and come back as `cls`; returns `cls`, so it decorates too.

    Dataclasses, enums, exceptions, msgspec structs and pydantic models need nothing more. Others give `encode`,
    which returns plain data, and `decode`, which takes it. `name` is what is stored, never an import
    path: keep it when the class is renamed or moved.
    """
    label = name or cls.__name__
    known = _by_name.get(label)
    if known is not None and known.cls is not cls and known.cls.__qualname__ != cls.__qualname__:
        raise InvalidInput(
            f"The name {label!r} is registered for {known.cls.__qualname__}; give {cls.__qualname__} another."
        )
    if (encode is None) != (decode is None):
        raise InvalidInput("Give both encode and decode, or neither.")
    if encode is not None and decode is not None:
        lower, lift = encode, decode
    else:
        lower, lift = _conversions(cls)
    entry = _Registration(label, cls, lower, lift)
    _by_name[label] = entry
    _by_type[cls] = entry
    return cls


def is_registered(cls: type) -> bool:
    """Tell whether instances of a class come back as what they are."""
    return cls in _by_type


def registered() -> list[type[Any]]:
    """Return every class whose instances come back as what they are."""
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
        f"{cls.__qualname__} is neither a dataclass, an enum, a msgspec struct nor a pydantic model; "
        "give encode and decode."
    )


# -- lowering: what the encoder asks about everything that is not plain data ---------------------


def _lowerer(depth: int) -> Callable[[Any], ormsgpack.Ext]:
    """Return the hook for one level of nesting, so that no value can nest without end."""

    def lower(value: Any) -> ormsgpack.Ext:
        if depth >= MAX_WRAPPED:
            raise TypeError("nested too deep")

        def pack(inner: Any) -> bytes:
            return ormsgpack.packb(inner, default=_LOWER[depth + 1], option=_OPTIONS)

        lowered = _lower(value, pack)
        if lowered is None:
            raise TypeError(f"{type(value).__name__} has no stored form")
        return lowered

    return lower


_LOWER: Final = [_lowerer(depth) for depth in range(MAX_WRAPPED + 1)]


def _lower(value: Any, pack: Callable[[Any], bytes]) -> ormsgpack.Ext | None:  # noqa: PLR0911 - one branch a type
    kind = type(value)
    if kind is tuple:
        return ormsgpack.Ext(_TUPLE, pack(list(value)))
    if kind is set or kind is frozenset:
        # Sets have no order: equal sets get equal bytes by sorting the encoded members.
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


# -- raising up: what the decoder asks about extension types --------------------------------------


def _raise_up(code: int, data: bytes) -> Any:  # noqa: C901, PLR0911, PLR0912 - one branch a type
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
            raise UnknownType(
                f"A stored value holds the application type {name!r}, which is not registered here. "
                "Call tenuto.register on its class before reading."
            )
        try:
            return known.lift(lowered)
        except Exception as error:
            raise UnknownType(
                f"A stored {name!r} cannot be made into {known.cls.__qualname__} ({error}). "
                "Let its decode accept what older versions of the program stored."
            ) from error
    raise ValueError(f"extension type {code} is unknown")


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError:
        raise UnknownType(
            f"A stored time is in the zone {key!r}, which this machine does not know; install tzdata."
        ) from None


# -- the walk: slower, finds the path of what is wrong --------------------------------------------


def _pack_walked(value: Any) -> bytes:
    return ormsgpack.packb(_walk(value, "", 0, []), option=_OPTIONS)


def _walk(value: Any, path: str, wrapped: int, above: list[int]) -> Any:  # noqa: C901, PLR0912 - one branch a type
    kind = type(value)
    where = path or "the value"
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotStorable(f"{where} holds a lone surrogate, which is not text; store bytes.", path) from None
        return value
    if kind is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise NotStorable(f"{where} is an int of more than 64 bits; store a Decimal or a str.", path)
        return value
    if kind is float:
        if math.isnan(value):
            raise NotStorable(f"{where} is NaN, which never equals itself; store None instead.", path)
        return value
    if value is None or kind in (bool, bytes, bytearray, memoryview, ormsgpack.Ext):
        return value
    if id(value) in above:
        raise NotStorable(f"{where} contains itself; store a copy without the loop.", path)
    if len(above) >= MAX_DEPTH or wrapped >= MAX_WRAPPED:
        raise NotStorable(
            f"The value is nested deeper than {MAX_DEPTH} levels, or {MAX_WRAPPED} of tuples, sets and "
            f"application types, at {path:.80}…; flatten it.",
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
                f"{where} is of type {kind.__module__}.{kind.__qualname__}, which has no stored form. "
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
