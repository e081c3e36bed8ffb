"""CrewAI on tenuto: `TenutoFlowPersistence` stores the states of flows, `TenutoMemoryStorage` its memories.

    flow = TravelFlow(persistence=TenutoFlowPersistence(agent))               # or @persist(TenutoFlowPersistence(agent))
    memory = Memory(storage=TenutoMemoryStorage(agent))

Keys: `("crewai", "records", …)` (`adapters/records.py`): the newest state of a flow with the method that it is after, and
the feedback that it waits for, one commit each; a memory with its vector. CrewAI embeds, so a search compares the vector
that it passes with every memory of the scope: it reads all of them, which is meant for thousands, not for millions.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from tenuto.adapters.records import Change, Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver

try:
    from crewai.flow.async_feedback.types import PendingFeedbackContext
    from crewai.flow.persistence.base import FlowPersistence
    from crewai.memory.storage.backend import EmbeddingDimensionMismatchError
    from crewai.memory.types import MemoryRecord, ScopeInfo
    from pydantic import BaseModel, PrivateAttr
    from pydantic_core import to_jsonable_python
except ImportError as error:
    raise MissingDriver('CrewAI is not installed. Run: pip install "tenuto[crewai]".') from error

__all__ = ["TenutoFlowPersistence", "TenutoMemoryStorage"]

_SPACE: Final = "crewai"


class TenutoFlowPersistence(FlowPersistence):
    """The states of flows in an agent's store: the newest of each flow, durable when its method returns."""

    persistence_type: str = "TenutoFlowPersistence"
    _records: Any = PrivateAttr()

    def __init__(self, agent: Tenuto | AsyncTenuto, /, **given: Any) -> None:
        super().__init__(**given)
        self._records = Records(agent, _SPACE)

    def init_db(self) -> None:
        """Do nothing: the store is open."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Store the state after a method."""
        self._records.put([method_name, _plain(state_data)], "flow", flow_uuid)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the newest state of a flow, or None."""
        found = self._records.get("flow", flow_uuid)
        return None if found is None else found[1]

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Store the state and the feedback that the flow waits for, in one commit."""
        state = _plain(state_data)

        def act(change: Change) -> None:
            change.put([context.method_name, state], "flow", flow_uuid)
            change.put([state, to_jsonable_python(context.to_dict(), fallback=str)], "feedback", flow_uuid)

        self._records.change(act)

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state and the feedback that a flow waits for, or None."""
        found = self._records.get("feedback", flow_uuid)
        return None if found is None else (found[0], PendingFeedbackContext.from_dict(found[1]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Note that a flow waits for no feedback."""
        self._records.delete("feedback", flow_uuid)


def _plain(state: dict[str, Any] | BaseModel) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(state, fallback=str)
    return found


class TenutoMemoryStorage:
    """CrewAI's `StorageBackend` in an agent's store."""

    def __init__(self, agent: Tenuto | AsyncTenuto, namespace: str = _SPACE) -> None:
        self._records = Records(agent, namespace)

    def save(self, records: list[MemoryRecord]) -> None:
        """Store memories in one commit; raise `EmbeddingDimensionMismatchError` if their vectors have another size."""

        def act(change: Change) -> None:
            size = change.get("dimensions")
            for record in records:
                given = len(record.embedding or ())
                if given and size and given != size:
                    raise EmbeddingDimensionMismatchError(size, given)
                if given and not size:
                    size = given
                    change.put(size, "dimensions")
                change.put(_stored(record), "memory", record.id)

        if records:
            self._records.change(act)

    def update(self, record: MemoryRecord) -> None:
        """Store a memory again."""
        self.save([record])

    def search(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """Return the memories whose vectors are the most similar, with the cosine as score."""
        size = self._records.get("dimensions")
        if size and len(query_embedding) != size:
            raise EmbeddingDimensionMismatchError(size, len(query_embedding))
        fits = _fits(scope_prefix, categories, metadata_filter)
        scored = [
            (record, _cosine(query_embedding, record.embedding))
            for record in self._all()
            if record.embedding and fits(record)
        ]
        best = sorted((one for one in scored if one[1] >= min_score), key=lambda one: -one[1])
        return best[:limit]

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the memories that match all criteria; return how many."""
        fits = _fits(scope_prefix, categories, metadata_filter)
        gone = [
            record.id
            for record in self._all()
            if fits(record)
            and (record_ids is None or record.id in record_ids)
            and (older_than is None or _moment(record.created_at) < _moment(older_than))
        ]
        return sum(self._records.delete("memory", one) for one in gone)

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """Return a memory, or None."""
        found = self._records.get("memory", record_id)
        return None if found is None else _loaded(found)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """Return memories of a scope, newest first."""
        found = sorted(self._in(scope_prefix), key=lambda one: _moment(one.created_at), reverse=True)
        return found[offset : offset + limit]

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """Return how many memories a scope has, and what they are about."""
        path = "/" + scope.strip("/")
        found = list(self._in(path))
        times = [record.created_at for record in found]
        return ScopeInfo(
            path=path,
            record_count=len(found),
            categories=sorted({one for record in found for one in record.categories}),
            oldest_record=min(times, default=None),
            newest_record=max(times, default=None),
            child_scopes=self.list_scopes(path),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """Return the scopes directly below a scope."""
        above = "/" + parent.strip("/")
        prefix = above.rstrip("/") + "/"
        found = [_path(record) for record in self._all()]
        return sorted(
            {prefix + one[len(prefix) :].split("/")[0] for one in found if one.startswith(prefix) and one != prefix}
        )

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        """Return how many memories of a scope each category has."""
        return dict(Counter(one for record in self._in(scope_prefix) for one in record.categories))

    def count(self, scope_prefix: str | None = None) -> int:
        """Return how many memories a scope has."""
        return sum(1 for _ in self._in(scope_prefix))

    def reset(self, scope_prefix: str | None = None) -> None:
        """Delete the memories of a scope; all, with the size of their vectors, without one."""
        if scope_prefix is None or not scope_prefix.strip("/"):
            self._records.delete_under("memory")
            self._records.delete("dimensions")
        else:
            self.delete(scope_prefix)

    async def asave(self, records: list[MemoryRecord]) -> None:
        """Store memories in one commit."""
        await self._records.call(self.save, records)

    async def asearch(
        self, query_embedding: list[float], *args: Any, **options: Any
    ) -> list[tuple[MemoryRecord, float]]:
        """Return the memories whose vectors are the most similar; see `search`."""
        return await self._records.call(lambda: self.search(query_embedding, *args, **options))

    async def adelete(self, *args: Any, **options: Any) -> int:
        """Delete the memories that match all criteria; see `delete`."""
        return await self._records.call(lambda: self.delete(*args, **options))

    def _all(self) -> Iterator[MemoryRecord]:
        return (_loaded(one.value) for one in self._records.under("memory"))

    def _in(self, scope: str | None) -> Iterator[MemoryRecord]:
        return filter(_fits(scope, None, None), self._all())


def _fits(
    scope: str | None, categories: list[str] | None, metadata: dict[str, Any] | None
) -> Callable[[MemoryRecord], bool]:
    above = "/" + (scope or "").strip("/")

    def fits(record: MemoryRecord) -> bool:
        path = _path(record)
        return (
            (above in {"/", path} or path.startswith(above + "/"))
            and (not categories or any(one in record.categories for one in categories))
            and (not metadata or all(record.metadata.get(key) == value for key, value in metadata.items()))
        )

    return fits


def _path(record: MemoryRecord) -> str:
    return "/" + record.scope.strip("/")


def _stored(record: MemoryRecord) -> dict[str, Any]:
    vector = None if record.embedding is None else array("f", record.embedding).tobytes()
    return {**record.model_dump(mode="json"), "embedding": vector}


def _loaded(data: dict[str, Any]) -> MemoryRecord:
    vector = None
    if data["embedding"] is not None:
        vector = array("f")
        vector.frombytes(data["embedding"])
    return MemoryRecord.model_validate({**data, "embedding": None if vector is None else vector.tolist()})


def _cosine(one: list[float], other: list[float]) -> float:
    size = math.hypot(*one) * math.hypot(*other)
    return sum(map(operator.mul, one, other)) / size if size else 0.0


def _moment(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
