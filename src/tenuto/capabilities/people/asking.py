"""Asking: from the arguments of `ask` to a validated question. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from tenuto.capabilities._core.schemas import problems, same, schema_of
from tenuto.capabilities._core.values import plain
from tenuto.capabilities.people.escalation import Rung, people_of, planned
from tenuto.capabilities.people.questions import ON_TIMEOUT, OnTimeout, Question, encoded, expiry
from tenuto.capabilities.people.times import Calendar, When, WorkingTime
from tenuto.errors import InvalidInput, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.durations import Duration, moment

MOST: Final = 1 << 20
"""The most bytes of a question with its context and evidence."""
Escalate = str | Sequence[str] | tuple[Duration, str | Sequence[str]] | dict[str, Any] | Rung


class AskOptions(TypedDict, total=False):
    """The options of `agent.ask` and `run.ask`.

    `to` names people or groups; `context`, `evidence` and `policy` help them decide. The answer must be one of `choices`
    or fit `schema`. At the `deadline` the question goes to the levels of `escalate`, then `on_timeout` applies:
    "wait", "deny", "default" (the answer is `default`) or "fail". `calendar` counts durations in business hours. `blocks`
    names a resource whose gate stays closed until the answer. `about` names subjects, for routes and for the last
    outcome. A question with the same `key` is asked once. `quorum` people must give the same answer. The answer to a
    question about something becomes a memory; `remember` decides otherwise.
    """

    to: str | Sequence[str] | None
    context: Any
    evidence: Sequence[Any]
    choices: Sequence[Any] | None
    schema: Any
    deadline: When | None
    escalate: Sequence[Escalate]
    on_timeout: OnTimeout
    default: Any
    calendar: WorkingTime | None
    blocks: str | None
    about: str | Sequence[str] | None
    policy: str | None
    key: str | None
    quorum: int
    remember: bool | None


def new_question(  # noqa: C901, PLR0912, PLR0913 - the fields of a question
    question_id: str,
    text: str,
    now: float,
    *,
    run: str | None = None,
    step: str | None = None,
    asked_by: str | None = None,
    last: dict[str, Any] | None = None,
    remembered: Sequence[str] = (),
    to: str | Sequence[str] | None = None,
    context: Any = None,
    evidence: Sequence[Any] = (),
    choices: Sequence[Any] | None = None,
    schema: Any = None,
    deadline: When | None = None,
    escalate: Sequence[Escalate] = (),
    on_timeout: OnTimeout = "wait",
    default: Any = None,
    calendar: WorkingTime | None = None,
    blocks: str | None = None,
    about: str | Sequence[str] | None = None,
    policy: str | None = None,
    key: str | None = None,
    quorum: int = 1,
    remember: bool | None = None,
) -> Question:
    """Return a new pending question, validated."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("A question must be a non-empty str that says what to decide.")
    if not isinstance(evidence, list | tuple):
        raise InvalidInput(f"evidence must be a list, not {evidence!r:.80}. Nothing was asked.")
    if choices is not None and (not isinstance(choices, list | tuple) or not choices):
        raise InvalidInput("choices must be a list with at least one choice. Leave it out for a free answer.")
    if choices is not None and schema is not None:
        raise InvalidInput("Pass either choices or schema.")
    if on_timeout not in ON_TIMEOUT:
        raise InvalidInput(f"on_timeout must be one of {', '.join(ON_TIMEOUT)}; not {on_timeout!r}.")
    if type(quorum) is not int or quorum < 1:
        raise InvalidInput(f"quorum must be a number of people, 1 or more, not {quorum!r}.")
    if remember not in (None, True, False):
        raise InvalidInput(f"remember must be True or False, not {remember!r}.")
    if policy is not None and not isinstance(policy, str):
        raise InvalidInput(f"policy must be a text, not {policy!r:.80}.")
    if key is not None:
        keys.name(key, "key")
    people = people_of(to)
    if len(set(people)) < len(people):
        raise InvalidInput("to names a person twice.")
    plan = planned(people, now, deadline=deadline, escalate=escalate, on_timeout=on_timeout, calendar=calendar)
    question = Question(
        question_id, text, ", ".join(people) or None, plain(context, "context"),
        None if choices is None else list(choices), run, step, "pending", None, None, moment(now),
        None if plan.deadline is None else moment(plan.deadline), None,
        assignees=people,
        evidence=[plain(one, f"evidence[{at}]") for at, one in enumerate(evidence)],
        schema=None if schema is None else schema_of(schema),
        quorum=quorum,
        levels=plan.levels,
        on_timeout=on_timeout,
        default=default,
        expires_at=expiry(plan.timers),
        blocks=None if blocks is None else keys.name(blocks, "resource"),
        about=subjects_of(about, blocks),
        policy=policy,
        last=last,
        remembered=list(remembered),
        asked_by=asked_by,
        remember=bool(subjects_of(about, blocks)) if remember is None else remember,
        timers=plan.timers,
        calendar=calendar.stored() if isinstance(calendar, Calendar) else None,
    )  # fmt: skip
    if on_timeout == "default":
        must_fit(question, default, "The default")
    elif default is not None:
        raise InvalidInput('default is used with on_timeout="default" alone. Nothing was asked.')
    size = len(encoded(question))
    if size > MOST:
        raise TooLarge(
            f"A question takes up to 1 MB with its context and evidence; this one has {size:,} bytes. "
            "Store them elsewhere, and pass the key or the address."
        )
    return question


def subjects_of(about: str | Sequence[str] | None, blocks: str | None) -> list[str]:
    """Return what a question is about: by default the resource that it blocks."""
    given = about if about is not None else blocks
    return people_of(given, "subject")


def must_fit(question: Question, answer: Any, what: str) -> None:
    """Raise `InvalidInput` that says what fits, if an answer does not."""
    if question.choices is not None and not any(same(answer, one) for one in question.choices):
        raise InvalidInput(
            f"{what} {answer!r:.80} is not a choice; nothing was written. Answer one of {question.choices!r}."
        )
    wrong = [] if question.schema is None else problems(question.schema, answer)
    if wrong:
        raise InvalidInput(f"{what} does not fit: {'; '.join(wrong)}. Nothing was written.")
