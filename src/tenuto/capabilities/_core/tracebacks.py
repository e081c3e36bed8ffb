"""Tracebacks as users read them: without the frames of tenuto that called their code."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from tenuto import errors

_HERE: Final = str(Path(errors.__file__).parent) + os.sep
_LENGTH: Final = 4_096
"""The most characters of a stored traceback: its end, which names the line that raised."""
_LINE: Final = 400


def of_user(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return `exc_info` of an error without the frames of tenuto above the user's last one. The error itself keeps them."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    last = max((n for n, one in enumerate(frames) if not _is_own(one)), default=-1)
    kept: TracebackType | None = None
    for n in range(len(frames) - 1, -1, -1):
        if n > last or not _is_own(frames[n]):
            kept = TracebackType(kept, frames[n].tb_frame, frames[n].tb_lasti, frames[n].tb_lineno)
    return type(error), error, kept


def tail(error: BaseException) -> str | None:
    """Return the end of an error's traceback as text; None if it has none."""
    if error.__traceback__ is None:
        return None
    try:
        lines = "".join(traceback.format_exception(*of_user(error))).splitlines()
    except Exception:  # noqa: BLE001 - a broken __str__ or source file must not hide the error itself
        return None
    text = "\n".join(line[:_LINE] for line in lines)
    if len(text) <= _LENGTH:
        return text
    return "…\n" + text[-_LENGTH:].partition("\n")[2]


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_HERE)
