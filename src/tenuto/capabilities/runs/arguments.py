"""What a step was called with: a digest that says whether it is the same call, and as much as is worth keeping.

Arguments up to 4 KB are kept whole, larger ones as their size and how they begin, so that a loop which passes a
growing conversation stores what is new and no more. A secret goes into the digest, under a key of the run's own,
and nowhere else.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import reprlib
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tenuto.capabilities.differences import compare
from tenuto.capabilities.messages import plain
from tenuto.errors import NotStorable
from tenuto.kernel import codec

WHOLE: Final = 4_096
"""Arguments of so many bytes are kept as they are."""
_PREVIEW: Final = 200
_SHOWN: Final = 120
_DIFFERENCES: Final = 8
T = TypeVar("T")
_short: Final = reprlib.Repr()  # whose work does not grow with what it shows
_short.maxlevel, _short.maxlist, _short.maxdict, _short.maxtuple, _short.maxstring, _short.maxother = 4, 4, 6, 4, 80, 80


class Secret(Generic[T]):
    """A value that a step is given and that is stored nowhere; only a keyed digest of it is."""

    __slots__ = ("value",)
    made = False
    """Whether this process has ever made one: arguments are searched only then."""

    def __init__(self, value: T) -> None:
        Secret.made = True
        self.value = value

    def __repr__(self) -> str:
        """Say that there is one, and no more."""
        return "secret(…)"


def secret(value: T) -> Secret[T]:
    """Mark an argument of a step as secret: the function is given the value itself, and only a digest is stored."""
    return Secret(value)


class Described(NamedTuple):
    """The arguments of a call, as they are kept: whole, or as their size and how they begin."""

    digest: bytes
    whole: Any = None
    size: int = 0
    preview: str | None = None


def digest_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes | None:
    """Return the digest that `describe` gives to ordinary arguments of an ordinary function; None for any other."""
    if type(fn) is functools.partial:
        return None
    try:
        return codec.digest(codec.pack(list(args)))
    except NotStorable:
        return None


def describe(fn: Callable[..., Any], args: tuple[Any, ...], salt: bytes) -> Described:
    """Return what is kept of a call's arguments, what a `functools.partial` has bound among them."""
    given: list[Any] = list(args)
    while isinstance(fn, functools.partial):
        given.append({"bound": list(fn.args), "by name": dict(sorted(fn.keywords.items()))})
        fn = fn.func
    try:
        packed = codec.pack(given)
    except NotStorable:
        given = _veiled(given, salt, "args")
        packed = codec.pack(given)
    if len(packed) <= WHOLE:
        return Described(codec.digest(packed), given)
    return Described(codec.digest(packed), None, len(packed), _short.repr(given)[:_PREVIEW])


def _veiled(value: Any, salt: bytes, path: str) -> Any:
    """Return a value in which each secret is its keyed digest, and each object the dict that it gives."""
    kind = type(value)
    if kind is Secret:
        hidden = codec.pack(_veiled(value.value, salt, path))
        return {"secret": hmac.new(salt, hidden, hashlib.sha256).hexdigest()}
    if kind is list or kind is tuple:
        return kind(_veiled(inner, salt, f"{path}[{at}]") for at, inner in enumerate(value))
    if kind is dict:
        return {key: _veiled(inner, salt, f"{path}[{key!r}]") for key, inner in value.items()}
    try:
        return plain(value, path)
    except NotStorable as error:
        raise NotStorable(
            f"{error} The step was not run: give it key=, which then stands for its arguments.", error.path
        ) from error


def revealed_call(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose bound arguments, if it is a `functools.partial`, hide nothing any more."""
    if not Secret.made or type(fn) is not functools.partial:
        return fn
    return functools.partial(revealed_call(fn.func), *revealed(fn.args), **revealed(fn.keywords))


def revealed(value: Any) -> Any:
    """Return a value with each secret in it replaced by what it hides; what holds none stays the same object."""
    return _revealed(value) if Secret.made else value


def _revealed(value: Any) -> Any:
    kind = type(value)
    if kind is Secret:
        return value.value
    if kind is list or kind is tuple:
        shown = [_revealed(inner) for inner in value]
        return value if all(a is b for a, b in zip(shown, value, strict=True)) else kind(shown)
    if kind is dict:
        seen = {key: _revealed(inner) for key, inner in value.items()}
        return value if all(seen[key] is value[key] for key in value) else seen
    return value


def difference(old: Described, new: Described) -> str:
    """Say how two calls differ, for people to read."""
    if old.whole is None or new.whole is None:
        return f"recorded: {_told(old)}; now: {_told(new)}"
    found = compare(old.whole, new.whole)
    lines = [
        f"argument {_path(one.path)}: {one.old!r:.{_SHOWN}} became {one.new!r:.{_SHOWN}}"
        if one.kind == "changed"
        else f"argument {_path(one.path)}: {(one.old if one.kind == 'removed' else one.new)!r:.{_SHOWN}} was {one.kind}"
        for one in found[:_DIFFERENCES]
    ]
    if len(found) > _DIFFERENCES:
        lines.append(f"and {len(found) - _DIFFERENCES} more")
    return "; ".join(lines)


def _told(one: Described) -> str:
    if one.whole is not None:
        return f"{one.whole!r:.{_SHOWN}}"
    return f"{one.size:,} bytes that begin {one.preview!s:.{_SHOWN}}"


def _path(path: tuple[str | int, ...]) -> str:
    first, *rest = path or ("",)
    place = int(first) + 1 if isinstance(first, int) else first
    return f"{place}" + "".join(f"[{step!r}]" for step in rest)
