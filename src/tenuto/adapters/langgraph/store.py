"""LangGraph's long-term memory: items by namespace and key, with filters, search and a time to live.

Keys, below the tenant: `("langgraph", "item", *namespace, key)` holds an item: its value, when it was made and
changed, its time to live and the vectors of its texts. The namespace is text, part by part, and the key is bytes,
so an item of a namespace and one of a namespace below it cannot be mistaken for each other.

All puts of a batch are one commit (of up to 400; more are several), made after its reads. An item past its time
to live is absent, to every operation. Reading renews it where LangGraph asks for that.

Searching goes through every item below the prefix. With an `index` the texts of items are embedded when they are
put and compared exactly; without one a query is matched by its words, the rarer the better.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.store.base import (
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from tenuto.capabilities.context import Context
from tenuto.errors import Conflict, Damaged, InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import Steps, backoff, settle

_ITEMS: Final = keys.pack("langgraph", "item")
_PAGE: Final = 1_000
_AT_ONCE: Final = 400
_WORD: Final = re.compile(r"\w+")

Vectors = dict[str, list[float]]
"""The vector of each text that was embedded."""


class Stored(NamedTuple):
    """An item as it is stored."""

    value: dict[str, Any]
    created: float
    updated: float
    ttl: float | None
    """In minutes, as LangGraph counts."""
    vectors: list[bytes]
    """Of its texts, as 32-bit floats."""


class Found(NamedTuple):
    """An item with its place."""

    namespace: tuple[str, ...]
    key: str
    record: Record
    stored: Stored

    def item(self) -> Item:
        """Return it as LangGraph knows it."""
        return Item(
            value=self.stored.value,
            key=self.key,
            namespace=self.namespace,
            created_at=moment(self.stored.created),
            updated_at=moment(self.stored.updated),
        )

    def scored(self, score: float | None) -> SearchItem:
        """Return it as an answer to a search."""
        made, changed = moment(self.stored.created), moment(self.stored.updated)
        return SearchItem(self.namespace, self.key, self.stored.value, made, changed, score)


class Items:
    """The items of a tenant."""

    def __init__(self, context: Context, index: IndexConfig | None) -> None:
        self._kernel = context.kernel
        self.embeddings = ensure_embeddings(index.get("embed")) if index else None
        given: Mapping[str, Any] = index or {}
        fields = given.get("fields") or given.get("text_fields") or ["$"]  # the SQLite and Postgres stores' word
        self._paths = [_path(path) for path in fields] if index else []

    # -- a batch -----------------------------------------------------------------------------------------------

    def texts(self, ops: Sequence[Op]) -> tuple[list[str], list[str]]:
        """Return the texts of items and the queries that must be embedded before a batch."""
        if self.embeddings is None:
            return [], []
        items = [text for op in ops if isinstance(op, PutOp) for text in self._texts_of(op)]
        queries = [op.query for op in ops if isinstance(op, SearchOp) and op.query]
        return list(dict.fromkeys(items)), list(dict.fromkeys(queries))

    def batch(self, ops: Sequence[Op], items: Vectors, queries: Vectors) -> Steps[list[Result]]:
        """Answer the reads of a batch, all before its puts; then make those, in one commit."""
        results: list[Result] = []
        renew: dict[bytes, Found] = {}
        puts: dict[bytes, PutOp] = {}
        for op in ops:
            if isinstance(op, GetOp):
                found = self._get(op)
                results.append(None if found is None else found.item())
                if found is not None and op.refresh_ttl:
                    renew[found.record.key] = found
            elif isinstance(op, SearchOp):
                ranked = self._search(op, queries)
                results.append([one.scored(score) for one, score in ranked])
                if op.refresh_ttl:
                    renew.update((one.record.key, one) for one, _ in ranked)
            elif isinstance(op, ListNamespacesOp):
                results.append(self._namespaces(op))
            elif isinstance(op, PutOp):
                puts[_key(op.namespace, op.key)] = op
                results.append(None)
            else:
                raise InvalidInput(f"A store takes get, put, search and list operations, not {type(op).__name__}.")
        yield from self._renew([found for found in renew.values() if found.stored.ttl is not None])
        wanted = list(puts.items())
        for start in range(0, len(wanted), _AT_ONCE):
            yield from self._put(dict(wanted[start : start + _AT_ONCE]), items)
        return results

    # -- putting -----------------------------------------------------------------------------------------------

    def _put(self, puts: Mapping[bytes, PutOp], vectors: Vectors) -> Steps[None]:
        for delay in backoff(None):
            now = self._kernel.now()
            checks: list[AnyCheck] = []
            writes: list[Write] = []
            for (key, op), there in zip(puts.items(), self._kernel.read(list(puts)), strict=True):
                checks.append(Check(key, there.version if there is not None else 0))
                if op.value is None:
                    writes.append(Delete(key))
                    continue
                created = _stored(there).created if there is not None else now
                held = [array("f", vectors[text]).tobytes() for text in self._texts_of(op)]
                stored = Stored(dict(op.value), created, now, op.ttl, held)
                writes.append(Put(key, codec.encode(list(stored)), None if op.ttl is None else op.ttl * 60))
            try:
                yield from settle(self._kernel, checks, writes)
            except Conflict:
                yield delay
            else:
                return

    def _texts_of(self, op: PutOp) -> list[str]:
        if self.embeddings is None or op.value is None or op.index is False:
            return []
        paths = self._paths if op.index is None else [_path(path) for path in op.index]
        return [text for path in paths for text in get_text_at_path(op.value, path)]

    def _renew(self, found: Sequence[Found]) -> Steps[None]:
        """Let items live on from now. Whoever has changed one meanwhile has renewed it."""
        for start in range(0, len(found), _AT_ONCE):
            for one in found[start : start + _AT_ONCE]:
                life = (one.stored.ttl or 0) * 60
                try:
                    check = Check(one.record.key, one.record.version)
                    yield from settle(self._kernel, [check], [Put(one.record.key, one.record.value, life)])
                except Conflict:
                    continue

    # -- reading -----------------------------------------------------------------------------------------------

    def _get(self, op: GetOp) -> Found | None:
        record = self._kernel.read([_key(op.namespace, op.key)])[0]
        return None if record is None else _found(record)

    def _search(self, op: SearchOp, queries: Vectors) -> list[tuple[Found, float | None]]:
        found = [one for one in self._below(op.namespace_prefix) if _passes(one.stored.value, op.filter)]
        found.sort(key=lambda one: one.stored.updated, reverse=True)
        ranked: list[tuple[Found, float | None]]
        if op.query and self.embeddings is not None:
            wanted = queries[op.query]
            ranked = [(one, _nearest(wanted, one.stored.vectors)) for one in found]
            ranked.sort(key=lambda pair: -math.inf if pair[1] is None else pair[1], reverse=True)
        elif op.query:
            ranked = list(_matched(op.query, found))
        else:
            ranked = [(one, None) for one in found]
        return ranked[op.offset : op.offset + op.limit]

    def _below(self, prefix: tuple[str, ...]) -> Iterator[Found]:
        after: bytes | None = None
        while page := self._kernel.scan(_ITEMS + keys.pack(*prefix), after=after, limit=_PAGE):
            yield from map(_found, page)
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = [ns for ns in self._every_namespace() if all(_matches(one, ns) for one in op.match_conditions or ())]
        if op.max_depth is not None:
            found = list(dict.fromkeys(ns[: op.max_depth] for ns in found))
        return sorted(found)[op.offset : op.offset + op.limit]

    def _every_namespace(self) -> Iterator[tuple[str, ...]]:
        """Yield each namespace that has an item, with one look for each: from an item the next is behind all others."""
        after: bytes | None = None
        while page := self._kernel.scan(_ITEMS, after=after, limit=1):
            namespace = _found_at(page[0].key)[0]
            yield namespace
            after = _ITEMS + keys.pack(*namespace) + b"\x01\xff"  # no key, which is UTF-8, begins with this byte


def _path(path: str) -> Any:
    return path if path == "$" else tokenize_path(path)


# -- searching ---------------------------------------------------------------------------------------------------


def _nearest(wanted: Sequence[float], vectors: Sequence[bytes]) -> float | None:
    """Return the similarity of the nearest of an item's vectors; None if it has none."""
    best: float | None = None
    length = math.hypot(*wanted)
    for raw in vectors:
        vector = array("f")
        vector.frombytes(raw)
        other = math.hypot(*vector)
        product = sum(a * b for a, b in zip(wanted, vector, strict=True))
        score = product / (length * other) if length and other else 0.0
        best = score if best is None else max(best, score)
    return best


def _matched(query: str, found: Sequence[Found]) -> Iterator[tuple[Found, float | None]]:
    """Yield the items that have a word of the query, best first: rare words count more, long items less."""
    wanted = set(_WORD.findall(query.lower()))
    words = [Counter(_WORD.findall(" ".join(_texts(one.stored.value)).lower())) for one in found]
    having = {word: sum(word in own for own in words) for word in wanted}
    scored = []
    for one, own in zip(found, words, strict=True):
        hits = {word: own[word] for word in wanted if word in own}
        if hits:
            weight = sum(math.log(1 + len(found) / having[word]) * count / (count + 1) for word, count in hits.items())
            scored.append((one, weight))
    scored.sort(key=lambda pair: pair[1], reverse=True)
    yield from scored


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif value is not None:
        yield str(value)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": lambda own, other: bool(own == other),
    "$ne": lambda own, other: bool(own != other),
    "$gt": lambda own, other: bool(own > other),
    "$gte": lambda own, other: bool(own >= other),
    "$lt": lambda own, other: bool(own < other),
    "$lte": lambda own, other: bool(own <= other),
}


def _passes(value: Mapping[str, Any], conditions: Mapping[str, Any] | None) -> bool:
    return all(_is(_at(value, name), wanted) for name, wanted in (conditions or {}).items())


def _at(value: Any, name: str) -> Any:
    """Return what a filter means: the field of that name, or the one at the end of a path with dots."""
    if not isinstance(value, Mapping) or name in value:
        return value.get(name) if isinstance(value, Mapping) else None
    first, dot, rest = name.partition(".")
    return _at(value.get(first), rest) if dot else None


def _is(own: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(own == wanted) and isinstance(own, bool) == isinstance(wanted, bool)
    if not any(name.startswith("$") for name in wanted):
        return isinstance(own, Mapping) and all(_is(own.get(name), inner) for name, inner in wanted.items())
    for name, other in wanted.items():
        compare = _COMPARE.get(name)
        if compare is None:
            raise InvalidInput(f"A filter compares by {', '.join(_COMPARE)}, not by {name!r}.")
        try:
            if (own is None and name not in ("$eq", "$ne")) or not compare(own, other):
                return False
        except TypeError:
            return False  # a number and a text have no order
    return True


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", own) for wanted, own in zip(path, part, strict=True))


# -- keys and stored forms ---------------------------------------------------------------------------------------


def _key(namespace: Iterable[str], key: str) -> bytes:
    return _ITEMS + keys.pack(*namespace, key.encode())


def _found_at(key: bytes) -> tuple[tuple[str, ...], str]:
    *namespace, last = keys.unpack(key)[2:]
    return tuple(map(str, namespace)), last.decode() if isinstance(last, bytes) else str(last)


def _found(record: Record) -> Found:
    return Found(*_found_at(record.key), record, _stored(record))


def _stored(record: Record) -> Stored:
    try:
        return Stored(*codec.decode(record.value))
    except TypeError as error:
        raise Damaged(f"An item is not what was stored ({error}); restore it from a backup.") from error
