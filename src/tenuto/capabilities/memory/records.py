"""Memories as they are stored: their fields, their keys and what is valid.

Keys, below the tenant, where `home` is `(user, "memory")` for a user's memories and `("memories", "tenant")` for those of
the whole tenant: `(*home, "item", id)` is a memory; `(*home, "text", bag, exact)` finds duplicates by digests of the text;
`(*home, "fact", digest)` is the current memory of a subject and predicate; `("memories", "where", id)` tells whose a
memory is and what a `forget` selects by. The stream `home` is the journal: its lines have the form of the records.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from tenuto.capabilities._core.base import Context, stamp
from tenuto.capabilities.memory.search.words import terms
from tenuto.errors import InvalidInput, TooLarge
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Record
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.durations import ttl as ttl_seconds

Kind = Literal["fact", "preference", "event", "decision", "skill", "policy", "case"]
Trust = Literal["person", "tool", "model", "unknown"]
KINDS: Final = get_args(Kind)
RANKS: Final[tuple[Trust, ...]] = ("unknown", "model", "tool", "person")
TRUST: Final[dict[str, int]] = {name: rank for rank, name in enumerate(RANKS)}
MAX_TEXT: Final = 65_536
MAX_QUERY: Final = 10_000
_TENANT: Final = keys.pack("memories", "tenant")
WHERE: Final = keys.pack("memories", "where")
_MEMORY: Final = keys.pack("memory")
_ITEM, _TEXT, _FACT = keys.pack("item"), keys.pack("text"), keys.pack("fact")
_newest: Final = [0]
PUT, FORGOT = 0, 1
"""The kinds of journal lines: memories as they are from then on, and the ids of forgotten ones."""


class Source(NamedTuple):
    """Where a memory comes from: a message of a thread, a run, a file, or another memory."""

    thread: str | None = None
    message: int | None = None
    """The number of the message in the thread."""
    run: str | None = None
    step: int | None = None
    """The number of the operation in the run."""
    file: str | None = None
    heading: str | None = None
    memory: str | None = None


class Memory(NamedTuple):
    """Something an agent knows."""

    id: str
    text: str
    kind: str
    """fact, preference, event, decision, skill, policy or case; of a recalled message: turn."""
    user: str | None
    """Whose memory it is; None: of the whole tenant."""
    about: str | None
    predicate: str | None
    source: Source | None
    trust: Trust
    """Set by the store: who said it."""
    valid_from: datetime | None
    """When it began to be true, apart from when it was learned."""
    valid_until: datetime | None
    review_by: datetime | None
    expires_at: datetime | None
    meta: dict[str, Any] | None
    writer: str
    correlation_id: str | None
    learned_at: datetime
    seen: int = 1
    """How often it was remembered."""
    supersedes: str | None = None
    superseded_by: str | None = None
    superseded_at: datetime | None = None
    duplicate: bool = False
    """In the result of `remember`: it was known already, and nothing was added."""
    near: tuple[str, ...] = ()
    """In the result of `remember`: ids of memories that say almost the same, or that it contradicts."""


class MemoryFields(TypedDict, total=False):
    """The fields of a memory besides its text, for the signature of `run.remember`."""

    user: str | None
    kind: Kind
    about: str | None
    predicate: str | None
    valid_from: datetime | str | None
    valid_until: datetime | str | None
    review_by: datetime | str | None
    ttl: Duration | None
    meta: Mapping[str, Any] | None


class New(NamedTuple):
    """A memory to store, validated."""

    text: str
    user: str | None
    kind: str
    about: str | None
    predicate: str | None
    source: Source | None
    trust: int
    valid_from: float | None
    valid_until: float | None
    review_by: float | None
    ttl: float | None
    meta: dict[str, Any] | None


def new(  # noqa: PLR0913 - the fields of a memory
    text: str,
    *,
    trust: int,
    user: str | None = None,
    kind: str = "fact",
    about: str | None = None,
    predicate: str | None = None,
    source: Source | None = None,
    valid_from: datetime | str | None = None,
    valid_until: datetime | str | None = None,
    review_by: datetime | str | None = None,
    ttl: Duration | None = None,
    meta: Mapping[str, Any] | None = None,
) -> New:
    """Return a validated memory; `InvalidInput` says what is wrong."""
    if not isinstance(text, str):
        raise InvalidInput(f"A memory is a text, not {type(text).__name__}. Store other data with agent.state.set.")
    if not text.strip():
        raise InvalidInput("A memory must not be empty. Write what is to know as a sentence.")
    if len(text) > MAX_TEXT:
        raise TooLarge(
            f"A memory takes up to {MAX_TEXT:,} characters; this one has {len(text):,}. "
            "Load a document with agent.memory.load, or append it to a thread."
        )
    if "\x00" in text:
        raise InvalidInput("A memory is a text, and this one holds binary data. Store it with agent.state.set.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("A memory holds a lone surrogate, which is not text. Decode it properly first.") from None
    if kind not in KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}; not {kind!r}.")
    if predicate is not None and about is None:
        raise InvalidInput("A predicate needs a subject. Pass about= too.")
    if meta is not None and not isinstance(meta, Mapping):
        raise InvalidInput(f"meta must be a dict, not {type(meta).__name__}.")
    codec.encode({"meta": None if meta is None else dict(meta)})  # an error names the path from here
    begins, ends = instant(valid_from, "valid_from"), instant(valid_until, "valid_until")
    if begins is not None and ends is not None and begins >= ends:
        raise InvalidInput("valid_until must be after valid_from. Nothing was stored; swap the two.")
    return New(
        text.strip(),
        None if user is None else keys.name(user, "user"),
        kind,
        None if about is None else keys.name(about, "subject"),
        None if predicate is None else keys.name(predicate, "predicate"),
        source,
        trust,
        begins,
        ends,
        instant(review_by, "review_by"),
        ttl_seconds(ttl),
        None if meta is None else dict(meta),
    )


def instant(value: datetime | date | str | None, what: str) -> float | None:
    """Return a time in seconds since 1970: of an aware datetime, a date (midnight UTC), or text in ISO 8601."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                f"{what} must be a time such as 2026-05-01 or 2026-05-01T09:00Z, not {value!r}."
            ) from None
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
    if not isinstance(value, date):
        raise InvalidInput(f"{what} must be an aware datetime, a date, or text such as 2026-05-01, not {value!r}.")
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        raise InvalidInput(f"{what} must be an aware datetime. Pass one with a time zone, such as datetime.now(UTC).")
    at = value.timestamp()
    try:
        moment(at)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{what} must be in the years 1 to 9999 in UTC, not {value!r}.") from None
    return at


def source_of(given: Source | Mapping[str, Any] | None) -> Source | None:
    """Return a source, from one or from a dict of its fields."""
    if given is None or isinstance(given, Source):
        found = given
    else:
        unknown = set(given) - set(Source._fields) if isinstance(given, Mapping) else {"?"}
        if unknown:
            raise InvalidInput(f"A source has the fields {', '.join(Source._fields)}; not {given!r:.200}.")
        found = Source(**given)
    if found is None:
        return None
    for field, value in zip(Source._fields, found, strict=True):
        if value is not None and field in ("message", "step"):
            if type(value) is not int or value < (field == "message"):
                raise InvalidInput(f"The {field} of a source must be its number, not {value!r:.80}.")
        elif value is not None and (type(value) is not str or not value):
            raise InvalidInput(f"The {field} of a source must be a text, not {value!r:.80}.")
    if found.message is not None and found.thread is None:
        raise InvalidInput("A source with a message needs its thread. Pass source={'thread': …, 'message': …}.")
    return found


def home_of(user: str | None) -> bytes:
    """Return the key prefix, and the stream, of a user's memories, or of the tenant's."""
    return _TENANT if user is None else keys.named(user, "user") + _MEMORY


def items_of(home: bytes) -> bytes:
    """Return the key prefix of the memories of a home."""
    return home + _ITEM


def item_key(home: bytes, memory_id: str) -> bytes:
    """Return the key of a memory."""
    return home + _ITEM + keys.named(memory_id, "memory id")


def where_key(memory_id: str) -> bytes:
    """Return the key that tells whose a memory is."""
    return WHERE + keys.named(memory_id, "memory id")


def bag_key(home: bytes, text: str) -> bytes:
    """Return the key prefix of memories with the same terms in any order."""
    bag = codec.digest(" ".join(sorted(set(terms(text)))).encode())
    return home + _TEXT + keys.pack(bag)


def text_key(home: bytes, one: New | Memory, bag: bytes | None = None) -> bytes:
    """Return the key of a memory with this text, kind and subject, and this place in a file."""
    place = None if one.source is None else [one.source.file, one.source.heading]
    same = codec.pack([one.text, one.kind, one.about, one.predicate, place if place != [None, None] else None])
    return (bag or bag_key(home, one.text)) + keys.pack(codec.digest(same))


def fact_key(home: bytes, about: str, predicate: str) -> bytes:
    """Return the key of the current memory of a subject and predicate; a digest, so that forgetting leaves no name."""
    return home + _FACT + keys.pack(codec.digest(codec.pack([about, predicate])))


def new_id(now: float) -> str:
    """Return a new id. Ids sort by time, and those of one process in the order in which they were made."""
    # Without a lock, which a fork could leave held: two threads may get the same number, and differ at random.
    number = _newest[0] = max(int(now * 1_000_000), _newest[0] + 1)
    return f"{number:014x}{secrets.token_hex(6)}"


def made(context: Context, given: New, now: float) -> Memory:
    """Return a new memory, with its id, writer and times."""
    writer, correlation_id = stamp(context)
    return Memory(
        new_id(now),
        given.text,
        given.kind,
        given.user,
        given.about,
        given.predicate,
        given.source,
        trust_name(given.trust),
        _moment(given.valid_from),
        _moment(given.valid_until),
        _moment(given.review_by),
        None if given.ttl is None else moment(now + given.ttl),
        given.meta,
        writer,
        correlation_id,
        moment(now),
    )


def trust_name(rank: int) -> Trust:
    """Return the label of a rank of trust."""
    return RANKS[rank]


def stored(context: Context, *memories: Memory) -> bytes:
    """Return a journal line with these memories; with one it is also the memory's record."""
    return codec.encode([*stamp(context), PUT, [_fields(one) for one in memories]])


def forgot(context: Context, ids: list[str], reason: str) -> bytes:
    """Return the journal line of a `forget`: ids and a reason, no content."""
    return codec.encode([*stamp(context), FORGOT, [ids, reason]])


def whereabouts(memory: Memory) -> bytes:
    """Return the value of the record that finds a memory by what a `forget` selects."""
    thread, parent = (None, None) if memory.source is None else (memory.source.thread, memory.source.memory)
    return codec.encode([memory.user, memory.writer, thread, memory.about, parent])


def memory_in(record: Record) -> Memory | None:
    """Return the memory in a record of any kind, or None if it holds none."""
    parts = keys.unpack(record.key)
    home = keys.pack(*parts[:-2]) if len(parts) > 2 else b""
    is_item = home.endswith(_MEMORY) and record.key.startswith(items_of(home))
    return memory_of(record) if is_item else None


def memory_of(record: Record) -> Memory:
    """Return the memory in a record."""
    return restored(codec.decode(record.value)[3][0])


def restored(fields: list[Any]) -> Memory:
    """Return the memory of its stored fields."""
    (
        memory_id, text, kind, user, about, predicate, source, trust, begins, ends, review, expires, meta, writer,
        correlation_id, learned, seen, supersedes, superseded_by, superseded_at, *_,
    ) = fields  # fmt: skip
    return Memory(
        memory_id, text, kind, user, about, predicate, None if source is None else Source(*source), trust_name(trust),
        _moment(begins), _moment(ends), _moment(review), _moment(expires), meta, writer, correlation_id, moment(learned),
        seen, supersedes, superseded_by, _moment(superseded_at),
    )  # fmt: skip


def _fields(memory: Memory) -> list[Any]:
    source = None if memory.source is None else list(memory.source)
    return [
        memory.id, memory.text, memory.kind, memory.user, memory.about, memory.predicate, source, TRUST[memory.trust],
        _at(memory.valid_from), _at(memory.valid_until), _at(memory.review_by), _at(memory.expires_at), memory.meta,
        memory.writer, memory.correlation_id, memory.learned_at.timestamp(), memory.seen, memory.supersedes,
        memory.superseded_by, _at(memory.superseded_at),
    ]  # fmt: skip


def _moment(at: float | None) -> datetime | None:
    return None if at is None else moment(at)


def _at(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()
