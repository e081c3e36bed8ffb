"""The usage of models: read from a provider's response, priced, recorded with its step, and limited by a budget.

It owns no keys: a usage is `[model, input tokens, output tokens, cost or None, cached tokens]` in the log line of its step.
Cached tokens are part of the input tokens. A crash before that line loses the usage with the result of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.runs.log import History, RunLog, dollars, every_key, id_of, usage_sum
from tenuto.errors import BudgetExceeded, InvalidInput
from tenuto.kernel import keys

if TYPE_CHECKING:
    from tenuto.capabilities.runs.open_run import OpenRun

_MILLION = 1_000_000


class Usage(NamedTuple):
    """The tokens of one model call; cached tokens are part of the input, read from a cache or written to it."""

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    """Of the input, what the provider wrote to its cache, which some charge extra."""


class Price(NamedTuple):
    """What a model costs, in dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of input tokens that the provider had cached; None: as any input."""
    written: float | None = None
    """Of input tokens that the provider wrote to its cache; None: as any input."""

    def of(self, used: Usage) -> float:
        """Return the cost of a call."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        fresh = used.input_tokens - used.cached_tokens - used.written_tokens
        given = fresh * self.input + used.cached_tokens * cached + used.written_tokens * written
        return (given + used.output_tokens * self.output) / _MILLION


_ENDED: Final = ("completed", "failed")
"""No line follows, as it may after a cancellation."""
Prices = dict[str, Price]


def priced(used: Usage, prices: Mapping[str, Price]) -> float | None:
    """Return the cost of a call by a table, or by the optional package genai-prices; None if no price is known."""
    if used.model in prices:
        return Price(*prices[used.model]).of(used)
    try:
        import genai_prices  # noqa: PLC0415 - optional
    except ImportError:
        return None
    counted = genai_prices.Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cached_tokens,
        cache_write_tokens=used.written_tokens,
    )
    try:
        return float(genai_prices.calc_price(counted, model_ref=used.model).total_price)
    except LookupError:
        return None


def usage_of(response: Any) -> Usage:
    """Return the usage in a response of OpenAI, Anthropic or LangChain, an object or a dict; else `InvalidInput`."""
    found = _get(response, "usage_metadata") or _get(response, "usage")
    about = _get(response, "response_metadata") or response
    model = _get(about, "model_name") or _get(about, "model")
    if found is None or not isinstance(model, str):
        raise InvalidInput(
            f"A {type(response).__name__} has no usage and model that tenuto can read; nothing was recorded. Pass the "
            "model's name and the tokens: run.usage(model, input_tokens=…, output_tokens=…)."
        )
    given = _number(found, "input_tokens", "prompt_tokens")
    details = _first(found, "input_token_details", "input_tokens_details", "prompt_tokens_details")
    cached = 0 if details is None else _number(details, "cached_tokens", "cache_read")
    written = 0 if details is None else _number(details, "cache_creation")
    apart, created = _number(found, "cache_read_input_tokens"), _number(found, "cache_creation_input_tokens")
    given += apart + created  # Anthropic counts its cache apart from the input
    made = _number(found, "output_tokens", "completion_tokens")
    return Usage(model, given, made, cached + apart, written + created)


def recorded(model: Any, counts: tuple[int, int, int], cost: float | None, prices: Mapping[str, Price]) -> list[Any]:
    """Return the stored form of a usage: of a model's name and its tokens, or of a provider's response."""
    if isinstance(model, str):
        used = Usage(keys.name(model, "model"), *counts)
        if any(type(one) is not int or one < 0 for one in counts) or used.cached_tokens > used.input_tokens:
            raise InvalidInput(
                f"Tokens must be ints, 0 or more, and cached ones at most as many as input ones; not {counts!r}. "
                "Nothing was recorded."
            )
    else:
        used = usage_of(model)
    if cost is not None and not (isinstance(cost, int | float) and 0 <= cost < math.inf):
        raise InvalidInput(f"cost must be an amount in dollars, 0 or more, not {cost!r}. Nothing was recorded.")
    if cost is None and (used.input_tokens or used.output_tokens):
        cost = priced(used, prices)
    return [
        used.model,
        used.input_tokens,
        used.output_tokens,
        None if cost is None else float(cost),
        used.cached_tokens,
    ]


def logs_of(context: Context, user: str | None, since: float = 0.0) -> Iterator[tuple[str, str | None, History]]:
    """Yield the id, the user and the log of each run, of a user or of all, without those that ended before a time."""
    for record in scan_all(context.kernel, every_key(user)):
        log = RunLog(context, id_of(record))
        head, _ = log.head()
        ended = head is not None and head.status in _ENDED and head.changed < since
        if head is not None and head.status != "deleting" and not ended:
            yield log.id, head.user, log.read(head.first)


def origin_of(history: History) -> str | None:
    """Return the id of the run that a run was forked from, or None."""
    forked = history.started.get("forked")
    return None if forked is None else str(forked[0])


def forked_from(context: Context, run_id: str) -> str | None:
    """Return the id of the run that a stored run was forked from; None if it was not, or is not there."""
    log = RunLog(context, run_id)
    head, _ = log.head()
    return None if head is None or head.status == "deleting" else origin_of(log.read(head.first))


def must_be_within_budget(run: OpenRun, what: str) -> None:
    """Raise `BudgetExceeded` if the run has spent its budget."""
    if run.budget is None:
        return
    spent = usage_sum(run.history.ops.values()) + run.spent
    if spent >= run.budget:
        raise BudgetExceeded(
            f"The run {run.id!r} has spent {dollars(spent)} of its budget of {dollars(run.budget)}; {what} was not begun. "
            "Repeat the call with a higher budget= to resume it.",
            spent,
            run.budget,
        )


def _first(holder: Any, *names: str) -> Any:
    return next((found for name in names if (found := _get(holder, name)) is not None), None)


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _number(holder: Any, *names: str) -> int:
    found = _first(holder, *names)
    return found if type(found) is int and found >= 0 else 0
