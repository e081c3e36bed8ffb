"""The guard: signs that an agent has lost its context, found offline while they happen or over a whole thread.

It owns no keys and writes nothing: it compares with the messages, tool calls and decisions of the thread, the user's
preferences and their workflows. It compares words, not meanings, and says only what it can show evidence for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from tenuto import shapes
from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities.context import masking
from tenuto.capabilities.context.sources import Sources
from tenuto.capabilities.memory import terms
from tenuto.capabilities.threads import Message, Thread
from tenuto.hooks.events import SignFound
from tenuto.kernel import correlation, keys

SignKind = Literal["repeated_call", "repeated_question", "contradiction", "restarted_work", "known_answer"]
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_NEGATION: Final = re.compile(
    r"\b(?:not|never|no longer|don't|doesn't|won't|cannot|can't|shouldn't|instead of)\b|n't\b", re.IGNORECASE
)
_BEGINS: Final = re.compile(
    r"\b(?:start(?:ing)?|begin(?:ning)?|first|step 1|from scratch|let me|i'll|i will)\b", re.IGNORECASE
)
_TOKEN: Final = re.compile(r"[^\s,.;:!?()\"]+")
_SAME: Final = 0.8
"""A question that has this share of the terms of an earlier one, and not many more, is the same."""
_MORE: Final = 3
_ENOUGH: Final = 3
"""A question with fewer terms is small talk."""
_DECISIONS: Final = 200
_FEW: Final = 2
"""The fewest terms of a question that is looked up in memory, where all of them have to be found."""
_ASKING: Final = "tell know remind please give share say let want need"
"""Words that ask without naming what is asked for."""
_SHORT: Final = 6
"""A memory that answers a question of so few terms has up to this many: in a long one they meet by chance."""


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
    """Looks for signs of lost context in one thread."""

    def __init__(self, context: Context, sources: Sources, thread: str, user: str | None = None) -> None:
        self._context = context
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
        return self._reported([*self._known().of_text(text, None), *self._in_memory(text)])

    def scan(self) -> list[Sign]:
        """Return the signs in the whole thread, oldest first."""
        return Known(self).read(self._thread._numbered()[1])

    def _known(self, through: int | None = None, last: int | None = None) -> Known:
        """Return what is known of the thread up to a message, of its last messages alone if `last` is given."""
        known = Known(self)
        after = 0 if last is None else max((through or self._thread.count()) - last, 0)
        known.read([one for one in self._thread._numbered(after)[1] if through is None or one[0] <= through])
        return known

    def _in_memory(self, text: str) -> Iterator[Sign]:
        """Yield the questions in a text whose answer the user's preferences or memories have: they have all of its terms."""
        if self._user is None:
            return
        stated = [
            (f"{key}: {value}", f"preference {key}") for key, value in self._sources.users[self._user].items().items()
        ]
        for question in _questions(text, _FEW):
            asked = set(terms(question)).difference(terms(_ASKING))
            if len(asked) < _FEW:
                continue
            found = self._sources.memory.recall(question, 3, user=self._user, neighbours=0)
            texts = [(one.memory.text, f"memory {one.memory.id}") for one in found if one.memory.user == self._user]
            answers = [one for one in stated if asked <= set(terms(one[0]))]
            answers += [one for one in texts if _answers(one[0], asked)]
            if answers:
                known, where = answers[0]
                yield Sign("known_answer", question, where, known)

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
        self._questions: list[tuple[set[str], str, int, list[str]]] = []
        sources, user = guard._sources, guard._user
        sources.memory._must_be_theirs(guard._thread.id, user)
        self._decided = [
            (one.text, f"decision {one.number}: {one.text}") for one in guard._thread._newest_decisions(_DECISIONS)
        ]
        if user is not None:
            items = sources.users[user].items()
            self._decided += [(f"{value} {key}", f"preference {key}: {value}") for key, value in items.items()]
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
            for call, text in masking.results_of(message):
                if call in self._ids:
                    self.calls[self._ids[call]] = (self.calls[self._ids[call]][0], text)
            for call_made in masking.calls_of(message):
                args = shapes.arguments(call_made.arguments)
                found += self.of_call(call_made.name, args, number, done=live or call_made.name in self._names)
                self._names.add(call_made.name)
                self._ids[call_made.id] = call_text(call_made.name, args)
                self.calls.setdefault(call_text(call_made.name, args), (f"message {number}", None))
            text = _text(message)
            if message.get("role") == "assistant":
                found += self.of_text(text, number)
                self._questions += [(set(terms(one)), one, number, []) for one in _questions(text)]
            elif message.get("role") == "user" and text:
                for _, _, _, answers in self._questions[-3:]:
                    answers.append(text)
        return found

    def of_call(self, name: str, args: Any, number: int | None, *, done: bool) -> Iterator[Sign]:
        """Yield the signs in a tool call; `done`: a call of a completed action is a restart."""
        known = self.calls.get(call_text(name, args))
        if known is not None:
            where, result = known
            yield Sign("repeated_call", call_text(name, args), f"the same call is {where}", result, number)
        elif done and name in self._done:
            where, result = self._done[name]
            yield Sign("restarted_work", call_text(name, args), where, result, number)

    def of_text(self, text: str, number: int | None) -> Iterator[Sign]:
        """Yield the signs in a text of the agent."""
        for sentence in _questions(text):
            asked = set(terms(sentence))
            for before, original, at, answers in self._questions:
                if answers and len(asked & before) >= _SAME * len(before) and len(asked) <= len(before) + _MORE:
                    evidence = f"message {at} asked: {original}"
                    yield Sign("repeated_question", sentence, evidence, answers[0], number)
                    break
        for sentence in _SENTENCE.split(text):
            if sentence.rstrip().endswith("?"):
                continue
            for decided, where in self._decided:
                if _contradicts(sentence, decided):
                    yield Sign("contradiction", sentence, where, decided, number)
            for action, (where, result) in self._done.items():
                wanted = set(terms(action.replace("_", " ")))
                if wanted and wanted <= set(terms(sentence)) and _BEGINS.search(sentence):
                    yield Sign("restarted_work", sentence, where, result, number)


def _answers(memory: str, asked: set[str]) -> bool:
    """Return whether one statement of a memory has all terms of a question, and says more."""
    for sentence in _SENTENCE.split(memory):
        said = set() if sentence.rstrip().endswith("?") else set(terms(sentence))
        if asked < said and (len(asked) > _FEW or len(said) <= _SHORT):
            return True
    return False


def _contradicts(sentence: str, decided: str) -> bool:
    """Return whether a sentence says the opposite of a decision, or the same with one value replaced."""
    ours, theirs = terms(_NEGATION.sub(" ", sentence)), terms(_NEGATION.sub(" ", decided))
    if len(theirs) < 2 or len(ours) < len(theirs):
        return False
    if set(theirs) <= set(ours):
        return bool(_NEGATION.search(sentence)) != bool(_NEGATION.search(decided)) and len(ours) <= 2 * len(theirs) + 2
    values = {one for text in (sentence, decided) for one in _values(text)}
    for at in range(len(ours) - len(theirs) + 1):
        pairs = zip(ours[at : at + len(theirs)], theirs, strict=True)
        changed = [(one, other) for one, other in pairs if one != other]
        if len(changed) == 1:
            one, other = changed[0]
            if (one in values and other in values) or len(theirs) > _ENOUGH:
                return True
    return False


def _values(text: str) -> Iterator[str]:
    """Yield the terms of numbers, names and codes such as LGA: what decisions are about."""
    for at, token in enumerate(_TOKEN.findall(text)):
        if any(map(str.isdigit, token)) or (token[0].isupper() and (at or (token.isupper() and len(token) > 1))):
            yield from terms(token)


def _questions(text: str, least: int = _ENOUGH) -> list[str]:
    found = [one.strip() for one in _SENTENCE.split(text) if one.rstrip().endswith("?")]
    return [one for one in found if len(set(terms(one))) >= least]


def _text(message: Message) -> str:
    said = shapes.said_in(message)
    return "" if said is None else " ".join(one.text for one in said.parts if isinstance(one, shapes.Text))


def call_text(name: str, args: Any) -> str:
    """Return a tool call as a text: equal calls have equal texts."""
    return f"{name}({json.dumps(args, sort_keys=True, ensure_ascii=False, default=repr)})"
