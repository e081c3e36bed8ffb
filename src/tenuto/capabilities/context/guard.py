"""The guard: signs that an agent has lost its context, found offline while they happen or over a whole thread.

It owns no keys and writes nothing: it compares with the messages, tool calls and decisions of the thread, the user's
preferences and their workflows. It compares words, not meanings, and says only what it can show evidence for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from tenuto import shapes
from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities.context import masking
from tenuto.capabilities.context.sources import Sources
from tenuto.capabilities.context.statements import (
    Question,
    answers,
    contradicts,
    questions,
    restarts,
    same_question,
    sentences,
    statement,
)
from tenuto.capabilities.threads import Message, Thread
from tenuto.errors import InvalidInput
from tenuto.hooks.events import SignFound
from tenuto.kernel import correlation, keys

SignKind = Literal["repeated_call", "repeated_question", "contradiction", "restarted_work", "known_answer"]
_DECISIONS: Final = 200
_QUERY: Final = 1_000
"""Memories are searched by the beginning of a question."""


class Sign(NamedTuple):
    """A sign of lost context."""

    kind: SignKind
    text: str
    """What was said or called."""
    evidence: str
    """What it repeats or contradicts, and where that is."""
    remembered: Any = None
    """The result or the answer that is already known, if any."""
    message: int | None = None
    """The number of the message in the thread; None if it is not in the thread yet."""


class Guard(Timed):
    """Looks for signs of lost context in one thread.

    With `user` it compares with that user's preferences and workflows, too. `changing` names tools whose equal calls may
    return something else, such as a test run: they may be repeated.
    """

    def __init__(
        self, context: Context, sources: Sources, thread: str, user: str | None = None, changing: Iterable[str] = ()
    ) -> None:
        self._context = context
        self._changing = frozenset(changing)
        self._sources = sources
        self._user = None if user is None else keys.name(user, "user")
        self._thread = Thread(sources.threads, thread, user=None, ttl=None)

    def tool_call(self, name: str, args: Any) -> list[Sign]:
        """Return the signs in a tool call that is about to be made; `remembered` has the result of the same call before."""
        known = self._known()
        for call in self._thread.tool_calls():
            known.calls[call_text(call.name, call.args)] = (f"tool call {call.number} of the thread", call.result)
        return self._reported(known.of_call(name, args, None, done=True))

    def say(self, text: str) -> list[Sign]:
        """Return the signs in something that the agent is about to say."""
        if not isinstance(text, str):
            raise InvalidInput(f"A guard looks at texts, not at {type(text).__name__}.")
        return self._reported([*self._known().of_text(text, None), *self._in_memory(text)])

    def scan(self) -> list[Sign]:
        """Return the signs in the whole thread, oldest first."""
        return Known(self).read(self._thread._numbered()[1])

    def _known(self, through: int | None = None, last: int | None = None) -> Known:
        """Return what is known of the thread up to a message, of its last messages alone if `last` is given."""
        known = Known(self)
        after = 0 if last is None else max((through or self._thread.count()) - last, 0)
        for number, message in self._thread._numbered(after)[1]:
            if through is None or number <= through:
                known.take(number, message)
        return known

    def _in_memory(self, text: str) -> Iterator[Sign]:
        """Yield the questions in a text whose answer the user's preferences or memories have: they have all of its terms."""
        if self._user is None:
            return
        preferred = self._sources.users[self._user].items().items()
        stated = [(f"{key}: {value}", f"preference {key}") for key, value in preferred]
        for question in questions(text):
            found = self._sources.memory.recall(question.text[:_QUERY], 3, user=self._user, neighbours=0)
            texts = [(one.memory.text, f"memory {one.memory.id}") for one in found if one.memory.user == self._user]
            known = [one for one in stated if question.asked <= set(statement(one[0]).terms)]
            known += [one for one in texts if answers(one[0], question)]
            if known:
                yield Sign("known_answer", question.text, known[0][1], known[0][0])

    def _reported(self, signs: Iterable[Sign]) -> list[Sign]:
        """Report signs to the client's hooks; return them."""
        found = list(signs)
        for one in found:
            event = SignFound(one.kind, self._thread.id, self._user, one.text, one.evidence, correlation.current())
            self._context.report(event)
        return found


class Known:
    """What is known at a point of a conversation."""

    def __init__(self, guard: Guard) -> None:
        self.calls: dict[str, tuple[str, Any]] = {}
        """Where a call was made, and its result."""
        self._ids: dict[str, str] = {}
        self._names: set[str] = set()
        self._questions: list[tuple[Question, int, list[str]]] = []
        sources, user = guard._sources, guard._user
        self._changing = guard._changing
        sources.memory._must_be_theirs(guard._thread.id, user)
        self._decided = [
            (statement(one.text), f"decision {one.number}: {one.text}")
            for one in guard._thread._newest_decisions(_DECISIONS)
        ]
        if user is not None:
            items = sources.users[user].items()
            self._decided += [
                (statement(f"{value} {key}", str(value)), f"preference {key}: {value}") for key, value in items.items()
            ]
        flows = sources.workflows.list("active", user) if user is not None else []
        self._done = {
            step.action: (f"step {step.step} of the workflow {flow.name!r} is {step.status}", step.result)
            for flow in flows
            for step in flow.steps
            if step.status == "completed"
        }

    def read(self, messages: Sequence[tuple[int, Message]], *, live: bool = False) -> list[Sign]:
        """Take up messages in order; return the signs in them. `live`: their calls are about to be made."""
        found: list[Sign] = []
        for number, message in messages:
            found += self.take(number, message, live=live, look=True)
        return found

    def take(self, number: int, message: Message, *, live: bool = False, look: bool = False) -> list[Sign]:
        """Take up a message; with `look`, return the signs in it."""
        found: list[Sign] = []
        for call, text in masking.results_of(message):
            if call in self._ids:
                self.calls[self._ids[call]] = (self.calls[self._ids[call]][0], text)
        for made in masking.calls_of(message):
            args = shapes.arguments(made.arguments)
            if look:
                found += self.of_call(made.name, args, number, done=live or made.name in self._names)
            self._names.add(made.name)
            self._ids[made.id] = call_text(made.name, args)
            self.calls.setdefault(self._ids[made.id], (f"message {number}", None))
        text = _text(message)
        if message.get("role") == "assistant":
            if look:
                found += self.of_text(text, number)
            self._questions += [(one, number, []) for one in questions(text)]
        elif message.get("role") == "user" and text:
            for _, _, replies in self._questions[-3:]:
                replies.append(text)
        return found

    def of_call(self, name: str, args: Any, number: int | None, *, done: bool) -> Iterator[Sign]:
        """Yield the signs in a tool call; `done`: a call of a completed action is a restart."""
        known = self.calls.get(call_text(name, args))
        if known is not None and name not in self._changing:
            where, result = known
            yield Sign("repeated_call", call_text(name, args), f"the same call is {where}", result, number)
        elif done and name in self._done:
            where, result = self._done[name]
            yield Sign("restarted_work", call_text(name, args), where, result, number)

    def of_text(self, text: str, number: int | None) -> Iterator[Sign]:
        """Yield the signs in a text of the agent."""
        for question in questions(text):
            for before, at, replies in self._questions:
                if replies and same_question(question, before):
                    evidence = f"message {at} asked: {before.text}"
                    yield Sign("repeated_question", question.text, evidence, replies[0], number)
                    break
        for sentence in sentences(text):
            if sentence.endswith("?"):
                continue
            said = statement(sentence) if self._decided else None
            for decided, where in self._decided:
                if said is not None and contradicts(said, decided):
                    yield Sign("contradiction", sentence, where, decided.text, number)
            for action, (where, result) in self._done.items():
                if restarts(sentence, action):
                    yield Sign("restarted_work", sentence, where, result, number)


def _text(message: Message) -> str:
    said = shapes.said_in(message)
    return "" if said is None else " ".join(one.text for one in said.parts if isinstance(one, shapes.Text))


def call_text(name: str, args: Any) -> str:
    """Return a tool call as a text: equal calls have equal texts."""
    given = shapes.arguments(args) if isinstance(args, str) else args
    return f"{name}({json.dumps(_alike({} if given is None else given), sort_keys=True, ensure_ascii=False, default=repr)})"


def _alike(value: Any) -> Any:
    """Return arguments with whole numbers as ints: JSON does not tell 3 from 3.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _alike(one) for key, one in value.items()}
    return [_alike(one) for one in value] if isinstance(value, list | tuple) else value
