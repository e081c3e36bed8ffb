"""Compare what an agent says with what is known: questions, decisions, finished work. Pure functions on words, English only.

Nothing here knows what words mean. Two questions are the same if they ask for the same terms in the same way. A statement
contradicts another if it has the same terms with a negation more or less, or with another value of the same kind: a number, a
name, a code, a weekday, or one of a few lists of alternatives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tenuto.capabilities.memory import terms

_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_CLAUSE: Final = re.compile(r"[:;,]\s|\s[-\u2013\u2014]\s")
_TOKEN: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_PAST: Final = {
    "bought": "buy", "built": "build", "chose": "choose", "chosen": "choose", "did": "do", "done": "do", "drew": "draw",
    "drove": "drive", "found": "find", "gave": "give", "given": "give", "got": "get", "held": "hold", "kept": "keep",
    "left": "leave", "made": "make", "met": "meet", "paid": "pay", "ran": "run", "said": "say", "sent": "send", "sold": "sell",
    "spoke": "speak", "took": "take", "taken": "take", "told": "tell", "went": "go", "wrote": "write", "written": "write",
}  # fmt: skip
"""Past forms that share no stem with their verb."""
_UNCHANGED: Final = frozenset({"put", "set", "read", "cut", "run", "let"})
"""Verbs whose past looks like the present."""
_POLITE: Final = "tell know remind please give share say let want need like wish quick question exactly actually"
"""Words that ask without naming what is asked for."""
_FILLING: Final = "already still again yet two both anything anyone something someone somewhere going"
_ENDING: Final = frozenset({"from", "to", "in", "out", "on", "off", "before", "after", "with", "without", "for"})
_ASKS: Final = (
    ("count", re.compile(r"\bhow (?:many|much|old|long|far|big)\b")),
    ("often", re.compile(r"\bhow often\b")),
    ("time", re.compile(r"\b(?:when|(?:what|which) (?:time|date|day)|how soon|until when)\b")),
    ("place", re.compile(r"\bwhere\b")),
    ("person", re.compile(r"\b(?:who|whom|whose)\b")),
    ("why", re.compile(r"\bwhy\b")),
)
_ASKING: Final = "many much old long far big often time date day soon"
"""Words that ask for an amount or a time."""
_OPEN: Final = re.compile(r"\b(?:anything|anyone|something|someone)\?$", re.IGNORECASE)
_NEGATION: Final = re.compile(
    r"\b(?:not|never|no longer|don't|doesn't|won't|cannot|can't|shouldn't|instead of)\b|n't\b", re.IGNORECASE
)
_ALWAYS: Final = re.compile(r"\balways\b", re.IGNORECASE)
_RATHER: Final = re.compile(
    r"(?:,\s*(?:and |but )?not|\binstead of|\brather than) (?:the |a |at |in |on |by )?[\w$]+", re.IGNORECASE
)
"""What a statement excludes next to what it says."""
_ALTERNATIVES: Final = tuple(
    re.compile(rf"\b({line.replace(', ', '|')})s?\b")
    for line in (
        "monday, tuesday, wednesday, thursday, friday, saturday, sunday",
        "january, february, march, april, june, july, august, september, october, november, december",
        "red, blue, green, yellow, black, white, orange, purple, grey, gray, pink, brown",
        "aisle, window",
        "bank transfer, credit card, debit card, cash, cheque, paypal, invoice",
        "train, plane, bus, car, ferry, taxi, bike",
        "morning, afternoon, evening, noon, night",
        "weekly, daily, monthly, yearly, hourly",
        "email, phone, post, sms, fax, slack, chat",
        "small, medium, large",
        "breakfast, lunch, dinner",
        "left, right",
        "first class, business class, economy",
        "production, staging, development",
    )
)
_NUMBER: Final = re.compile(r"\d+")
_SPELLED: Final = "one two three four five six seven eight nine ten eleven twelve twenty thirty every daily weekly monthly noon midnight"
_COPULA: Final = frozenset({"is", "are", "was", "be", "as", "the", "a", "an", "with", "at", "in"})
_AGAIN: Final = re.compile(
    r"\b(?:start|begin|first|from scratch|re-?run|redo|repeat|start over|again|going back|step \d)", re.IGNORECASE
)
_DOING: Final = frozenset({"am", "are", "i'm", "we're", "is", "now", "next"})
_OVER: Final = frozenset({"was", "were", "took", "had", "has"})
_REPORTED: Final = frozenset({"did", "didn't", "not", "don't", "never", "no", "without", "cannot", "can't"})
_SAME: Final = 0.8
_MORE: Final = 3
_SHORT: Final = 6


class Question(NamedTuple):
    """A question, taken apart."""

    text: str
    asked: frozenset[str]
    """Its terms, without those that only ask."""
    way: str
    """What kind of answer it asks for: a time, a place, a person …; empty: anything."""
    ending: str
    """The preposition at its end, as in "fly from?"."""


class _Value(NamedTuple):
    """A value in a text: its kind, its terms, and the word before it."""

    kind: str
    terms: frozenset[str]
    before: str


class Statement(NamedTuple):
    """A statement, taken apart."""

    text: str
    terms: list[str]
    """Without what it excludes: "not JFK"."""
    negated: bool
    values: list[_Value]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [one.strip() for one in _SENTENCE.split(text) if one.strip()]


def questions(text: str) -> list[Question]:
    """Return the questions in a text that name something."""
    found = [_question(one) for one in sentences(text) if one.endswith("?")]
    return [one for one in found if one.asked]


def _question(text: str) -> Question:
    clauses = [one for one in _CLAUSE.split(text) if one.strip()]
    last = clauses[-1] if clauses and len(_asked(clauses[-1])) > 1 else text
    way = next((name for name, form in _ASKS if form.search(text.lower())), "")
    tokens = _TOKEN.findall(last.lower())
    ending = tokens[-1] if tokens and tokens[-1] in _ENDING else ""
    return Question(text, _asked(last) - (_stems(_ASKING) if way else frozenset()), way, ending)


def _asked(text: str) -> frozenset[str]:
    return frozenset(_terms(text)) - _stems(_POLITE) - _stems(_FILLING)


@functools.cache
def _stems(words: str) -> frozenset[str]:
    return frozenset(terms(words))


def _terms(text: str) -> list[str]:
    """Return the terms of a text, past forms as their verbs."""
    return terms(" ".join(_PAST.get(one, one) for one in _TOKEN.findall(text.lower().replace("\u2019", "'"))))


def same_question(asked: Question, before: Question) -> bool:
    """Return whether a question asks again for what another one asked for."""
    ours, theirs = asked.asked, before.asked
    if asked.way != before.way or (asked.ending != before.ending and asked.ending and before.ending):
        return False
    both = len(ours & theirs)
    if len(theirs) > 2 and both >= _SAME * len(theirs) and len(ours) <= len(theirs) + _MORE:
        return True
    return len(ours) > 1 and (ours == theirs or (ours < theirs and both >= 2 / 3 * len(theirs)))


def answers(memory: str, asked: Question) -> bool:
    """Return whether one statement of a memory has all terms of a question, and says more."""
    open_ended = bool(_OPEN.search(asked.text))
    for sentence in sentences(memory):
        said = frozenset() if sentence.endswith("?") else frozenset(_terms(sentence))
        if not asked.asked < said:
            continue
        if asked.way in ("count", "often") and not (_NUMBER.search(sentence) or said & _stems(_SPELLED)):
            continue
        if len(asked.asked) > 2 or (len(asked.asked) == 2 and len(said) <= _SHORT):
            return True
        if len(said) == 2 and (open_ended or asked.way in ("place", "person")):
            return True
    return False


def statement(text: str, value: str = "") -> Statement:
    """Take a statement apart. `value` is the part that is a value by definition: that of a preference."""
    plain = _RATHER.sub(" ", text) if _RATHER.search(text) else text
    values = list(_values(plain))
    if value:
        values.append(_Value("any", frozenset(_terms(value)), ""))
    return Statement(text, _terms(_ALWAYS.sub(" ", _NEGATION.sub(" ", plain))), bool(_NEGATION.search(plain)), values)


def contradicts(said: Statement, decided: Statement) -> bool:
    """Return whether a statement says the opposite of a decision, or the same with another value."""
    ours, theirs = set(said.terms), set(decided.terms)
    if len(ours) < len(theirs) or not theirs:
        return False
    if theirs <= ours:
        return len(theirs) > 1 and said.negated != decided.negated and len(said.terms) <= 2 * len(decided.terms) + 2
    if len(said.terms) > 2 * len(decided.terms) + 6:
        return False
    new = [one for one in said.values if not one.terms & theirs]
    for old in decided.values:
        frame = theirs - old.terms
        if not old.terms & ours and frame and frame <= ours and any(_replaces(one, old, len(frame)) for one in new):
            return True
    return _one_changed(said.terms, decided.terms)


def _one_changed(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Return whether a statement repeats a long one word for word, but for one."""
    if len(theirs) <= 3:
        return False
    for at in range(len(ours) - len(theirs) + 1):
        pairs = zip(ours[at : at + len(theirs)], theirs, strict=True)
        if sum(one != other for one, other in pairs) == 1:
            return True
    return False


def _values(text: str) -> Iterator[_Value]:
    """Yield the values of a text: numbers, names, codes such as LGA, and members of the lists of alternatives."""
    tokens = [(found[0], found.start()) for found in _TOKEN.finditer(text)]
    lowered = text.lower()
    at = 0
    while at < len(tokens):
        word, start = tokens[at]
        before = tokens[at - 1][0].lower() if at else ""
        end = at + 1
        if any(map(str.isdigit, word)):
            yield _Value("number", frozenset(_terms(word)), before)
        elif word.isupper() and len(word) > 1:
            yield _Value("code", frozenset(_terms(word)), before)
        elif word[0].isupper() and at and word not in ("I", "I'll", "I'm", "I've") and not _begins(text, start):
            while (
                end < len(tokens)
                and tokens[end][0][0].isupper()
                and tokens[end][1] == tokens[end - 1][1] + len(tokens[end - 1][0]) + 1
            ):
                end += 1
            yield _Value("name", frozenset(_terms(" ".join(one for one, _ in tokens[at:end]))), before)
        at = end
    for number, alternatives in enumerate(_ALTERNATIVES):
        for found in alternatives.finditer(lowered):
            yield _Value(f"list {number}", frozenset(_terms(found[1])), "")


def _begins(text: str, start: int) -> bool:
    """Return whether a sentence begins here."""
    return text[:start].rstrip()[-1:] in ("", ".", "!", "?", ":", "\n")


def _replaces(new: _Value, old: _Value, frame: int) -> bool:
    """Return whether a value stands where another one stood. In a frame of one term, a name has to be said of it."""
    if not new.terms or new.terms == old.terms:
        return False
    alike = old.kind in (new.kind, "any") or {new.kind, old.kind} == {"name", "code"}
    return alike and (frame > 1 or new.kind != "name" or new.before in _COPULA)


def restarts(sentence: str, action: str) -> bool:
    """Return whether a sentence says that an action is about to be done, or is being done: not that it was."""
    wanted = terms(action.replace("_", " "))
    tokens = _TOKEN.findall(sentence.lower().replace("\u2019", "'"))
    if not wanted or not set(wanted) <= set(_terms(sentence)):
        return False
    return any(_is_doing(tokens, at, sentence) for at, one in enumerate(tokens) if wanted[0] in _terms(one))


def _is_doing(tokens: Sequence[str], at: int, sentence: str) -> bool:
    """Return whether a form of a verb in a sentence speaks of the present or the future."""
    word, earlier = tokens[at], tokens[max(at - 3, 0) : at]
    if _REPORTED & set(earlier):
        return False
    if word in _PAST or word.endswith("ed"):
        return earlier[-2:] == ["to", "be"]
    if word.endswith("ing"):
        over = _OVER & set(tokens[at + 1 : at + 6])
        return not over and (bool(_AGAIN.search(sentence)) or bool(earlier and earlier[-1] in _DOING))
    if word in _UNCHANGED:
        return bool({"will", "i'll", "we'll", "me", "let's", "to"} & set(earlier))
    if word.endswith("s") and not word.endswith("ss"):
        return False
    return not word.endswith("ion") or bool(_AGAIN.search(sentence))
