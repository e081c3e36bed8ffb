"""LangGraph's long-term memory: items by namespace and key, with filters, search and a time to live.

Keys: `("langgraph", "item", *namespace, key)` holds an item: its value, its creation and update times, its time to
live and the vectors of its texts. Namespace parts are text and the key is bytes, so that items and nested namespaces
cannot collide.

All puts of a batch, up to 400, are one commit after its reads; more puts are several commits. An expired item is absent
for every operation. Reading renews an item if LangGraph asks for it.

A search scans every item under the prefix. With an `index` the texts of items are embedded when they are put, and
compared exactly. Without one a query is matched by its words, as `agent.memory.recall` does.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.store.base import (
    BaseStore,
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
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from tenuto.adapters.langgraph import stored_types
from tenuto.adapters.langgraph.connection import Connection
from tenuto.aio import AsyncTenuto, bridge
from tenuto.capabilities._core.base import Context
from tenuto.capabilities.memory import rank_texts
from tenuto.client import Tenuto
from tenuto.errors import Conflict, Damaged, InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, perform

_ITEMS: Final = keys.pack("langgraph", "item")
_PAGE: Final = 1_000
_AT_ONCE: Final = 400

Vectors = dict[str, list[float]]
"""The vector of each embedded text."""


class Stored(NamedTuple):
    """The stored form of an item."""

    value: dict[str, Any]
    created: float
    updated: float
    ttl: float | None
    """In minutes, as in LangGraph."""
    vectors: list[bytes]
    """Of its texts, as 32-bit floats."""


class Found(NamedTuple):
    """An item with its namespace and key."""

    namespace: tuple[str, ...]
    key: str
    record: Record
    stored: Stored

    def item(self) -> Item:
        """Return LangGraph's item."""
        return Item(
            value=self.stored.value,
            key=self.key,
            namespace=self.namespace,
            created_at=moment(self.stored.created),
            updated_at=moment(self.stored.updated),
        )

    def scored(self, score: float | None) -> SearchItem:
        """Return LangGraph's search result."""
        made, changed = moment(self.stored.created), moment(self.stored.updated)
        return SearchItem(self.namespace, self.key, self.stored.value, made, changed, score)


class Items:
    """The items of a tenant."""

    def __init__(self, context: Context, index: IndexConfig | None) -> None:
        self._kernel = context.kernel
        self.embeddings = ensure_embeddings(index.get("embed")) if index else None
        given: Mapping[str, Any] = index or {}
        fields = given.get("fields") or given.get("text_fields") or ["$"]  # the name in the SQLite and Postgres stores
        self._paths = [_path(path) for path in fields] if index else []

    # -- a batch -----------------------------------------------------------------------------------------------

    def texts(self, ops: Sequence[Op]) -> tuple[list[str], list[str]]:
        """Return the item texts and the queries that must be embedded before a batch."""
        if self.embeddings is None:
            return [], []
        items = [text for op in ops if isinstance(op, PutOp) for text in self._texts_of(op)]
        queries = [op.query for op in ops if isinstance(op, SearchOp) and op.query]
        return list(dict.fromkeys(items)), list(dict.fromkeys(queries))

    def batch(self, ops: Sequence[Op], items: Vectors, queries: Vectors) -> Work[list[Result]]:
        """Answer all reads of a batch, then make its puts in one commit."""
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
                raise InvalidInput(f"{type(op).__name__} is not a get, put, search or list operation. Nothing was put.")
        yield from self._renew([found for found in renew.values() if found.stored.ttl is not None])
        wanted = list(puts.items())
        for start in range(0, len(wanted), _AT_ONCE):
            yield from self._put(dict(wanted[start : start + _AT_ONCE]), items)
        return results

    # -- putting -----------------------------------------------------------------------------------------------

    def _put(self, puts: Mapping[bytes, PutOp], vectors: Vectors) -> Work[None]:
        delays = backoff()
        while True:
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
                yield from commit_once(self._kernel, checks, writes)
            except Conflict:
                yield Sleep(next(delays))
            else:
                return

    def _texts_of(self, op: PutOp) -> list[str]:
        if self.embeddings is None or op.value is None or op.index is False:
            return []
        paths = self._paths if op.index is None else [_path(path) for path in op.index]
        return [text for path in paths for text in get_text_at_path(op.value, path)]

    def _renew(self, found: Sequence[Found]) -> Work[None]:
        """Renew the time to live of items. A concurrent put has already renewed it."""
        for start in range(0, len(found), _AT_ONCE):
            for one in found[start : start + _AT_ONCE]:
                life = (one.stored.ttl or 0) * 60
                try:
                    check = Check(one.record.key, one.record.version)
                    yield from commit_once(self._kernel, [check], [Put(one.record.key, one.record.value, life)])
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
        """Yield each namespace that has an item, with one scan each that skips the rest of the namespace."""
        after: bytes | None = None
        while page := self._kernel.scan(_ITEMS, after=after, limit=1):
            namespace = _found_at(page[0].key)[0]
            yield namespace
            after = _ITEMS + keys.pack(*namespace) + b"\x01\xff"  # above every key: no UTF-8 text begins with this byte


def _path(path: str) -> Any:
    return path if path == "$" else tokenize_path(path)


# -- searching ---------------------------------------------------------------------------------------------------


def _nearest(wanted: Sequence[float], vectors: Sequence[bytes]) -> float | None:
    """Return the best similarity among an item's vectors; None if it has none."""
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
    """Yield the items that contain a word of the query, best first, by the search of `agent.memory`."""
    for at, score in rank_texts(query, [" ".join(_texts(one.stored.value)) for one in found]):
        yield found[at], score


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
    """Return the field of that name, or the one at a dotted path."""
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
            raise InvalidInput(f"{name!r} is not a filter operator. Use one of {', '.join(_COMPARE)}.")
        try:
            if (own is None and name not in ("$eq", "$ne")) or not compare(own, other):
                return False
        except TypeError:
            return False  # values of different types have no order
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
        raise Damaged(f"A stored item is damaged ({error}). Restore it from a backup.") from error


class TenutoStore(Connection, BaseStore):
    """LangGraph's long-term memory. A put is durable when it returns; an expired item is absent.

    `agent` is a `Tenuto` or `AsyncTenuto`, or a URL or path. With `index` the texts of items are embedded for exact
    vector search; without one they are searched by words. `ttl` is LangGraph's configuration.
    """

    supports_ttl = True

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto | str | None = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        allow: Iterable[type[Any]] = (),
    ) -> None:
        stored_types.allow(allow)
        self.ttl_config = ttl
        self._connect(agent)
        self._items = Items(self._agent._context, index)
        self.index_config = index
        self.embeddings = self._items.embeddings

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer several operations: the reads first, then all puts in one commit."""
        wanted = _checked(ops)
        items, queries = self._items.texts(wanted)
        made, asked = Vectors(), Vectors()
        if self._items.embeddings is not None and (items or queries):
            made = dict(zip(items, self._items.embeddings.embed_documents(items) if items else [], strict=True))
            asked = {query: self._items.embeddings.embed_query(query) for query in queries}
        return perform(self._items.batch(wanted, made, asked), self._agent.clock)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer several operations; see `batch`."""
        wanted = _checked(ops)
        items, queries = self._items.texts(wanted)
        made, asked = Vectors(), Vectors()
        if self._items.embeddings is not None and (items or queries):
            vectors = await self._items.embeddings.aembed_documents(items) if items else []
            made = dict(zip(items, vectors, strict=True))
            asked = {query: await self._items.embeddings.aembed_query(query) for query in queries}
        return await bridge.stored(self._pool, self._items.batch(wanted, made, asked), self._agent.clock)


def _checked(ops: Iterable[Op]) -> list[Op]:
    wanted = list(ops)
    for op in wanted:
        validate_op_namespace(op)
    return wanted
