"""What comes of a step, as data: its result, or the error that it raised.

A result is what the function returned, as it is stored: plain data and registered types as they are, other
objects as the dict they give. It is decoded again before the caller gets it, so the first time equals every
replay. By a schema (the function's return annotation, unless another is given) that dict becomes an object of
its type again.

An error is raised again as the type it had where that is known: Python's own, tenuto's, and those given to
`register`. Any other is `StepFailed`, also the first time, so that code which handles it behaves the same.
"""

from __future__ import annotations

import builtins
import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tenuto import errors
from tenuto.capabilities.messages import plain
from tenuto.errors import InDoubt, InvalidInput, NotStorable, Paused, StepFailed, TenutoError
from tenuto.kernel import codec

_TEXT: Final = 20_000
"""So much is kept of what an error says, or of a result that has no stored form."""
_NEVER: Final = (StopIteration, StopAsyncIteration, GeneratorExit)


class Schema(NamedTuple):
    """The type that a result is to have, and whether somebody asked for it."""

    kind: Any = None
    explicit: bool = False


@functools.lru_cache(1_000)
def _returned(fn: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(fn).get("return")
    except Exception:  # noqa: BLE001 - whatever an annotation does, it is only a hint
        return None


def schema_of(fn: Callable[..., Any], schema: Any) -> Schema:
    """Return the type that a function's result is to have."""
    if schema is not None:
        return Schema(schema, explicit=True)
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        return Schema(_returned(fn))
    except TypeError:  # a callable object that is not hashable
        return Schema()


def kept(value: Any) -> tuple[Any, bool]:
    """Return a result as it is stored, and whether objects in it became dicts; `NotStorable` if it has no form."""
    try:
        codec.pack(value)
    except NotStorable:
        lowered = plain(value, "result")
        codec.pack(lowered)
        return lowered, True
    return value, False


def lifted(value: Any, lowered: bool, schema: Schema) -> Any:  # noqa: FBT001 - as it is stored
    """Return a stored result as the caller gets it."""
    if schema.kind is None or schema.kind is Any or not (lowered or schema.explicit):
        return value
    try:
        if hasattr(schema.kind, "model_validate"):
            return schema.kind.model_validate(value)
        import msgspec  # noqa: PLC0415 - most programs never need it

        return msgspec.convert(value, schema.kind, dec_hook=_validated, from_attributes=True)
    except (ValueError, TypeError) as error:
        if not schema.explicit:
            return value  # an annotation that does not fit is no promise
        raise InvalidInput(
            f"The result is no valid {getattr(schema.kind, '__name__', schema.kind)}: {error}. "
            "It is recorded; correct the schema and make the same call again."
        ) from error


def _validated(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__name__} cannot be made of plain data")


def text_of(value: Any) -> str:
    """Return a result that has no stored form as text, so that it is not lost."""
    try:
        return repr(value)[:_TEXT]
    except Exception as error:  # noqa: BLE001 - a broken repr
        return f"<{type(value).__qualname__} whose repr raised {type(error).__name__}>"


def told(error: BaseException) -> dict[str, Any]:
    """Return an error as data."""
    kind = type(error)
    data: dict[str, Any] = {"type": kind.__qualname__, "message": _said(error)[:_TEXT]}
    if codec.is_registered(kind):
        try:
            data["registered"] = codec.encode(error)
        except TenutoError:
            return data  # its own conversion failed: it comes back as StepFailed
    elif _known(kind) is kind:
        try:
            data["args"] = codec.encode(list(error.args))
        except NotStorable:
            return data
    return data


def raised(data: dict[str, Any]) -> Exception:
    """Return the error that a stored one stands for."""
    try:
        if "registered" in data:
            again = codec.decode(data["registered"])
            if isinstance(again, Exception):
                return again
        elif "args" in data:
            kind = getattr(errors, data["type"], None) or getattr(builtins, data["type"], None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                return kind(*codec.decode(data["args"]))
    except (TenutoError, TypeError, ValueError, AttributeError):
        pass  # it is not known here, or takes other arguments now
    name, said = data["type"], data["message"]
    return StepFailed(
        f"The step raised {name}: {said}. To get it as {name}, give that class to tenuto.register.", name, said
    )


def comes_back(error: BaseException) -> bool:
    """Tell whether an error will be raised again as the type it has."""
    return type(raised(told(error))) is type(error)


def paused_in(error: BaseException | None) -> BaseException | None:
    """Return what an error means to a run: a group of nothing but pauses, as a task group raises it, is a pause."""
    if not isinstance(error, BaseExceptionGroup) or isinstance(error, ExceptionGroup):
        return error
    leaves = [one for one in within(error, causes=False) if not isinstance(one, BaseExceptionGroup)]
    if not all(isinstance(one, Exception | Paused) for one in leaves):
        return error
    failed = [one for one in leaves if isinstance(one, Exception)]
    doubts = [one for one in leaves if isinstance(one, InDoubt)]
    return (failed or doubts or leaves)[0]


def within(error: BaseException | None, *, causes: bool = True) -> Iterator[BaseException]:
    """Yield an error, those that it is a group of, and those that led to it."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from within(one, causes=causes)
        error = (error.__cause__ or error.__context__) if causes else None


def _known(kind: type) -> type | None:
    if kind in _NEVER:
        return None
    home = errors if kind.__module__ == errors.__name__ else builtins if kind.__module__ == "builtins" else None
    return getattr(home, kind.__qualname__, None) if home is not None else None


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__
        return ""
