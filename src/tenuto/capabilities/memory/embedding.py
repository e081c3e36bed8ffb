"""Vectors of memories: made in the background, stored in batches, loaded with the index.

Keys, below the tenant: the stream `(*home, "vectors", model)` has one entry for each batch: the ids and their vectors, as
half-precision floats. `(*home, "model", model)` holds the dimension. The stream of another model is never read.
`remember` does not wait for an embedder: a daemon thread embeds what has no vector yet, and until then memories are found
by words. A crash loses one batch of work: the next process finds the memories without a vector and continues. When every
memory of a scope has a vector, those of models that stored none for an hour are erased, first the entries and then the
model's record: a crash in between leaves the record, and the next embedding erases the rest. Vectors of messages stay in
this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities._core.journal import last_number
from tenuto.capabilities.memory.records import item_key, memory_of
from tenuto.capabilities.memory.scopes import ScopeIndex, ScopeIndexes, searched_text
from tenuto.capabilities.memory.search.embedders import Embedder, log, numpy_or_raise
from tenuto.capabilities.memory.search.profiles import WORDS, Profiles
from tenuto.capabilities.memory.search.ranking import NOT_DENSE, Dense
from tenuto.capabilities.memory.search.vectors import similarities
from tenuto.capabilities.memory.turns import ThreadIndex
from tenuto.errors import Closed, Conflict, InvalidInput, TenutoError
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Delete, Forget, Put, Record
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import perform

_BATCH: Final = 64
_PAGE: Final = 100
_UNUSED: Final = 3_600.0
"""Seconds after which the vectors of another model are erased: during a deployment two models may be in use."""
_ERASED_AT_ONCE: Final = 1_000
_MODEL: Final = keys.pack("model")
Progress = Callable[[int, int], None]
"""Called with the number of texts embedded so far, and of all that had no vector."""


def stream_of(home: bytes, model: str) -> bytes:
    """Return the stream of the vectors of one model."""
    return home + keys.pack("vectors") + keys.named(model, "model")


def model_key(home: bytes, model: str) -> bytes:
    """Return the key of the record that there are vectors of a model."""
    return home + _MODEL + keys.named(model, "model")


def models_of(context: Context, home: bytes) -> list[str]:
    """Return the models with which memories were embedded."""
    return [str(keys.unpack(record.key)[-1]) for record in scan_all(context.kernel, home + _MODEL)]


class Embedding:
    """The vectors of a client's tenant."""

    def __init__(self, context: Context, scopes: ScopeIndexes, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self.instead: Profiles | None = None
        """Other weights, for measurements."""
        self._context = context
        self._scopes = scopes
        self._waiting: set[str | None] = set()
        self._threads_waiting: list[ThreadIndex] = []
        self._lock = threading.Lock()
        self._pid = 0
        self._failed = False

    def profiles(self, dense: Sequence[Dense]) -> Profiles:
        """Return the weights to use: those of words alone until there are vectors."""
        if self.instead is not None:
            return self.instead
        return self.embedder.profiles if self.embedder is not None and any(one.near for one in dense) else WORDS

    def of_scopes(self, scopes: Sequence[ScopeIndex], query: str) -> list[Dense]:
        """Return the similarities of memories to a query; empty if there is no embedder, or if it fails."""
        if self.embedder is None:
            return [NOT_DENSE] * len(scopes)
        for scope in scopes:
            self._catch_up(scope)
            if len(scope.vectors.rows) < len(scope.index):
                self.wake(scope.user)
        question = self._question(query)
        if question is None:
            return [NOT_DENSE] * len(scopes)
        return similarities([(scope.vectors, None, len(scope.index)) for scope in scopes], question)

    def of_thread(self, thread: ThreadIndex, query: str) -> Dense:
        """Return the similarities of messages to a query."""
        if self.embedder is None:
            return NOT_DENSE
        if len(thread.near.rows) < len(thread.index):
            with self._lock:
                self._threads_waiting.append(thread)
            self.wake(None)
        question = self._question(
            " ".join(word for word in query.split() if word.strip("?!.,'s") not in thread.index.names)
        )
        alone = thread.alone if self.embedder.profiles.people.dense_text else None
        return NOT_DENSE if question is None else similarities([(thread.near, alone, len(thread.index))], question)[0]

    def _question(self, query: str) -> Any:
        assert self.embedder is not None
        try:
            return self.embedder.vectors([query or "?"])[0]
        except Exception as error:  # noqa: BLE001 - an embedder that is down must not stop a recall
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            log.warning("The embedder failed, and memories are found by words alone until it works: %s", error)

    def wake(self, user: str | None) -> None:
        """Let the background thread embed what a user, or the tenant, has without a vector."""
        if self.embedder is None:
            return
        if self._pid not in (0, os.getpid()):  # a fork: the thread stayed with the parent
            self._lock = threading.Lock()
        with self._lock:
            self._waiting.add(user)
            start = self._pid != os.getpid()
            self._pid = os.getpid()
        if start:
            threading.Thread(target=self._work, name="tenuto-embed", daemon=True).start()

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if isinstance(job, ThreadIndex):
                    self.embed_thread(job)
                else:
                    self.embed_scope(self._scopes.of(job[0]))
                self._failed = False
        except (Closed, TenutoError) as error:
            if not isinstance(error, Closed):
                self._warn(error)
        except Exception as error:  # noqa: BLE001 - the user's embedder; the next recall tries again
            self._warn(error)
        finally:
            with self._lock:
                self._pid = 0

    def _next(self) -> ThreadIndex | tuple[str | None] | None:
        with self._lock:
            if self._threads_waiting:
                return self._threads_waiting.pop()
            if self._waiting:
                return (self._waiting.pop(),)
            self._pid = 0
            return None

    def embed_scope(self, scope: ScopeIndex, progress: Progress | None = None) -> int:
        """Embed all memories of a scope that have no vector, batch by batch, each durably; return how many."""
        assert self.embedder is not None
        done = 0
        while True:
            with scope.lock:
                scope.catch_up()
                self._catch_up(scope)
                missing = self._missing(scope)
            if not missing:
                self._erase_unused(scope)
                return done
            batch = missing[:_BATCH]
            records = self._context.kernel.read([item_key(scope.home, one) for one in batch])
            found = [memory_of(record) for record in records if record is not None]
            if not found:  # expired since they were indexed
                return done
            vectors = self.embedder.vectors([searched_text(one) for one in found])
            if scope.vectors.dim and vectors.shape[1] != scope.vectors.dim:
                raise_dimension(self.embedder.model, scope.vectors.dim, vectors.shape[1])
            there = [record for record in records if record is not None]
            self._store(scope, there, [one.id for one in found], vectors)
            done += len(found)
            if progress is not None:
                progress(done, done + len(missing) - len(batch))

    def _erase_unused(self, scope: ScopeIndex) -> None:
        """Erase the vectors of other models that stored none for an hour."""
        assert self.embedder is not None
        kernel = self._context.kernel
        own = model_key(scope.home, self.embedder.model)
        for record in scan_all(kernel, scope.home + _MODEL):
            if record.key == own or record.written_at > kernel.now() - _UNUSED:
                continue
            stream = stream_of(scope.home, str(keys.unpack(record.key)[-1]))
            last = last_number(self._context, stream)
            try:
                # Every batch of that model writes its record anew: a conflict says that it is in use again.
                for first in range(1, last + 1, _ERASED_AT_ONCE):
                    erase = Forget(stream, first, min(first + _ERASED_AT_ONCE - 1, last))
                    perform(commit_once(kernel, [Check(record.key, record.version)], [erase]), SystemClock())
                gone = Delete(record.key)
                perform(commit_once(kernel, [Check(record.key, record.version)], [gone]), SystemClock())
            except Conflict:
                continue

    def _missing(self, scope: ScopeIndex) -> list[str]:
        rows = scope.vectors.rows
        return [one for number, one in enumerate(scope.index.keys) if number not in rows]

    def _store(self, scope: ScopeIndex, records: Sequence[Record], ids: list[str], vectors: Any) -> None:
        assert self.embedder is not None
        np = numpy_or_raise()
        stream = stream_of(scope.home, self.embedder.model)
        value = codec.encode_plain([ids, int(vectors.shape[1]), vectors.astype(np.float16).tobytes()])
        model = Put(model_key(scope.home, self.embedder.model), codec.encode(int(vectors.shape[1])))
        try:
            # A conflict: another process embedded the same batch, or one of them was forgotten. Look again.
            checks: list[AnyCheck] = [
                CheckEnd(stream, scope.vectors_read),
                *(Check(one.key, one.version) for one in records),
            ]
            perform(
                commit_once(self._context.kernel, checks, [Append(stream, value), model]),
                SystemClock(),
            )
        except Conflict:
            return

    def _catch_up(self, scope: ScopeIndex) -> None:
        """Read the vectors that are new."""
        assert self.embedder is not None
        np = numpy_or_raise()
        stream = stream_of(scope.home, self.embedder.model)
        while page := self._context.kernel.entries(stream, after=scope.vectors_read, limit=_PAGE):
            for entry in page:
                scope.vectors_read = entry.number
                if entry.forgotten:
                    continue
                ids, dim, raw = codec.decode(entry.value)
                if scope.vectors.dim and dim != scope.vectors.dim:
                    continue
                matrix = np.frombuffer(raw, dtype=np.float16).reshape(len(ids), dim).astype(np.float32)
                known = [at for at, one in enumerate(ids) if one in scope.numbers]
                scope.vectors.add([scope.numbers[ids[at]] for at in known], matrix[known])

    def embed_thread(self, thread: ThreadIndex, progress: Progress | None = None) -> int:
        """Embed all messages of a conversation that have no vector, in memory; return how many."""
        assert self.embedder is not None
        both, done = bool(self.embedder.profiles.people.dense_text), 0
        while True:
            with thread.lock:
                thread.catch_up()
                table = thread.near
                missing = [number for number in range(len(thread.index)) if number not in table.rows]
                texts = [thread.with_context(number) for number in missing[:_BATCH]]
                own = [thread.said[number].text for number in missing[:_BATCH]]
            if not missing:
                return done
            batch = missing[:_BATCH]
            near = self.embedder.vectors(texts)
            alone = self.embedder.vectors(own) if both else None
            with thread.lock:
                if thread.near is table:  # else the thread was begun anew meanwhile
                    table.add(batch, near)
                    if alone is not None:
                        thread.alone.add(batch, alone)
            done += len(batch)
            if progress is not None:
                progress(done, done + len(missing) - len(batch))


def raise_dimension(model: str, stored: int, given: int) -> None:
    """Raise `InvalidInput` for a model that changed its dimension."""
    raise InvalidInput(
        f"The embedder {model!r} returns {given} numbers, and its stored vectors have {stored}. Give it another name: "
        "a function's is its attribute `model`, or else the one in its `def`."
    )


def erased_vectors(context: Context, home: bytes, model: str, ids: set[str]) -> tuple[int, list[Forget], list[Append]]:
    """Return how many vectors of these memories a model has, and the writes that erase them and keep the others."""
    stream = stream_of(home, model)
    found, erase, keep, after = 0, [], [], 0
    while page := context.kernel.entries(stream, after=after, limit=_PAGE):
        for entry in page:
            after = entry.number
            if entry.forgotten:
                continue
            names, dim, raw = codec.decode(entry.value)
            left = [at for at, one in enumerate(names) if one not in ids]
            if len(left) == len(names):
                continue
            found += len(names) - len(left)
            erase.append(Forget(stream, entry.number, entry.number))
            size = 2 * dim
            if left:
                rest = b"".join(raw[at * size : (at + 1) * size] for at in left)
                keep.append(Append(stream, codec.encode_plain([[names[at] for at in left], dim, rest])))
    return found, erase, keep
