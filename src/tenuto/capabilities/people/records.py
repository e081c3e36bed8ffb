"""The records of a question: what one change of it checks and writes, in one commit.

Keys, below the tenant:

- `("inbox", "question", id)`: the question; its version guards every change.
- `("inbox", "pending", id)`: it is open.
- `("inbox", "due", milliseconds, id)`: when its next timer is due.
- `("inbox", "about", subject, milliseconds, id)`: it is about this subject.
- `("inbox", "gate", resource)`: the ids of the questions that block the resource (`_core/gates.py`).
- the stream `("inbox", "log", id)`: its history.

Every change checks the question's version, so each timer fires once and the first answer counts. A crash before the
commit leaves the question unchanged and its timer due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tenuto.capabilities._core.base import Context, scan_all, stamp
from tenuto.capabilities._core.gates import gate_key
from tenuto.capabilities.people.questions import Question, QuestionEvent, encoded, next_due, question_key
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment

PENDING: Final = keys.pack("inbox", "pending")
_DUE: Final = keys.pack("inbox", "due")
_ABOUT: Final = keys.pack("inbox", "about")
_LOG: Final = keys.pack("inbox", "log")


def change(  # noqa: PLR0913 - what one change consists of
    context: Context,
    old: Question | None,
    version: int,
    new: Question,
    what: str,
    *,
    by: str | None = None,
    details: Any = None,
    more: Sequence[Write] = (),
) -> tuple[list[AnyCheck], list[Write]]:
    """Return the checks and writes that change a question, or ask it if there is no old one."""
    checks: list[AnyCheck] = [Check(question_key(new.id), version)]
    writes: list[Write] = [put(new)]
    listed = PENDING + keys.pack(new.id)
    if old is None:
        writes.append(Put(listed, codec.encode(None)))
        writes += [Put(_about(one, new), codec.encode(None)) for one in dict.fromkeys(new.about)]
    elif old.open and not new.open:
        writes.append(Delete(listed))
    before, after = None if old is None else next_due(old), next_due(new)
    if before != after:
        writes += [Delete(_due(before, new.id))] if before is not None else []
        writes += [Put(_due(after, new.id), codec.encode(None))] if after is not None else []
    guard, moved = _gate(context.kernel, None if old is None else old.blocking, new)
    line = codec.encode([*stamp(context), what, by, details])
    return [*checks, *guard], [*writes, *moved, Append(_LOG + keys.pack(new.id), line), *more]


def _gate(kernel: Backend, before: str | None, new: Question) -> tuple[list[AnyCheck], list[Write]]:
    """Return what closes or opens the gate of the resource; other questions may block it too."""
    resource = new.blocking or before
    if resource is None or before == new.blocking:
        return [], []
    record = kernel.read([gate_key(resource)])[0]
    ids: list[str] = [] if record is None else codec.decode(record.value)
    left = [*ids, new.id] if new.blocking else [one for one in ids if one != new.id]
    put = Put(gate_key(resource), codec.encode(left)) if left else Delete(gate_key(resource))
    return [Check(gate_key(resource), record.version if record else 0)], [put]


def _about(subject: str, question: Question) -> bytes:
    return _ABOUT + keys.pack(subject, int(question.asked_at.timestamp() * 1000), question.id)


def _due(at: float, question_id: str) -> bytes:
    return _DUE + keys.pack(int(at * 1000), question_id)


def put(question: Question) -> Put:
    """Return the write that stores an open question, whose timers and gate stay as they are."""
    return Put(question_key(question.id), encoded(question))


def due(kernel: Backend, now: float, limit: int) -> list[str]:
    """Return the ids of questions with a timer that is due, the earliest first."""
    found: list[str] = []
    for record in kernel.scan(_DUE, limit=limit):
        at, question_id = keys.unpack(record.key)[-2:]
        if int(at) > now * 1000:
            break
        found.append(str(question_id))
    return found


def earlier(kernel: Backend, subjects: Sequence[str], limit: int = 20) -> Iterator[str]:
    """Yield the ids of the newest questions about each of these subjects."""
    for subject in subjects:
        for record in kernel.scan(_ABOUT + keys.pack(subject), limit=limit, reverse=True):
            yield str(keys.unpack(record.key)[-1])


def pending(kernel: Backend) -> Iterator[Record]:
    """Yield the records that list open questions."""
    return scan_all(kernel, PENDING)


def history(kernel: Backend, question_id: str) -> list[QuestionEvent]:
    """Return everything that happened to a question, oldest first."""
    found: list[QuestionEvent] = []
    number = 0
    while page := kernel.entries(_LOG + keys.pack(question_id), after=number, limit=500):
        for entry in page:
            writer, correlation_id, what, by, details = codec.decode(entry.value)
            found.append(QuestionEvent(moment(entry.written_at), what, by, details, writer, correlation_id))
        number = page[-1].number
    return found


def note(context: Context, question_id: str, what: str, details: Any) -> Append:
    """Return the write that adds an entry to the history of a question."""
    return Append(_LOG + keys.pack(question_id), codec.encode([*stamp(context), what, None, details]))
