"""Memory: what an agent knows, stored as it was said and found again by words and, with an embedder, by meaning.

Keys: see `records`. Every change is one commit with its journal line (`writing`); a crash leaves all of it or nothing.
Search runs on an index in this process (`scopes`, `turns`), which is filled from the store and never the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tenuto.capabilities._core.base import Context, Fence, Timed, scan_all
from tenuto.capabilities.memory.absorb import Extract, by_function, by_rules
from tenuto.capabilities.memory.embedding import Embedding, Progress
from tenuto.capabilities.memory.forget import Chosen, Receipt, chosen_memories, forget_in, forget_vectors
from tenuto.capabilities.memory.knowledge import Files, Loaded, files_of, is_of, pieces_of
from tenuto.capabilities.memory.recall import Recalled, must_be_query, recall_memories, recall_turns
from tenuto.capabilities.memory.records import (
    KINDS,
    RANKS,
    TRUST,
    Kind,
    Memory,
    New,
    Source,
    Trust,
    home_of,
    instant,
    item_key,
    items_of,
    made,
    memory_of,
    new,
    source_of,
)
from tenuto.capabilities.memory.reports import reported, searching
from tenuto.capabilities.memory.scopes import EVER, ScopeIndexes, Wanted
from tenuto.capabilities.memory.search.embedders import Embedder
from tenuto.capabilities.memory.tool import Shape, answering, schema_for
from tenuto.capabilities.memory.turns import ThreadIndexes, trust_of
from tenuto.capabilities.memory.writing import Along, Writer
from tenuto.capabilities.threads import INDEX, Thread, Threads, info_of, turns_of
from tenuto.errors import InvalidInput, NotFound
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Work, on_store

When = datetime | str
"""An aware datetime, or text in ISO 8601."""
_PAGE = 1_000


class Memories(Timed):
    """What the agents of a tenant know. Every method is atomic, durable when it returns, and thread-safe.

    A memory belongs to a user or to the whole tenant. No method that is called for one user finds another user's.
    """

    def __init__(self, context: Context, threads: Threads, embedder: Embedder | None = None) -> None:
        self._context = context
        self._kernel = context.kernel
        self._threads = threads
        self._writer = Writer(context)
        self._scopes = ScopeIndexes(context)
        self._conversations = ThreadIndexes(threads)
        self._embedding = Embedding(context, self._scopes, embedder)

    @on_store
    def remember(  # noqa: PLR0913 - the fields of a memory
        self,
        text: str,
        *,
        user: str | None = None,
        kind: Kind = "fact",
        about: str | None = None,
        predicate: str | None = None,
        source: Source | Mapping[str, Any] | None = None,
        trust: Trust | None = None,
        valid_from: When | None = None,
        valid_until: When | None = None,
        review_by: When | None = None,
        ttl: Duration | None = None,
        meta: Mapping[str, Any] | None = None,
        fence: Fence | None = None,
    ) -> Work[Memory]:
        """Store a memory atomically and durably; return it.

        The same text, kind and subject again returns the known memory, with `duplicate` true and `seen` counted; `near`
        names memories that say almost the same. With `about` and `predicate` it supersedes the memory of the same two,
        unless that one is more trusted. The trust is that of the `source`; `trust` can only lower it.
        """
        origin = source_of(source)
        given = new(
            text,
            trust=self._trust(origin, trust),
            user=user,
            kind=kind,
            about=about,
            predicate=predicate,
            source=origin,
            valid_from=valid_from,
            valid_until=valid_until,
            review_by=review_by,
            ttl=ttl,
            meta=meta,
        )
        return (yield from self._remembering(given, fence=fence))

    def _remembering(self, given: New, *, fence: Fence | None = None, along: Along | None = None) -> Work[Memory]:
        """Store a validated memory; `along` is written in the same commit."""
        began = time.perf_counter()
        memory = yield from self._writer.remember(given, fence=fence, along=along)
        reported(self._context, "update_memory" if memory.duplicate else "create_memory", 1, began, memory.id)
        self._embedding.wake(memory.user)
        return memory

    def _writes(self, given: New) -> tuple[Sequence[AnyCheck], Sequence[Write]]:
        """Return what the commit of a memory checks and writes, for the commit of what it was learned from."""
        _, checks, writes = self._writer.prepared(given)
        return checks, writes

    def _as_stated(self, given: New, memory_id: str, at: float) -> Memory:
        """Return a memory that is no longer stored, from what its writer states again."""
        return made(self._context, given, at)._replace(id=memory_id)

    def _trust(self, source: Source | None, wanted: str | None) -> int:
        """Return the trust of a source: that of the message it names; a writer can only lower it."""
        rank = 0
        if source is not None and source.thread is not None and source.message is not None:
            thread = Thread(self._threads, source.thread, user=None, ttl=None)
            found = thread.messages(after=source.message - 1, before=source.message + 1, original=True)
            if source.message < 1 or not found:
                raise NotFound(f"The thread {source.thread!r} has no message {source.message}; nothing was stored.")
            rank = TRUST[trust_of(str(found[0].get("role", "")))]
        elif source is not None and source.memory is not None:
            rank = TRUST[self.get(source.memory).trust]
        return min(rank, _rank(wanted, rank))

    @searching
    def recall(  # noqa: PLR0913 - the words of the API
        self,
        query: str,
        k: int = 5,
        *,
        user: str | None = None,
        thread: str | None = None,
        kind: Kind | None = None,
        about: str | None = None,
        at: When | None = None,
        min_trust: Trust | None = None,
        neighbours: int = 1,
    ) -> list[Recalled]:
        """Return the `k` memories that answer a question best: the tenant's and those of `user`, best first.

        With `thread`, the messages of that conversation instead. `at` answers as of then: what was known and true.
        """
        must_be_query(query, k, neighbours)
        trust = _rank(min_trust, 0, "min_trust")
        if about is not None:
            keys.name(about, "subject")
        now = self._kernel.now()
        then = instant(at, "at")
        owner = None if user is None else keys.name(user, "user")
        if thread is not None:
            if kind is not None or about is not None:
                raise InvalidInput("kind and about select memories. Leave them out to search a thread.")
            self._must_be_theirs(thread, owner)
            conversation = self._conversations.of(thread, owner)
            return recall_turns(
                self._embedding, conversation, query, k, at=then, min_trust=trust, neighbours=neighbours, now=now
            )
        wanted = Wanted(EVER if then is None else then, now if then is None else then, now, _kind(kind), about, trust)
        scopes = [self._scopes.of(None), *([self._scopes.of(owner)] if owner is not None else [])]
        return recall_memories(self._context, self._embedding, scopes, query, k, wanted, neighbours)

    def _known_about(self, text: str, subjects: Sequence[str]) -> list[str]:
        """Return what the tenant's memories say about the subjects of a question, the best first."""
        found = [one for about in subjects for one in self.recall(text[:1_000], 3, about=about, neighbours=0)]
        return [*dict.fromkeys(one.memory.text for one in found)][:3]

    def _must_be_theirs(self, thread: str, user: str | None) -> None:
        """Raise `NotFound` if a thread belongs to another user."""
        owner = None if user is None else self._owner(thread)
        if owner is not None and owner != user:
            raise NotFound(
                f"The user {user!r} has no thread {thread!r}. List theirs with agent.threads.list({user!r})."
            )

    def get(self, memory_id: str) -> Memory:
        """Return a memory; `NotFound` if there is none, or if it was forgotten."""
        return self._writer.found(memory_id)[0]

    def history(self, memory_id: str) -> list[Memory]:
        """Return a memory with those that it superseded and that superseded it, newest first."""
        found = [self.get(memory_id)]
        while (later := found[0].superseded_by) is not None and (one := self._maybe(later)) is not None:
            found.insert(0, one)
        while (earlier := found[-1].supersedes) is not None and (one := self._maybe(earlier)) is not None:
            found.append(one)
        return found

    @on_store
    def forget(
        self,
        id: str | None = None,  # noqa: A002 - the word for it
        *,
        user: str | None = None,
        thread: str | None = None,
        about: str | None = None,
        writer: str | None = None,
        reason: str = "",
    ) -> Work[Receipt]:
        """Remove memories from every layer, durably: by id, user, thread, subject or writer; return the receipt.

        With several of these, what fits all of them. Memories made from a forgotten one go with it. With `writer`,
        memories that this writer had superseded hold again. No read finds them afterwards.
        """
        chosen = Chosen(id, user, thread, about, writer)
        if all(one is None for one in chosen):
            raise InvalidInput("forget needs an id, user, thread, about or writer. Nothing was forgotten.")
        for what, one in zip(Chosen._fields, chosen, strict=True):
            if one is not None:
                keys.name(one, what)
        if not isinstance(reason, str):
            raise InvalidInput(f"reason must be a text, not {type(reason).__name__}. Nothing was forgotten.")
        if id is not None:
            self.get(id)
        found = chosen_memories(self._kernel, chosen)
        erased, left, vectors, began = 0, 0, 0, time.perf_counter()
        back: list[str] = []
        for owner in dict.fromkeys(one.user for one in found):
            ids = [one.id for one in found if one.user == owner]
            vectors += yield from forget_vectors(self._context, owner, ids)
            count, again = yield from forget_in(self._context, owner, ids, reason, restore=writer is not None)
            vectors += yield from forget_vectors(self._context, owner, ids)  # embedded meanwhile
            erased, back = erased + count, [*back, *again]
            left += self._scopes.leave(owner, ids)
        if thread is not None:
            self._conversations.drop(thread)
        derived = sum(one.derived or thread is not None for one in found)
        gone = tuple(one.id for one in found)
        reported(self._context, "delete_memory", len(gone), began)
        return Receipt(gone, len(gone), derived, erased, vectors, left, tuple(back), reason)

    @on_store
    def absorb(
        self, thread: str, extract: Extract | None = None, *, user: str | None = None, after: int = 0
    ) -> Work[list[Memory]]:
        """Store what a conversation states explicitly, each memory linked to its message; return them.

        `extract(messages)` chooses instead of the rules: it returns texts, or dicts with `text`, `message` and fields.
        The memories belong to `user`, or to the thread's user. Again, it stores nothing twice; `after` skips messages.
        """
        if type(after) is not int or after < 0:
            raise InvalidInput(f"after must be the number of a message, 0 or more, not {after!r}.")
        owner = keys.name(user, "user") if user is not None else self._owner(thread)
        turns = turns_of(Thread(self._threads, thread, user=None, ttl=None), after).turns
        derived = by_rules(turns) if extract is None else by_function(turns, extract)
        roles = {turn.number: str(turn.message.get("role", "")) for turn in turns}
        given: list[New] = []
        for one in derived:
            if one.message not in roles:
                raise InvalidInput(f"extract named message {one.message!r}, which is not there; nothing was stored.")
            rank = TRUST[trust_of(roles[one.message])]
            if extract is not None:  # a model may have put it into other words
                rank = min(rank, TRUST["model"], _rank(one.fields.pop("trust", None), TRUST["person"]))
            source = Source(thread=thread, message=one.message)
            given.append(new(one.text, trust=rank, user=owner, source=source, **one.fields))
        found = []
        for each in given:
            memory = yield from self._remembering(each)
            found.append(memory)
        return found

    @on_store
    def load(
        self,
        files: Files,
        *,
        kind: Kind = "fact",
        user: str | None = None,
    ) -> Work[Loaded]:
        """Load files as memories of the tenant, or of `user`: Markdown by heading, other text by paragraph.

        Again, it replaces only what changed and removes what vanished from the files. All files are read before
        anything is stored. A crash leaves some pieces loaded; the same call completes it.
        """
        owner = None if user is None else keys.name(user, "user")
        names = files_of(files)
        pieces = [piece for name in names for piece in pieces_of(name)]
        given = [
            new(
                one.text,
                trust=TRUST["person"],
                user=owner,
                kind=kind,
                source=Source(file=one.file, heading=one.heading),
            )
            for one in dict.fromkeys(pieces)  # a paragraph that stands twice below a heading is one memory
        ]
        known = {
            (memory.source.file, memory.source.heading, memory.text, memory.kind): memory.id
            for memory in self._all(owner)
            if memory.source is not None and memory.source.file is not None
        }
        there = {_piece(one) for one in given}
        old = [one for key, one in known.items() if key not in there and is_of(str(key[0]), files, names)]
        if old:
            yield from forget_vectors(self._context, owner, old)
            yield from forget_in(self._context, owner, old, "the file changed", restore=False)
        fresh = [one for one in given if _piece(one) not in known]
        for each in fresh:
            yield from self._remembering(each)
        return Loaded(len(names), len(fresh), len(given) - len(fresh), len(old))

    @on_store
    def embed(
        self, *, user: str | None = None, thread: str | None = None, progress: Progress | None = None
    ) -> Work[int]:
        """Embed now what has no vector of the client's embedder; return how many texts it embedded.

        Memories of the tenant, or of `user`, or the messages of `thread`. Without this call a background thread does
        it. Each batch is durable: after a crash the call continues where it stopped. The embedder's errors are raised.
        """
        yield from ()
        if self._embedding.embedder is None:
            raise InvalidInput('This client has no embedder. Open it with embed="wordllama", a URL or a function.')
        if thread is not None:
            self._must_be_theirs(thread, user)
            return self._embedding.embed_thread(self._conversations.of(thread, user), progress)
        return self._embedding.embed_scope(self._scopes.of(user), progress)

    def tool(
        self, user: str | None = None, shape: Shape = "openai", k: int = 5
    ) -> tuple[dict[str, Any], Callable[..., str]]:
        """Return recall as a tool for a model: its schema in a provider's shape, and the function that answers a call.

        The function takes the arguments of the call, as a dict or as JSON, and searches for this user alone.
        """

        def recall(query: str, count: int) -> list[Recalled]:
            return self.recall(query, min(count or k, 20), user=user)

        return schema_for(shape), answering(recall)

    def _owner(self, thread: str) -> str | None:
        record = self._kernel.read([INDEX + keys.named(thread, "thread id")])[0]
        return None if record is None else info_of(record).user

    def _all(self, user: str | None) -> Iterable[Memory]:
        return map(memory_of, scan_all(self._kernel, items_of(home_of(user))))

    def _texts(self, query: str) -> Sequence[str]:
        """Return the texts of the best memories for a question."""
        return [str(one.memory.text) for one in self.recall(query, k=3)]

    def list(
        self,
        user: str | None = None,
        kind: Kind | None = None,
        about: str | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
        superseded: bool = False,
    ) -> list[Memory]:
        """Return memories in the order in which they were learned: those of `user`, or of the whole tenant (None).

        `after` is the id of the last one already seen. Superseded ones are left out unless asked for.
        """
        if type(limit) is not int or limit < 1:
            raise InvalidInput(f"limit must be at least 1, not {limit!r}.")
        home, wanted = home_of(user), _kind(kind)
        seen = None if after is None else item_key(home, after)
        found: list[Memory] = []
        while page := self._kernel.scan(items_of(home), after=seen, limit=_PAGE):
            for memory in map(memory_of, page):
                if wanted in (None, memory.kind) and about in (None, memory.about):
                    if memory.superseded_by is None or superseded:
                        found.append(memory)
                    if len(found) == limit:
                        return found
            if len(page) < _PAGE:
                break
            seen = page[-1].key
        return found

    def _newest(self, count: int) -> Sequence[Memory]:
        """Return the last memories of the tenant, newest first, without those that were superseded."""
        page = self._kernel.scan(items_of(home_of(None)), limit=5 * count, reverse=True)
        return [one for one in map(memory_of, page) if one.superseded_by is None][:count]

    def _maybe(self, memory_id: str) -> Memory | None:
        try:
            return self.get(memory_id)
        except NotFound:
            return None

    @on_store
    def supersede(  # noqa: PLR0913 - the fields of a memory
        self,
        memory_id: str,
        text: str,
        *,
        source: Source | Mapping[str, Any] | None = None,
        trust: Trust | None = None,
        valid_from: When | None = None,
        valid_until: When | None = None,
        review_by: When | None = None,
        ttl: Duration | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Work[Memory]:
        """Replace a memory by a new one of the same user, kind and subject, in one commit; return the new one.

        The old one stays: `recall(at=…)` and `history` return it. `Conflict` if it was superseded already.
        """
        origin = source_of(source)
        rank = self._trust(origin, trust)

        def change(old: Memory) -> New:
            return new(
                text,
                trust=rank,
                user=old.user,
                kind=old.kind,
                about=old.about,
                predicate=old.predicate,
                source=origin,
                valid_from=valid_from,
                valid_until=valid_until,
                review_by=review_by,
                ttl=ttl,
                meta=meta,
            )

        memory = yield from self._writer.supersede(memory_id, change)
        self._embedding.wake(memory.user)
        return memory


def _piece(one: New) -> tuple[str | None, str | None, str, str]:
    return *((None, None) if one.source is None else (one.source.file, one.source.heading)), one.text, one.kind


def _kind(kind: str | None) -> str | None:
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, or None; not {kind!r}.")
    return kind


def _rank(trust: str | None, otherwise: int, what: str = "trust") -> int:
    if trust is not None and trust not in RANKS:
        raise InvalidInput(f"{what} must be one of {', '.join(RANKS)}, or None; not {trust!r}.")
    return otherwise if trust is None else TRUST[trust]
