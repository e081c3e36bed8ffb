"""Recover the errors of ormsgpack's hooks: ormsgpack replaces what a hook raises by its own error and drops the cause.

A hook wrapped in `noted` records its error, and `raised` returns it. So Control-C during encoding or decoding is
raised as itself, never as `Damaged`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tenuto.errors import Damaged, Encrypted, TenutoError

R = TypeVar("R")
_HOOK_FAILED: Final = ("ext_hook failed", "Type is not msgpack serializable")
SEALED: Final = (b"\xe1", b"\xe2")
"""How values begin that `wrappers/encrypt` has encrypted."""
_last = threading.local()


def noted(hook: Callable[..., R]) -> Callable[..., R]:
    """Wrap a hook so that `raised` can return what it raises."""

    def wrapped(*args: Any) -> R:
        try:
            return hook(*args)
        except BaseException as error:
            _last.error = error
            raise

    return wrapped


def raised(error: Exception) -> BaseException:
    """Return the error that a noted hook of this thread raised, if ormsgpack's `error` replaced it; else `error`."""
    if not str(error).startswith(_HOOK_FAILED):
        return error
    cause: BaseException | None = getattr(_last, "error", None)
    _last.error = None
    # A signal during ormsgpack's own code is delivered at the hook's first instruction, before `noted` can record
    # it. Every other error of a hook is recorded.
    return cause or KeyboardInterrupt()


def is_passing(error: BaseException) -> bool:
    """Return whether an error says nothing about the value: an interrupt, or a lack of memory or of stack."""
    return not isinstance(error, Exception) or isinstance(error, MemoryError | RecursionError)


def of_other_format(data: bytes) -> TenutoError:
    """Return the error of a stored value that does not begin with the byte of the codec's format."""
    if data[:1] in SEALED:
        return Encrypted(
            "A stored value is encrypted and no key was given. Nothing of it is returned. Pass encryption_key=."
        )
    return Damaged(
        f"A stored value has format {data[0] if data else 'none'}, which this version of tenuto cannot read. "
        "If a newer version wrote it, upgrade tenuto; otherwise restore a backup."
    )
