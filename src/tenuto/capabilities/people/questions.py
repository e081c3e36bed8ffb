"""Questions to people: asked by a run, listed in an inbox, answered once.

Keys, below the tenant: `("inbox", "question", id)` is a question and what became of it; `("inbox", "pending", id)`
lists those that are open. Asking is a commit that writes both, in a run together with the line that says so;
answering or cancelling is one that checks the question's version, writes the answer and takes it off the list. Of
two answers the first counts, and the second is told so. A crash before an answer's commit leaves the question open.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, cast

from tenuto.capabilities.context import Context
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import Steps, paced, settle

Status = Literal["pending", "answered", "cancelled", "expired"]
_QUESTION: Final = keys.pack("inbox", "question")
_PENDING: Final = keys.pack("inbox", "pending")
_STATUSES: Final = ("pending", "answered", "cancelled", "expired")


class Question(NamedTuple):
    """A question, and what became of it."""

    id: str
    text: str
    to: str | None
    context: Any
    choices: list[Any] | None
    run: str | None
    step: str | None
    """The step that is in doubt, if it is about one."""
    status: Status
    answer: Any
    by: str | None
    asked_at: datetime
    deadline: datetime | None
    answered_at: datetime | None


class Happened(NamedTuple):
    """A step in doubt did happen, and this came of it."""

    result: Any = None


class NotHappened(NamedTuple):
    """A step in doubt did not happen: it may be run."""


class Unknown(NamedTuple):
    """Nobody can say whether a step in doubt happened."""

    reason: str = ""


Answer = Happened | NotHappened | Unknown

HAPPENED, NOT_HAPPENED = "happened", "not happened"


class Inbox:
    """The questions of a tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernel = context.kernel

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    def list(
        self, to: str | None = None, status: Status | None = "pending", *, run: str | None = None, limit: int = 1_000
    ) -> list[Question]:
        """Return questions, oldest first: those that are open, or in another `status`; None is all."""
        if status is not None and status not in _STATUSES:
            raise InvalidInput(f"A question is {', '.join(_STATUSES)}; not {status!r}.")
        found: list[Question] = []
        prefix, after = _PENDING if status == "pending" else _QUESTION, None
        while page := self._kernel.scan(prefix, after=after, limit=1_000):
            after = page[-1].key
            records: Sequence[Record | None] = page
            if status == "pending":
                records = self._kernel.read([_QUESTION + keys.pack(keys.unpack(one.key)[-1]) for one in page])
            for record in records:
                question = None if record is None else _question(record)
                if question is None or status not in (None, question.status):
                    continue
                if to in (None, question.to) and run in (None, question.run):
                    found.append(question)
        return sorted(found, key=lambda one: one.asked_at)[:limit]

    def get(self, question_id: str) -> Question:
        """Return a question; `NotFound` if there is none."""
        return self._found(question_id)[0]

    @paced
    def answer(self, question_id: str, answer: Any, *, by: str | None = None) -> Steps[Question]:
        """Answer a question, durably, once; what waits for it goes on. `Conflict` if it is not open any more.

        A step in doubt is answered with `Happened(result)` or "happened", `NotHappened()` or "not happened".
        """
        question, version = self._found(question_id)
        self._must_be_open(question)
        stored = _stored(answer)
        if question.choices is not None and stored not in question.choices and not isinstance(answer, Happened):
            raise InvalidInput(f"The choices are {question.choices!r}; {answer!r} is none of them. Answer with one.")
        return (yield from self._close(question, version, "answered", stored, by))

    @paced
    def cancel(self, question_id: str, *, by: str | None = None) -> Steps[Question]:
        """Take a question back, durably. What waits for it goes on with `Conflict`, which it may handle."""
        question, version = self._found(question_id)
        self._must_be_open(question)
        return (yield from self._close(question, version, "cancelled", None, by))

    def _close(self, question: Question, version: int, status: Status, answer: Any, by: str | None) -> Steps[Question]:
        closed = question._replace(status=status, answer=answer, by=by, answered_at=moment(self._kernel.now()))
        try:
            yield from settle(self._kernel, [Check(_key(question.id), version)], closing(closed))
        except Conflict:
            self._must_be_open(self.get(question.id))
            raise
        return closed

    def _found(self, question_id: str) -> tuple[Question, int]:
        record = self._kernel.read([_key(keys.name(question_id, "question id"))])[0]
        if record is None:
            raise NotFound(f"There is no question {question_id!r}. See which there are with agent.inbox.list().")
        return _question(record), record.version

    def _must_be_open(self, question: Question) -> None:
        if question.status != "pending":
            by = f" by {question.by}" if question.by else ""
            raise Conflict(
                f"The question {question.id!r} was {question.status}{by} before; nothing was written. "
                f"Read it with agent.inbox.get({question.id!r}) and act on what it says.",
                [_key(question.id)],
            )

    # -- for those who ask ---------------------------------------------------------------------------------------

    def look(self, question_id: str) -> tuple[Question | None, int]:
        """Return a question and its version, or None."""
        record = self._kernel.read([_key(question_id)])[0]
        return (None, 0) if record is None else (_question(record), record.version)


def new(  # noqa: PLR0913 - what a question is made of
    question_id: str,
    text: str,
    now: float,
    *,
    to: str | None = None,
    context: Any = None,
    choices: Sequence[Any] | None = None,
    run: str | None = None,
    step: str | None = None,
    deadline: float | None = None,
) -> Question:
    """Return a question as it is asked."""
    if not isinstance(text, str) or not text:
        raise InvalidInput("A question is a text; say what is to be decided.")
    if choices is not None and not choices:
        raise InvalidInput("A question with choices has at least one; leave them out to let people answer freely.")
    return Question(
        question_id,
        text,
        None if to is None else keys.name(to, "to"),
        context,
        None if choices is None else list(choices),
        run,
        step,
        "pending",
        None,
        None,
        moment(now),
        None if deadline is None else moment(deadline),
        None,
    )


def asking(question: Question) -> tuple[list[AnyCheck], list[Write]]:
    """Return what a commit adds to ask a question."""
    listed = _PENDING + keys.pack(question.id)
    return [Check(_key(question.id), 0)], [_put(question), Put(listed, codec.encode(None))]


def closing(question: Question) -> list[Write]:
    """Return what a commit adds to write down what became of a question."""
    return [_put(question), Delete(_PENDING + keys.pack(question.id))]


def question_key(question_id: str) -> bytes:
    """Return where a question is kept."""
    return _key(question_id)


def is_open(record: Record | None) -> bool:
    """Tell whether the question of a record still waits for an answer."""
    return record is not None and _question(record).status == "pending"


def verdict(question: Question) -> Answer | None:
    """Return what people say about a step in doubt; None while they have not said anything."""
    if question.status == "pending":
        return None
    answer = question.answer
    if isinstance(answer, dict) and set(answer) == {HAPPENED}:
        return Happened(answer[HAPPENED])
    if answer == HAPPENED:
        return Happened()
    return NotHappened() if answer == NOT_HAPPENED else Unknown(f"the question was {question.status}")


def _stored(answer: Any) -> Any:
    if isinstance(answer, Happened):
        return {HAPPENED: answer.result} if answer.result is not None else HAPPENED
    return NOT_HAPPENED if isinstance(answer, NotHappened) else answer


def _key(question_id: str) -> bytes:
    return _QUESTION + keys.pack(question_id)


def _put(question: Question) -> Put:
    return Put(_key(question.id), codec.encode(list(question)))


def _question(record: Record) -> Question:
    return Question(*cast("list[Any]", codec.decode(record.value))[: len(Question._fields)])
