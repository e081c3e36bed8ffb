"""Answers of people as memories: what was decided about a subject, found again by the next question and by `recall`.

It owns no keys. The memory is written in the commit of the answer: both are there after a crash, or neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tenuto.capabilities.memory import TRUST, new
from tenuto.capabilities.people import Question
from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.log import RunLog
from tenuto.kernel.contract import AnyCheck, Write

_MOST: Final = 2_000
"""The most characters of a question, and of an answer."""
_CONTEXT: Final = 500


def answer_learned(engine: Engine, question: Question) -> tuple[Sequence[AnyCheck], Sequence[Write]]:
    """Return what to check and to write so that an answer is remembered; nothing if it is not to be.

    It belongs to the user of the run that asked, else to the tenant. It is about the last of the question's subjects, and
    names all of them.
    """
    if not question.remember or question.status != "answered" or question.step is not None:
        return [], []
    user = None
    if question.run is not None:
        head, _ = RunLog(engine.context, question.run).head()
        user = None if head is None else head.user
    given = new(
        _said(question),
        trust=TRUST["person" if question.by else "unknown"],
        user=user,
        kind="decision",
        about=question.about[-1] if question.about else None,
        meta={"question": question.id, "answer": question.answer if _is_short(question.answer) else None},
    )
    return engine.memories._writes(given)


def _said(question: Question) -> str:
    about = f" (about {', '.join(question.about)})" if question.about else ""
    given = question.context if isinstance(question.context, dict) else {}
    context = ", ".join(f"{name} {value}" for name, value in given.items() if _is_short(value))[:_CONTEXT]
    by = f" by {question.by}" if question.by else ""
    at = f" on {question.answered_at:%Y-%m-%d}" if question.answered_at is not None else ""
    shown = f"{question.text[:_MOST]}{about}{f' [{context}]' if context else ''}"
    text = f"{shown} Answered{by}{at}: {str(question.answer)[:_MOST]}"
    return text.replace("\x00", " ").encode(errors="replace").decode()


def _is_short(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 200)
