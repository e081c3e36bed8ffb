"""What makes a text a good answer, as data: one weight for each feature, in one profile for each kind of source.

The lexical features are BM25 scores divided by the highest of the query; the others are 0 or 1, or as described.
The weights for people were fitted by regression on conversations between two named people. A prototype with the same
weights lost at most two points of recall on conversations that were not used for it. Those for assistants differ where
that data has no answer: a user's own words count more than the reply.
Those for facts are for memories: each is found by its own words, and by how much of its document or conversation fits.
With an embedder the dense similarity takes over a part of what neighbours and tails tell, so those weights are lower.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Profile(NamedTuple):
    """The weights of the features."""

    own: float = 0.0
    """BM25 of the text itself."""
    before: float = 0.0
    after: float = 0.0
    before2: float = 0.0
    after2: float = 0.0
    """BM25 of the neighbours at one and at two places."""
    context: float = 0.0
    """BM25 of the text together with the end of the text before it."""
    answer: float = 0.0
    """BM25 of the text before, if that is a question."""
    session: float = 0.0
    """BM25 of the session: messages without a long pause between them, or a file."""
    speaker: float = 0.0
    """The question names exactly one speaker, and it is this one."""
    user: float = 0.0
    """The user said it, not the assistant."""
    date: float = 0.0
    """The question names a date, and the text is of that date (0 to 1.6)."""
    event: float = 0.0
    """The question names a date, and the text refers to it: "last Friday"."""
    when: float = 0.0
    """The question asks when, and the text names a time."""
    question: float = 0.0
    """The text is a short question."""
    length: float = 0.0
    """Terms of the text, up to 25, divided by 25."""
    dense: float = 0.0
    """Similarity of the text with the end of the text before it to the question, scaled from 0 to 1."""
    dense_text: float = 0.0
    """The same of the text alone."""
    dense_before: float = 0.0
    dense_after: float = 0.0
    dense_answer: float = 0.0
    dense_session: float = 0.0
    """The same of the neighbours, of a question before it, and of the best text of the session."""


class Profiles(NamedTuple):
    """The profiles of one rung: without an embedder, or with one."""

    people: Profile
    assistant: Profile
    facts: Profile


_PEOPLE: Final = Profile(
    own=1.2, before=-2.05, after=0.75, before2=1.65, after2=0.75, context=3.9, answer=2.95, session=2.75, speaker=1.0,
    date=3.65, event=1.45, when=2.4,
)  # fmt: skip
_FACTS: Final = Profile(own=5.0, session=1.0, date=2.0, event=1.0, when=1.0)

WORDS: Final = Profiles(_PEOPLE, _PEOPLE._replace(user=3.0), _FACTS)
"""Without an embedder."""

BM25: Final = Profiles(Profile(own=1.0), Profile(own=1.0), Profile(own=1.0))
MEANING: Final = Profiles(Profile(dense=1.0), Profile(dense=1.0), Profile(dense=1.0))
"""The words, or the vectors, of each text alone: what the other profiles are measured against."""

STATIC: Final = Profiles(
    Profile(
        own=0.65, before=-1.15, after=0.15, before2=1.45, after2=0.55, context=2.85, answer=1.2, session=2.25,
        speaker=1.05, date=3.55, event=1.25, when=2.15, question=-1.2, length=0.95, dense=3.0, dense_before=-0.95,
        dense_after=0.65, dense_answer=1.15, dense_session=0.85,
    ),
    Profile(own=3.0, before=0.6, after=0.6, user=1.5, dense=7.0, dense_before=1.4, dense_after=1.4),
    _FACTS._replace(dense=4.0),
)  # fmt: skip
"""With vectors of single words, averaged."""

SENTENCES: Final = Profiles(
    Profile(
        own=0.5, before=-1.1, after=0.15, before2=1.1, after2=0.45, context=2.65, answer=1.2, session=2.2, speaker=1.0,
        date=3.45, event=1.2, when=2.2, question=-1.35, length=0.75, dense=2.5, dense_text=2.0, dense_before=-0.85,
        dense_after=0.75, dense_answer=1.15, dense_session=0.7,
    ),
    Profile(own=3.0, before=0.6, after=0.6, user=1.5, dense_text=7.0, dense_before=0.7, dense_after=0.7),
    _FACTS._replace(own=4.0, dense=3.0, dense_text=3.0),
)  # fmt: skip
"""With a model of whole sentences."""
