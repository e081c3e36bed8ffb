"""A step as the code declares it: its function, arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict

from tenuto.capabilities._core.values import MISSING
from tenuto.errors import InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Write
from tenuto.kernel.durations import Duration, seconds

Effect = Literal["pure", "idempotent", "once"]
OnError = Literal["raise", "keep"]
_EFFECTS: Final = ("pure", "idempotent", "once")


@dataclass(frozen=True)
class Retry:
    """How a failed step is retried: up to `attempts` times, after `first` seconds, then `factor` times longer each."""

    attempts: int = 5
    first: Duration = 1.0
    factor: float = 2.0
    most: Duration = 3_600.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        """Validate the values."""
        if self.attempts < 1 or self.factor < 1:
            raise InvalidInput("attempts and factor must be at least 1.")
        seconds(self.first, "first"), seconds(self.most, "most")

    def delay(self, made: int) -> float:
        """Return the seconds to wait after `made` attempts."""
        return min(seconds(self.first) * self.factor ** (made - 1), seconds(self.most))


class Intent(NamedTuple):
    """A step that may have happened: the argument of `verify`."""

    run: str
    step: str
    key: str | None
    args: tuple[Any, ...]
    """As the code passes them now."""
    attempt: int
    """The last attempt begun."""
    idempotency_key: str
    started_at: datetime
    error: str | None
    """The error that it raised, if any."""
    kwargs: dict[str, Any]
    """Its keyword arguments, as the code passes them now."""


Verify = Callable[[Intent], Any]


class StepOptions(TypedDict, total=False):
    """The options of a step, for the signatures of `step` and `map`."""

    key: str | None
    effect: Effect
    verify: Verify | None
    retry: Retry | None
    timeout: Duration | None
    errors: tuple[type[Exception], ...]
    gate: str | None


class MapOptions(TypedDict, total=False):
    """The options of a map, for the signatures of `map`."""

    concurrency: int
    on_error: OnError
    effect: Effect
    verify: Verify | None
    retry: Retry | None
    timeout: Duration | None


@dataclass
class Lane:
    """Consecutive items of a map: the result of one is committed with the intent of the next."""

    writes: list[Write] = field(default_factory=list)

    def taken(self) -> list[Write]:
        """Return and clear the pending writes."""
        found, self.writes = self.writes, []
        return found


@dataclass
class Step:
    """A step to execute."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    key: str | None = None
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    schema: Any = None
    kind: str = "step"
    lane: Lane | None = None
    errors: tuple[type[Exception], ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    gate: str | None = None
    """The resource that no open question may block when an attempt begins."""
    recorded: Callable[[Any], Any] | None = None
    """Makes what is recorded of what the function returned."""

    def __post_init__(self) -> None:
        """Validate the options."""
        keys.name(self.name, "step's name")
        if not callable(self.fn):
            raise InvalidInput(f"The step {self.name!r} needs a function and its arguments, not {self.fn!r:.80}.")
        if self.key is not None:
            keys.name(self.key, "key")
        if self.gate is not None:
            keys.name(self.gate, "resource")
        if self.effect not in _EFFECTS:
            raise InvalidInput(f"effect must be one of {', '.join(_EFFECTS)}; not {self.effect!r}.")
        if self.verify is not None and not callable(self.verify):
            raise InvalidInput(f"verify must be a function, not {self.verify!r:.80}.")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidInput(f"retry must be a tenuto.Retry, for example Retry(attempts=5), not {self.retry!r:.80}.")
        if self.retry is not None and self.retry.attempts > 1 and self.effect == "once" and self.verify is None:
            raise InvalidInput(
                f'The step {self.name!r} has effect="once" and retry=: an error may come after the effect, so a retry might '
                'do it twice; nothing was run. Pass verify= too, or effect="idempotent".'
            )
        if not isinstance(self.errors, tuple) or not all(_is_error(one) for one in self.errors):
            raise InvalidInput(f"errors must be a tuple of exception classes, not {self.errors!r:.80}.")
        if self.kwargs:
            self._must_bind()

    def _must_bind(self) -> None:
        """Raise `TypeError` before the intent is stored: a misspelt option would be passed to the function."""
        try:
            inspect.signature(self.fn).bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise TypeError(
                f"The step {self.name!r} was not run: its function does not accept these arguments ({error}). The options "
                f"of a step are {', '.join(StepOptions.__annotations__)}, schema and kwargs."
            ) from error
        except ValueError:  # a builtin without a signature
            return


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


def called(name: Any, fn: Any, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return name, function and arguments of a call of `step`, whose name defaults to that of the function."""
    if not callable(name):
        return name, None if fn is MISSING else fn, args
    own = getattr(name, "__name__", None)
    if own is None or own == "<lambda>":
        raise InvalidInput(f"{name!r:.80} has no name for its step; nothing was run. Pass one: run.step(NAME, fn, …).")
    return own, name, args if fn is MISSING else (fn, *args)
