"""Operations on the questions in the inbox, and on the groups that they are asked of."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.people import Happened, NotHappened, Question, QuestionEvent, QuestionStatus
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.operations.table import Done, Value, operation

QuestionId = Annotated[str, "Question id, or id of a run with one open question"]


def _question(agent: Tenuto, given: str) -> str:
    """Return the question id for a question id, or for a run with exactly one open question."""
    asked = agent.inbox.list(run=given)
    return asked[0].id if len(asked) == 1 else given


@operation("inbox list", "id", "text", "to", "run", "deadline", "due")
def inbox_list(
    agent: Tenuto,
    *,
    to: Annotated[str | None, "Only questions to this person or team"] = None,
    status: Annotated[QuestionStatus, "Only questions with this status; pending: without an answer"] = "pending",
    blocks: Annotated[str | None, "Only questions that block this resource"] = None,
    limit: Annotated[int, "Maximum number of questions"] = 100,
    after: Annotated[str | None, "Start after the question with this id"] = None,
) -> list[Question]:
    """List questions; by default those without an answer."""
    return agent.inbox.list(to, status, blocks=blocks, limit=limit, after=after)


@operation("inbox ask", "id", writes=True)
def inbox_ask(  # noqa: PLR0913 - the options of a question
    agent: Tenuto,
    question: Annotated[str, "What a person should decide"],
    *,
    to: Annotated[str | None, "Person or team"] = None,
    choices: Annotated[list[str] | None, 'The only possible answers, as a JSON list, e.g. ["yes", "no"]'] = None,
    schema: Annotated[Any, "JSON Schema of the answer, instead of choices"] = None,
    context: Annotated[Any, "What they need to decide, JSON or text"] = None,
    deadline: Annotated[str | None, 'When the answer is due, e.g. "24h"; then on_timeout applies'] = None,
    escalate: Annotated[Any, 'Who is asked when the time is up, as a JSON list, e.g. ["lead", "cfo"]'] = None,
    on_timeout: Annotated[Literal["wait", "deny", "fail"], "What then happens; wait: keep waiting"] = "wait",
    blocks: Annotated[str | None, "Resource whose gate stays closed until the answer, e.g. invoice:881"] = None,
    about: Annotated[str | None, "Subject, for routes and for the last outcome"] = None,
    policy: Annotated[str | None, "The rule that applies"] = None,
    quorum: Annotated[int, "How many people must give the same answer"] = 1,
    key: Annotated[str | None, "Idempotency key: a question with the same key is asked once"] = None,
) -> Question:
    """Ask people a question durably; print its id at once. Read the answer with: tenuto inbox show ID."""
    if choices is not None and (not isinstance(choices, list) or not choices):
        raise InvalidInput('choices must be a list, such as ["yes", "no"]; nothing was asked.')
    return agent.ask(
        question, to=to, choices=choices, schema=schema, context=context, deadline=deadline, escalate=escalate or [],
        on_timeout=on_timeout, blocks=blocks, about=about, policy=policy, quorum=quorum, key=key,
    )  # fmt: skip


@operation("inbox show")
def inbox_show(agent: Tenuto, question: QuestionId) -> Question:
    """Show a question with its details and its answer."""
    return agent.inbox.get(_question(agent, question))


@operation("inbox history", "at", "what", "by", "details")
def inbox_history(agent: Tenuto, question: QuestionId) -> list[QuestionEvent]:
    """List everything that happened to a question: asked, warned, escalated, notified, answered."""
    return list(agent.inbox.history(_question(agent, question)))


@operation("inbox acknowledge", writes=True)
def inbox_acknowledge(
    agent: Tenuto, question: QuestionId, *, by: Annotated[str, "Name of the person who looks after it"]
) -> Question:
    """Acknowledge a question: it is not escalated any further."""
    return agent.inbox.acknowledge(_question(agent, question), by=by)


@operation("inbox answer", writes=True)
def inbox_answer(
    agent: Tenuto,
    question: QuestionId,
    answer: Value,
    *,
    by: Annotated[str | None, "Name of the person who answers"] = None,
    result: Annotated[Any, "Result of a step in doubt that happened, JSON or text"] = None,
) -> Question:
    """Answer a question once; its run resumes. For a step in doubt answer happened or "not happened"."""
    if answer == "happened" and result is not None:
        answer = Happened(result)
    elif answer == "not happened":
        answer = NotHappened()
    return agent.inbox.answer(_question(agent, question), answer, by=by)


@operation("inbox cancel", asks="Cancel the question {question!r}?")
def inbox_cancel(agent: Tenuto, question: QuestionId, *, by: Annotated[str | None, "Who cancels"] = None) -> Question:
    """Cancel a question; its run resumes with an error."""
    return agent.inbox.cancel(_question(agent, question), by=by)


class Group(NamedTuple):
    """A group and its members."""

    name: str
    members: list[str]


@operation("groups list", "name", "members")
def groups_list(
    agent: Tenuto,
    *,
    limit: Annotated[int, "Maximum number of rows"] = 100,
    after: Annotated[str | None, "Start after the group with this name"] = None,
) -> list[Group]:
    """List the groups: who may answer the questions to them."""
    found = [Group(name, [*members]) for name, members in sorted(agent.inbox.groups().items())]
    return page_after(found, lambda one: one.name, after, limit)


@operation("groups set", writes=True)
def groups_set(
    agent: Tenuto,
    name: Annotated[str, "Name of the group"],
    members: Annotated[Any, 'All its members as a JSON list, e.g. ["ann", "bob"]; an empty list removes it'],
) -> Done:
    """Set the members of a group: only they may answer its questions. Without members, anyone may."""
    if not isinstance(members, list):
        raise InvalidInput('members must be a list, such as ["ann", "bob"]; nothing was written.')
    agent.inbox.group(name, members)
    return Done(changed=True)
