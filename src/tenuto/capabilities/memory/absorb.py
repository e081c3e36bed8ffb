"""From conversations to memories: rules that pick what people state explicitly. Pure functions, English only.

A rule takes one sentence of a message by a person. It looks for statements that are meant to last ("remember that",
"I prefer", "my … is", "from now on", "never"), and takes the sentence as it was said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tenuto.capabilities.memory.records import MemoryFields
from tenuto.capabilities.memory.turns import text_of, trust_of
from tenuto.capabilities.threads import Turn
from tenuto.errors import InvalidInput

Extract = Callable[[list[dict[str, Any]]], Iterable[Any]]
"""Gets the messages, each with its `number`, and returns texts or dicts with `text` and the fields of a memory."""


class Derived(NamedTuple):
    """A memory that was found in a message."""

    text: str
    message: int
    fields: dict[str, Any]


_RULES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "fact",
        re.compile(
            r"\b(?:please )?(?:remember|note|keep in mind|don'?t forget)(?: that|:)?\s+(?P<rest>.+)", re.IGNORECASE
        ),
    ),
    ("policy", re.compile(r"\b(?:from now on|going forward|always|never)\b.+", re.IGNORECASE)),
    (
        "preference",
        re.compile(
            r"\bI(?:'d| would)? (?:really |always |usually |much )?(?:prefer|like|love|hate|dislike|want)\b.+",
            re.IGNORECASE,
        ),
    ),
    (
        "preference",
        re.compile(r"\bI (?:don'?t|do not|can'?t|cannot) (?:like|eat|drink|want|stand|use)\b.+", re.IGNORECASE),
    ),
    ("fact", re.compile(r"\bmy (?:[\w'-]+ ){1,4}(?:is|are|was|has|have)\b.+", re.IGNORECASE)),
    (
        "fact",
        re.compile(
            r"\bI(?:'m| am) (?:allergic to|called|based in|from|married|vegetarian|vegan|a |an )\b.*", re.IGNORECASE
        ),
    ),
    ("fact", re.compile(r"\bI (?:live|work|study) (?:in|at|for|as|with)\b.+", re.IGNORECASE)),
    ("decision", re.compile(r"\b(?:we|I) (?:decided|agreed|will go with|chose)\b.+", re.IGNORECASE)),
)
FIELDS: Final = (*(one for one in MemoryFields.__annotations__ if one != "user"), "trust")
"""What a function may say of a memory besides its text and message."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_MOST: Final = 500


def by_rules(turns: Iterable[Turn]) -> list[Derived]:
    """Return the explicit statements of people in a conversation; questions are none."""
    found: list[Derived] = []
    for turn in turns:
        if trust_of(str(turn.message.get("role", ""))) != "person":
            continue
        for sentence in _SENTENCE.split(text_of(turn.message)):
            said = sentence.strip()
            if not said or said.endswith("?") or len(said) > _MOST:
                continue
            for kind, rule in _RULES:
                hit = rule.search(said)
                if hit is not None:
                    text = hit.groupdict().get("rest") or said
                    found.append(Derived(text.strip(), turn.number, {"kind": kind}))
                    break
    return found


def by_function(turns: list[Turn], extract: Extract) -> list[Derived]:
    """Return what the user's function takes from a conversation."""
    if not callable(extract):
        raise InvalidInput(f"extract must be a function of the messages, not {type(extract).__name__}.")
    said: Any = extract([{**turn.message, "number": turn.number} for turn in turns])
    if hasattr(said, "__await__"):
        getattr(said, "close", lambda: None)()
        raise TypeError("absorb needs a function that returns the memories, not a coroutine function.")
    if isinstance(said, str | bytes | Mapping) or not isinstance(said, Iterable):
        raise InvalidInput(
            f"extract returned {said!r:.80}; nothing was stored. Return a list: of texts, or of dicts with text and message."
        )
    last = turns[-1].number if turns else 0
    found: list[Derived] = []
    for one in said:
        if isinstance(one, str):
            found.append(Derived(one, last, {}))
        elif isinstance(one, Mapping) and isinstance(one.get("text"), str):
            fields = {key: value for key, value in one.items() if key not in ("text", "message", "source", "user")}
            unknown = [key for key in fields if key not in FIELDS]
            if unknown:
                raise InvalidInput(
                    f"extract returned the field {unknown[0]!r}; nothing was stored. Fields are {', '.join(FIELDS)}."
                )
            found.append(Derived(one["text"], one.get("message", last), fields))
        else:
            raise InvalidInput(
                f"extract returned {one!r:.80}; nothing was stored. Return texts, or dicts with text and message."
            )
    return found
