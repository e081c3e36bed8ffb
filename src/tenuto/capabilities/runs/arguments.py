"""The arguments of a step: their digest identifies the call; small ones are stored, large ones as a preview.

Arguments up to 4 KB are stored whole, larger ones as size and preview, so that a loop which passes a growing
conversation does not store it again each time. A secret is stored only as a digest, keyed with the run's salt.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from tenuto.capabilities._core.values import plain
from tenuto.capabilities.checkpoints import compare
from tenuto.errors import NotStorable
from tenuto.kernel import codec

WHOLE: Final = 4_096
"""The largest arguments stored whole, in bytes."""
_BY_NAME: Final = "by name"
_PREVIEW: Final = 200
_SHOWN: Final = 120
_DIFFERENCES: Final = 8
T = TypeVar("T")
_short: Final = reprlib.Repr()  # its cost does not grow with the size of the value
_short.maxlevel, _short.maxlist, _short.maxdict, _short.maxtuple, _short.maxstring, _short.maxother = 4, 4, 6, 4, 80, 80


class Secret(Generic[T]):
    """An argument of a step that is never stored; only a keyed digest of it is."""

    __slots__ = ("value",)
    made = False
    """Whether this process has created one: arguments are searched only then."""

    def __init__(self, value: T) -> None:
        Secret.made = True
        self.value = value

    def __repr__(self) -> str:
        """Hide the value."""
        return "secret(…)"


def secret(value: T) -> T:
    """Mark an argument of a step as secret: the function gets the value, the store only a keyed digest.

    Typed as the value itself, because that is what the function gets.
    """
    return cast("T", Secret(value))


class Described(NamedTuple):
    """The stored form of a call's arguments: digest, and the whole or size and preview."""

    digest: bytes
    whole: Any = None
    size: int = 0
    preview: str | None = None


def digest_of(fn: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> bytes | None:
    """Return the digest of plain arguments, as `describe` does but faster; None for a partial, secrets or objects."""
    if type(fn) is functools.partial:
        return None
    try:
        return codec.digest(codec.pack(_listed(args, named)))
    except NotStorable:
        return None


def _listed(args: tuple[Any, ...], named: Mapping[str, Any] | None) -> list[Any]:
    """Return the arguments in one list, whatever the order in which keywords are passed."""
    return [*args, {_BY_NAME: dict(sorted(named.items()))}] if named else list(args)


def describe(
    fn: Callable[..., Any], args: tuple[Any, ...], salt: bytes, named: Mapping[str, Any] | None = None
) -> Described:
    """Return the stored form of a call's arguments, with those that a `functools.partial` binds."""
    given = _listed(args, named)
    while isinstance(fn, functools.partial):
        given.append({"bound": list(fn.args), _BY_NAME: dict(sorted(fn.keywords.items()))})
        fn = fn.func
    try:
        packed = codec.pack(given)
    except NotStorable:
        given = _veiled(given, salt, "args")
        packed = codec.pack(given)
    if len(packed) <= WHOLE:
        return Described(codec.digest(packed), given)
    return Described(codec.digest(packed), None, len(packed), _short.repr(given)[:_PREVIEW])


def _veiled(value: Any, salt: bytes, path: str, depth: int = 0) -> Any:
    """Return a value with keyed digests in place of secrets, and dicts in place of objects."""
    kind = type(value)
    if depth > codec.MAX_DEPTH:
        raise NotStorable(
            f"{path:.80}… is nested deeper than {codec.MAX_DEPTH} levels, or contains itself. The step was not run. "
            "Flatten it, or pass key= to identify the step without its arguments.",
            path,
        )
    if kind is Secret:
        hidden = codec.pack(_veiled(value.value, salt, path, depth + 1))
        return {"secret": hmac.new(salt, hidden, hashlib.sha256).hexdigest()}
    if kind is list or kind is tuple:
        return kind(_veiled(inner, salt, f"{path}[{at}]", depth + 1) for at, inner in enumerate(value))
    if kind is dict:
        return {key: _veiled(inner, salt, f"{path}[{key!r}]", depth + 1) for key, inner in value.items()}
    try:
        return plain(value, path)
    except NotStorable as error:
        raise NotStorable(
            f"{error} The step was not run. Pass key= to identify it without its arguments.", error.path
        ) from error


def revealed_call(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the secrets that a `functools.partial` binds revealed."""
    if not Secret.made or type(fn) is not functools.partial:
        return fn
    return functools.partial(revealed_call(fn.func), *revealed(fn.args), **revealed(fn.keywords))


def revealed(value: Any) -> Any:
    """Return a value with secrets revealed; the same object if it has none."""
    return _revealed(value) if Secret.made else value


def _revealed(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind is Secret:
        return value.value
    if depth > codec.MAX_DEPTH:  # arguments of a step with a key may contain themselves
        return value
    if kind is list or kind is tuple:
        shown = [_revealed(inner, depth + 1) for inner in value]
        return value if all(a is b for a, b in zip(shown, value, strict=True)) else kind(shown)
    if kind is dict:
        seen = {key: _revealed(inner, depth + 1) for key, inner in value.items()}
        return value if all(seen[key] is value[key] for key in value) else seen
    return value


def difference(old: Described, new: Described) -> str:
    """Return a readable difference of two calls' arguments."""
    if old.whole is None or new.whole is None:
        return f"recorded: {_shown(old)}; now: {_shown(new)}"
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


def _shown(one: Described) -> str:
    if one.whole is not None:
        return f"{one.whole!r:.{_SHOWN}}"
    return f"{one.size:,} bytes that begin {one.preview!s:.{_SHOWN}}"


def _path(path: tuple[str | int, ...]) -> str:
    first, *rest = path or ("",)
    if len(rest) > 1 and rest[0] == _BY_NAME:
        _, first, *rest = rest
    place = int(first) + 1 if isinstance(first, int) else first
    return f"{place}" + "".join(f"[{step!r}]" for step in rest)
