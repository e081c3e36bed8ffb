"""Calibrate the estimate of tokens from the usage that a provider reports, for each model.

Key, below the tenant: `("tokens", "factor", model)` is how many tokens a model counts for each estimated one. It is written
in a commit of its own, only when it moves by a step. A crash before that loses one observation.
"""

from __future__ import annotations

import math
from typing import Final

from tenuto.capabilities._core.base import Context
from tenuto.errors import Conflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Check, Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

_STEP: Final = 0.05
"""Factors are rounded up to steps, so that most turns change nothing."""
_DOWN: Final = 0.1
"""A higher count is believed at once, a lower one slowly: a budget must hold."""
_LOW, _HIGH = 0.5, 3.0
"""A count outside of this is about something else, such as the pixels of images."""


def factor_of(context: Context, model: str | None) -> float:
    """Return how many tokens a model counts for each estimated one; 1 if no usage was reported yet."""
    if model is None:
        return 1.0
    record = context.kernel.read([_key(model)])[0]
    return 1.0 if record is None else _rounded(codec.decode(record.value))


def observed(context: Context, model: str, estimated: float, reported: int) -> Work[None]:
    """Store what a provider reported for a context, next to its estimate without a factor."""
    if estimated < 100 or not _LOW <= reported / estimated <= _HIGH:
        return
    ratio, key = reported / estimated, _key(model)
    record = context.kernel.read([key])[0]
    before = None if record is None else codec.decode(record.value)
    now = ratio if before is None or ratio > before else before + (ratio - before) * _DOWN
    if before is not None and _rounded(before) == _rounded(now):
        return
    try:
        version = 0 if record is None else record.version
        yield from commit_once(context.kernel, [Check(key, version)], [Put(key, codec.encode(now))])
    except Conflict:  # another process has stored its own observation
        return


def _rounded(factor: float) -> float:
    return round(math.ceil(round(factor / _STEP, 6)) * _STEP, 6)


def _key(model: str) -> bytes:
    return keys.pack("tokens", "factor") + keys.named(model, "model")
