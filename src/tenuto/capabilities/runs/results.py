"""The stored form of a step's result or error.

Plain data and registered types are stored as they are, other objects as dicts. The caller always gets the decoded form,
so the first call equals every replay. A schema (default: the function's return annotation) converts a dict back.

Built-in, tenuto's, registered and declared (`errors=`) errors are raised again with their type. Any other becomes `StepFailed`, also the first
time, so that handlers behave the same on a replay. The tail of an error's traceback is stored with it.
"""

from __future__ import annotations

import builtins
import functools
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto import errors
from tenuto.capabilities._core.tracebacks import tail
from tenuto.capabilities._core.values import plain
from tenuto.errors import InDoubt, InvalidInput, NotStorable, Paused, StepFailed, TenutoError
from tenuto.kernel import codec

_TEXT: Final = 20_000
"""The most characters stored of an error message, or of the repr of a result that cannot be stored."""
_LARGEST: Final = 256 * 1024
"""The most bytes stored of an error's arguments; a larger error becomes `StepFailed`."""
_NEVER: Final = (StopIteration, StopAsyncIteration, GeneratorExit)


class Schema(NamedTuple):
    """The expected type of a result, and whether the caller passed it."""

    kind: Any = None
    explicit: bool = False


@functools.lru_cache(1_000)
def _returned(fn: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(fn).get("return")
    except Exception:  # noqa: BLE001 - whatever an annotation does, it is only a hint
        return None


def schema_of(fn: Callable[..., Any], schema: Any) -> Schema:
    """Return the expected type of a function's result."""
    if schema is not None:
        return Schema(schema, explicit=True)
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        return Schema(_returned(fn))
    except TypeError:  # a callable object that is not hashable
        return Schema()


def to_stored(value: Any) -> tuple[Any, bool]:
    """Return the stored form of a result, and whether objects became dicts; raise `NotStorable` if there is none."""
    try:
        codec.pack(value)
    except NotStorable:
        lowered = plain(value, "result")
        codec.pack(lowered)
        return lowered, True
    return value, False


def from_stored(value: Any, lowered: bool, schema: Schema) -> Any:  # noqa: FBT001 - as it is stored
    """Return the result of its stored form, converted by the schema."""
    if schema.kind is None or schema.kind is Any or not (lowered or schema.explicit):
        return value
    try:
        if hasattr(schema.kind, "model_validate"):
            return schema.kind.model_validate(value)
        import msgspec  # noqa: PLC0415 - most programs never need it

        return msgspec.convert(value, schema.kind, dec_hook=_validated, from_attributes=True)
    except (ValueError, TypeError) as error:
        if not schema.explicit:
            return value  # a wrong annotation is no error
        raise InvalidInput(
            f"The result is recorded but is not a valid {getattr(schema.kind, '__name__', schema.kind)}: {error}. "
            "Correct the schema and repeat the call."
        ) from error


def _validated(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__name__} cannot be made of plain data")


def text_of(value: Any) -> str:
    """Return the repr of a result that cannot be stored."""
    try:
        return repr(value)[:_TEXT]
    except Exception as error:  # noqa: BLE001 - a broken repr
        return f"<{type(value).__qualname__} whose repr raised {type(error).__name__}>"


def error_data(error: BaseException, declared: Sequence[type[Exception]] = ()) -> dict[str, Any]:
    """Return an error as data, with the tail of its traceback; `declared` are classes that a replay can find."""
    kind = type(error)
    data: dict[str, Any] = {"type": kind.__qualname__, "message": _said(error)[:_TEXT], "traceback": tail(error)}
    if codec.is_registered(kind):
        try:
            whole: dict[str, Any] = {"registered": codec.encode(error)}
        except TenutoError:
            return data  # its conversion failed: it becomes StepFailed
    elif found := _declared(kind, declared):
        whole = {"as": found.__qualname__, "args": _arguments(error) or codec.encode([data["message"]])}
        if (state := _encoded(error.__dict__)) is not None:
            whole["state"] = state
    elif _known(kind) is kind and (args := _arguments(error)) is not None:
        whole = {"args": args}
    else:
        return data
    size = sum(len(one) for one in whole.values())
    return data if size > _LARGEST else {**data, **whole}


def _arguments(error: BaseException) -> bytes | None:
    """Return the arguments of an error encoded, long texts cut; None if they cannot be stored."""
    return _encoded([one[:_TEXT] if type(one) is str else one for one in error.args])


def _encoded(value: Any) -> bytes | None:
    try:
        return codec.encode(value)
    except NotStorable:
        return None


def _declared(kind: type, declared: Sequence[type[Exception]]) -> type[Exception] | None:
    """Return the declared class of an error, or its first declared base class."""
    return kind if kind in declared else next((one for one in declared if issubclass(kind, one)), None)


def error_from(data: dict[str, Any], declared: Sequence[type[Exception]] = ()) -> Exception:
    """Return the error of its stored form."""
    try:
        if "registered" in data:
            again = codec.decode(data["registered"])
            if isinstance(again, Exception):
                return again
        elif "as" in data:
            for one in declared:
                if one.__qualname__ == data["as"]:
                    return _rebuilt(one, data)
        elif "args" in data:
            kind = getattr(errors, data["type"], None) or getattr(builtins, data["type"], None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                return kind(*codec.decode(data["args"]))
    except (TenutoError, TypeError, ValueError, AttributeError):
        pass  # unknown here, or its arguments have changed
    name, said = data["type"], data["message"]
    return StepFailed(
        f"The step raised {name}: {said}. To get it as {name}, register that class with tenuto.register.", name, said
    )


def _rebuilt(kind: type[Exception], data: dict[str, Any]) -> Exception:
    """Return an error with its arguments and attributes. Its `__init__` is not called: it may take other arguments."""
    args = codec.decode(data["args"])
    error = kind.__new__(kind, *args)
    error.args = tuple(args)
    if data.get("state"):
        error.__dict__.update(codec.decode(data["state"]))
    return error


def is_rebuildable(error: BaseException, data: dict[str, Any], declared: Sequence[type[Exception]] = ()) -> bool:
    """Return whether a replay can raise an error with its type from its stored form."""
    return type(error_from(data, declared)) is type(error)


def paused_in(error: BaseException | None) -> BaseException | None:
    """Return the error that decides a run's status: of a task group's errors, a failure, a doubt, or a pause."""
    if not isinstance(error, BaseExceptionGroup) or isinstance(error, ExceptionGroup):
        return error
    leaves = [one for one in causes_of(error, causes=False) if not isinstance(one, BaseExceptionGroup)]
    if not all(isinstance(one, Exception | Paused) for one in leaves):
        return error
    failed = [one for one in leaves if isinstance(one, Exception)]
    doubts = [one for one in leaves if isinstance(one, InDoubt)]
    return (failed or doubts or leaves)[0]


def causes_of(error: BaseException | None, *, causes: bool = True) -> Iterator[BaseException]:
    """Yield an error, the members of its group, and its causes."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from causes_of(one, causes=causes)
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
