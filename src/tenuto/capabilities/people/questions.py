"""Questions: what is stored of one, its status, and the verdicts on a step in doubt. Pure functions.

A question is pending, may be acknowledged, and ends answered, expired or cancelled. Expired is not denied: the answer of an
expired question is None, or the default that its asker chose, and `by` is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto.capabilities._core.gates import QUESTION
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Record
from tenuto.kernel.durations import moment

QuestionStatus = Literal["pending", "acknowledged", "answered", "cancelled", "expired"]
OnTimeout = Literal["wait", "deny", "default", "fail"]
STATUSES: Final = get_args(QuestionStatus)
ON_TIMEOUT: Final = get_args(OnTimeout)
OPEN: Final = ("pending", "acknowledged")


class Vote(NamedTuple):
    """One person's answer to a question with a quorum."""

    by: str
    answer: Any
    at: datetime


class Level(NamedTuple):
    """The people of one level of escalation, and when they are asked."""

    to: list[str]
    at: datetime
    repeat: float | None = None
    """Seconds between two reminders."""


class Timer(NamedTuple):
    """What happens at a time if the question is still open."""

    at: float
    kind: Literal["warn", "remind", "escalate", "expire", "overdue"]
    level: int
    value: float = 0.0
    """Of a warning the share of the time that has passed, in per cent; of a reminder the seconds to the next."""


class Question(NamedTuple):
    """A question with its status and answer."""

    id: str
    text: str
    to: str | None
    context: Any
    choices: list[Any] | None
    run: str | None
    step: str | None
    """The step in doubt that it asks about, if any."""
    status: QuestionStatus
    answer: Any
    by: str | None
    asked_at: datetime
    deadline: datetime | None
    """When the answer is due; then it is escalated, or `on_timeout` applies."""
    answered_at: datetime | None
    assignees: list[str] = []  # noqa: RUF012 - a NamedTuple's default, never changed
    """Everyone who is asked now: `to`, and the levels that were reached."""
    evidence: list[Any] = []  # noqa: RUF012 - the same
    schema: dict[str, Any] | None = None
    quorum: int = 1
    votes: list[Vote] = []  # noqa: RUF012 - the same
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    levels: list[Level] = []  # noqa: RUF012 - the same
    level: int = 0
    """How often it was escalated."""
    on_timeout: OnTimeout = "wait"
    default: Any = None
    expires_at: datetime | None = None
    """When `on_timeout` applies; None if it waits for ever."""
    blocks: str | None = None
    about: list[str] = []  # noqa: RUF012 - the same
    policy: str | None = None
    """The rule that applies, for the person who decides."""
    last: dict[str, Any] | None = None
    """The newest earlier question about the same subject, and its outcome."""
    remembered: list[str] = []  # noqa: RUF012 - the same
    """What memory says about its subjects, the best first."""
    asked_by: str | None = None
    remember: bool = False
    """The answer becomes a memory."""
    timers: list[Timer] = []  # noqa: RUF012 - the same
    calendar: dict[str, Any] | None = None
    """The business hours by which its times are counted, if they are those of a `Calendar`."""
    runs: list[str] = []  # noqa: RUF012 - the same
    """The other runs that wait for its answer: they asked with the same key."""
    changes: int = 0
    """How often it has changed; it numbers the notifications."""
    due: str | None = None
    """Not stored. "answered, due, no worker": its run can continue, and no worker has taken it yet."""

    @property
    def open(self) -> bool:
        """Return whether it can still be answered."""
        return self.status in OPEN

    @property
    def blocking(self) -> str | None:
        """Return the resource that it blocks now, if any: an expired question without a default still blocks."""
        closed = self.status == "expired" and self.on_timeout in ("deny", "fail")
        return self.blocks if self.open or closed else None

    def as_interrupt(self) -> dict[str, Any]:
        """Return the question as an AG-UI interrupt: resume it with `{"interruptId": id, "status", "payload"}`."""
        context = self.context if isinstance(self.context, dict) else {}
        schema = self.schema if self.choices is None else {"enum": self.choices}
        metadata = {
            "to": self.assignees, "context": self.context, "evidence": self.evidence, "run": self.run, "step": self.step,
            "blocks": self.blocks, "policy": self.policy, "last": self.last, "remembered": self.remembered, "status": self.status, "quorum": self.quorum,
        }  # fmt: skip
        return {
            "id": self.id,
            "reason": "in_doubt" if self.step is not None else "input_required",
            "message": self.text,
            "toolCallId": context.get("tool_call_id"),
            "responseSchema": schema,
            "expiresAt": None if self.expires_at is None else self.expires_at.isoformat(),
            "metadata": metadata,
        }


class QuestionEvent(NamedTuple):
    """One entry of the history of a question."""

    at: datetime
    what: str
    by: str | None
    """The person who did it, if a person did."""
    details: Any
    writer: str
    correlation_id: str | None


class Happened(NamedTuple):
    """The step in doubt happened, with this result."""

    result: Any = None


class NotHappened(NamedTuple):
    """The step in doubt did not happen: it may run again."""


class Unknown(NamedTuple):
    """It is unknown whether the step in doubt happened."""

    reason: str = ""


Answer = Happened | NotHappened | Unknown

HAPPENED, NOT_HAPPENED = "happened", "not happened"


@dataclass(frozen=True)
class NoAnswer:
    """What `run.ask(..., on_timeout="deny")` returns if no answer came in time: false, and equal to no choice."""

    question: str
    text: str

    def __bool__(self) -> bool:
        """Return False."""
        return False


codec.register(NoAnswer, name="tenuto.NoAnswer")


def question_key(question_id: str) -> bytes:
    """Return the key of a question."""
    return QUESTION + keys.pack(question_id)


def encoded(question: Question) -> bytes:
    """Return the stored form of a question: a dict, so that fields can be added."""
    fields = question._asdict()
    del fields["due"]
    fields["votes"] = [list(one) for one in question.votes]
    fields["levels"] = [list(one) for one in question.levels]
    fields["timers"] = [list(one) for one in question.timers]
    return codec.encode(fields)


def question_of(record: Record) -> Question:
    """Return the question of a record."""
    fields = codec.decode(record.value)
    known = {name: value for name, value in fields.items() if name in Question._fields}
    question = Question(**known)
    return question._replace(
        votes=[Vote(*one) for one in question.votes],
        levels=[Level(*one) for one in question.levels],
        timers=[Timer(*one) for one in question.timers],
    )


def is_open_question(record: Record | None) -> bool:
    """Return whether the question of a record can still be answered."""
    return record is not None and codec.decode(record.value)["status"] in OPEN


def verdict_of(question: Question) -> Answer | None:
    """Return the verdict on a step in doubt; None while the question is open."""
    if question.open:
        return None
    answer = question.answer
    if isinstance(answer, dict) and set(answer) == {HAPPENED}:
        return Happened(answer[HAPPENED])
    if answer == HAPPENED:
        return Happened()
    return NotHappened() if answer == NOT_HAPPENED else Unknown(f"the question was {question.status}")


def stored_answer(answer: Any) -> Any:
    """Return an answer as it is stored: a verdict as data."""
    if isinstance(answer, Happened):
        return {HAPPENED: answer.result} if answer.result is not None else HAPPENED
    return NOT_HAPPENED if isinstance(answer, NotHappened) else answer


def said(question: Question) -> str:
    """Return the status of a question in words: "answered by ann at 2026-11-18 09:00:00 UTC"."""
    by = f" by {question.by}" if question.by else ""
    at = f" at {question.answered_at:%Y-%m-%d %H:%M:%S} UTC" if question.answered_at is not None else ""
    return f"{question.status}{by}{at}"


def next_due(question: Question) -> float | None:
    """Return when the next timer of an open question is due."""
    return question.timers[0].at if question.open and question.timers else None


def expiry(timers: list[Timer]) -> datetime | None:
    """Return when a question expires by these timers."""
    return next((moment(one.at) for one in timers if one.kind == "expire"), None)
