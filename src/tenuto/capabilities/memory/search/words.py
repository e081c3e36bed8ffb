"""Words: the terms of a text, as search compares them.

A term is a word in lower case, without accents, reduced to its stem by SQLite's Porter stemmer, which apsw brings along.
Stop words have no term. Scripts without spaces between words are indexed by character.
"""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from typing import Any, Final

STOP: Final = frozenset(
    """a about above after again against all am an and any are as at be because been before being below between both but by
    can could did do does doing down during each few for from further had has have having he her here hers herself him
    himself his how i if in into is it its itself just me more most my myself no nor not now of off on once only or other
    our ours out over own same she should so some such than that the their theirs them then there these they this those
    through to too under until up very was we were what when where which while who whom why will with would you your yours
    yourself s t d ll m re ve don didn isn doesn wasn weren hasn haven hadn won wouldn couldn shouldn""".split()  # noqa: SIM905 - readable so
)
ASKING: Final = frozenset("many much long often kind type likely might".split())  # noqa: SIM905
"""Words that ask for something without naming it; they are left out of queries."""
_WORD: Final = re.compile(r"[^\W_]+")
_ASCII: Final = "".join(chr(one).lower() if chr(one).isalnum() else " " for one in range(128))
"""What a translation of ASCII makes of each character: three times as fast as the regular expression."""
_NO_SPACES: Final = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_KNOWN: Final = 200_000
_stems: dict[str, str] = dict.fromkeys(STOP, "")
_lock = threading.Lock()
_tokenizers: list[Any] = []


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _tokenizers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def words(text: str) -> list[str]:
    """Return the words of a text, in order, in lower case and without accents."""
    if text.isascii():
        return text.translate(_ASCII).split()
    decomposed = unicodedata.normalize("NFKD", text.lower().replace("\u2019", "'"))
    plain = "".join(one for one in decomposed if not unicodedata.combining(one))
    return _WORD.findall(_NO_SPACES.sub(lambda found: f" {found[0]} ", plain))


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order."""
    return stems(words(text))


def stems(given: list[str]) -> list[str]:
    """Return the terms of words in lower case, in order."""
    found = list(map(_stems.get, given))
    if None in found:
        missing = [at for at, term in enumerate(found) if term is None]
        _learn({given[at] for at in missing})
        for at in missing:
            found[at] = _stems.get(given[at], given[at])
    return [term for term in found if term]


def meet(text: str) -> None:
    """Learn the stems of all words of a large text in one call, which is cheaper than text by text."""
    _learn(set(words(text)))


def stem(word: str) -> str:
    """Return the stem of one word in lower case."""
    _learn({word})
    return _stems.get(word, word) or word


def _learn(unknown: set[str]) -> None:
    """Look up the stems of words that are not known, in one call; numbers have none."""
    import apsw  # noqa: PLC0415 - a client without SQLite loads it with its first memory

    asked = sorted(word for word in unknown if word not in _stems and not word.isdecimal())
    if not asked:
        return
    with _lock:
        if not _tokenizers:
            _tokenizers.append(apsw.Connection(":memory:").fts5_tokenizer("porter", ["ascii"]))
        if len(_stems) > _KNOWN:
            _stems.clear()
            _stems.update(dict.fromkeys(STOP, ""))
        said: list[str] = _tokenizers[0](
            " ".join(asked).encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
        )
        _stems.update(zip(asked, said, strict=True))
