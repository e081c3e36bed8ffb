"""The workflow store of LlamaIndex's server on tenuto: handlers, events, ticks and state; see `adapters/llama_index.py`.

A tick is one commit, with the next number of its run. A state is stored whole at each of its transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from tenuto.adapters.records import Found, Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver

try:
    from llama_agents.client.protocol.serializable_events import EventEnvelopeWithMetadata
    from llama_agents.server import AbstractWorkflowStore, HandlerQuery, PersistentHandler
    from llama_agents.server._store.abstract_workflow_store import StoredEvent, StoredTick
    from workflows.context import JsonSerializer
    from workflows.context.state_store import StateRecord, StateStoreFacade
except ImportError as error:
    raise MissingDriver(
        'The workflow server of LlamaIndex is not installed. Run: pip install "tenuto[llama-workflows]".'
    ) from error

__all__ = ["TenutoWorkflowStore"]

_SPACE: Final = "llama-index"


class TenutoWorkflowStore(AbstractWorkflowStore):
    """LlamaIndex's workflow store in an agent's store."""

    def __init__(self, agent: Tenuto | AsyncTenuto, *, poll_interval: float = 0.1) -> None:
        super().__init__()
        self._records = Records(agent, _SPACE)
        self.poll_interval = poll_interval
        self._conditions: weakref.WeakValueDictionary[str, asyncio.Condition] = weakref.WeakValueDictionary()

    def _build_state_store(
        self, run_id: str, namespace: tuple[str, ...], state_type: type[Any] | None, serializer: Any
    ) -> StateStoreFacade[Any]:
        return StateStoreFacade(_State(self._records, run_id, namespace), state_type, serializer)

    async def query(self, query: HandlerQuery) -> list[PersistentHandler]:
        """Return the handlers that match all criteria."""
        found = await self._records.call(self._records.under, "handler")
        handlers = [self._handler(one.value) for one in found]
        return [handler for handler in handlers if _matches(handler, query)]

    async def update(self, handler: PersistentHandler) -> None:
        """Store a handler."""
        await self._records.call(self._records.put, handler.model_dump(mode="json"), "handler", handler.handler_id)

    async def delete(self, query: HandlerQuery) -> int:
        """Delete the handlers that match, with the logs and states of their runs; return how many there were."""
        found = await self.query(query)
        for handler in found:
            for kind in ("event", "tick", "state") if handler.run_id is not None else ():
                await self._records.call(self._records.delete_under, kind, handler.run_id)
            await self._records.call(
                self._records.delete, "handler", handler.handler_id
            )  # last: a crash leaves the rest
        return len(found)

    async def append_event(self, run_id: str, event: EventEnvelopeWithMetadata) -> None:
        """Append an event durably."""
        await self._append("event", run_id, event.model_dump(mode="json"))
        condition = self._conditions.get(run_id)
        if condition is not None:
            async with condition:
                condition.notify_all()

    async def query_events(
        self, run_id: str, after_sequence: int | None = None, limit: int | None = None
    ) -> list[StoredEvent]:
        """Return the events of a run after a sequence number."""
        after = 0 if after_sequence is None else after_sequence + 1
        found = await self._records.call(lambda: self._records.log("event", run_id, after=after, limit=limit))
        return [StoredEvent(**_entry(run_id, one), event=EventEnvelopeWithMetadata(**one.value[1])) for one in found]

    async def append_tick(self, run_id: str, tick_data: dict[str, Any]) -> None:
        """Append a tick durably."""
        await self._append("tick", run_id, tick_data)

    async def get_ticks(self, run_id: str) -> list[StoredTick]:
        """Return the ticks of a run in order."""
        found = await self._records.call(self._records.log, "tick", run_id)
        return [StoredTick(**_entry(run_id, one), tick_data=one.value[1]) for one in found]

    async def subscribe_events(self, run_id: str, after_sequence: int = -1) -> AsyncIterator[StoredEvent]:
        """Yield the events of a run after a number as they are stored; end after the event that ends the run.

        Events of this process are yielded at once, those of another one within `poll_interval`.
        """
        condition = self._conditions.get(run_id)
        if condition is None:
            condition = self._conditions.setdefault(run_id, asyncio.Condition())
        while True:
            async with condition:  # so that no event is stored between the query and the wait
                events = await self.query_events(run_id, after_sequence)
                if not events:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(condition.wait(), self.poll_interval)
            for event in events:
                yield event
                after_sequence = event.sequence
                if self._is_terminal_event(event):
                    return

    async def _append(self, kind: str, run_id: str, data: Any) -> None:
        at = datetime.now(UTC).isoformat()
        await self._records.call(self._records.append, [at, data], kind, run_id)

    def _handler(self, data: dict[str, Any]) -> PersistentHandler:
        decoder = self.result_decoder(data["workflow_name"]) if self.result_decoder is not None else JsonSerializer()
        return PersistentHandler.model_validate(data, context={"json_serializer": decoder})


def _entry(run_id: str, found: Found) -> dict[str, Any]:
    return {"run_id": run_id, "sequence": found.path[0] - 1, "timestamp": found.value[0]}


def _matches(handler: PersistentHandler, query: HandlerQuery) -> bool:
    wanted = (
        (query.handler_id_in, handler.handler_id),
        (query.run_id_in, handler.run_id),
        (query.workflow_name_in, handler.workflow_name),
        (query.status_in, handler.status),
    )
    fits = all(names is None or value in names for names, value in wanted)
    return fits and (query.is_idle is None or query.is_idle == (handler.idle_since is not None))


class _State:
    """The state of a run: one record."""

    def __init__(self, records: Records, run_id: str, namespace: tuple[str, ...]) -> None:
        self._records, self._namespace = records, namespace
        self._run_id = run_id

    @property
    def run_id(self) -> str:
        return self._run_id

    async def load(self) -> StateRecord | None:
        found = await self._records.call(self._records.get, "state", self._run_id, *self._namespace)
        return None if found is None else StateRecord.model_validate(found)

    async def save(self, record: StateRecord) -> None:
        data = record.model_dump(mode="json")
        await self._records.call(self._records.put, data, "state", self._run_id, *self._namespace)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[_State]:
        yield self

    def to_handle(self) -> dict[str, Any]:
        return {"store_type": "tenuto", "run_id": self._run_id, "namespace": list(self._namespace)}

    def parse_own_handle(self, payload: dict[str, Any]) -> Any | None:
        if payload.get("store_type") != "tenuto":
            return None
        return payload["run_id"], tuple(payload.get("namespace") or ())

    async def copy_from_handle(self, handle: Any) -> None:
        run_id, namespace = handle
        found = await _State(self._records, run_id, namespace).load()
        if found is not None:
            await self.save(found)
