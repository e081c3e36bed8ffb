"""CrewAI on tenuto: flows that go on in another process, and memories by their vectors."""

import asyncio
from typing import Any

import pytest
from conftest import Face, Stores

pytest.importorskip("crewai", reason="CrewAI is not installed: make frameworks")

from crewai.flow.flow import Flow, FlowState, listen, start
from crewai.flow.persistence import persist
from crewai.memory.storage.backend import EmbeddingDimensionMismatchError, StorageBackend
from crewai.memory.types import MemoryRecord

from tenuto import Tenuto
from tenuto.adapters.crewai import TenutoFlowPersistence, TenutoMemoryStorage


class Trip(FlowState):
    city: str = ""
    steps: list[str] = []


def flow(agent: Tenuto, face: Face, stop: bool) -> Any:
    persistence = TenutoFlowPersistence(face(agent))

    class Plan(Flow[Trip]):
        @start()
        @persist(persistence)
        def choose(self) -> None:
            if not self.state.city:
                self.state.city = "Lisbon"
                self.state.steps.append("choose")

        @listen(choose)
        @persist(persistence)
        def book(self) -> None:
            if stop:
                raise KeyError("the process ends here")
            self.state.steps.append("book")

    return Plan(persistence=persistence)


def test_a_flow_goes_on_in_another_process(stores: Stores, face: Face) -> None:
    url = stores.new()
    with Tenuto("tester", url) as agent:
        first = flow(agent, face, stop=True)
        with pytest.raises(KeyError):
            first.kickoff()
        flow_id = first.state.id
    with Tenuto("tester", url) as agent:
        second = flow(agent, face, stop=False)
        second.kickoff(inputs={"id": flow_id})
        assert (second.state.city, second.state.steps) == ("Lisbon", ["choose", "book"])
        assert TenutoFlowPersistence(face(agent)).load_state(flow_id)["steps"] == ["choose", "book"]  # type: ignore[index]
        assert TenutoFlowPersistence(face(agent)).load_state("other") is None


def memory(number: int, scope: str, *vector: float, **more: Any) -> MemoryRecord:
    return MemoryRecord(id=f"m{number}", content=f"memory {number}", scope=scope, embedding=list(vector), **more)


def test_memories_are_found_by_vector_scope_category_and_metadata(stores: Stores, face: Face) -> None:
    with Tenuto("tester", stores.new()) as agent:
        storage = TenutoMemoryStorage(face(agent))
        assert isinstance(storage, StorageBackend)
        storage.save(
            [
                memory(1, "/a", 1.0, 0.0, categories=["x"]),
                memory(2, "/a/b", 0.8, 0.6, categories=["x", "y"], metadata={"k": 1}),
                memory(3, "/ab", 0.0, 1.0),
            ]
        )
        found = storage.search([1.0, 0.0])
        assert [(one.id, round(score, 3)) for one, score in found] == [("m1", 1.0), ("m2", 0.8), ("m3", 0.0)]
        assert [one.id for one, _ in storage.search([0.0, 1.0], scope_prefix="/a")] == ["m2", "m1"]
        assert [one.id for one, _ in storage.search([1.0, 0.0], categories=["y"], min_score=0.5)] == ["m2"]
        assert [one.id for one, _ in storage.search([1.0, 0.0], metadata_filter={"k": 1})] == ["m2"]
        assert storage.list_scopes() == ["/a", "/ab"]
        assert storage.get_scope_info("/a").model_dump(include={"record_count", "categories", "child_scopes"}) == {
            "record_count": 2, "categories": ["x", "y"], "child_scopes": ["/a/b"],
        }  # fmt: skip
        assert storage.list_categories() == {"x": 2, "y": 1}
        assert [one.id for one in storage.list_records(limit=1)] == ["m3"]
        with pytest.raises(EmbeddingDimensionMismatchError):
            storage.save([memory(4, "/", 1.0)])
        with pytest.raises(EmbeddingDimensionMismatchError):
            storage.search([1.0])
        storage.update(memory(3, "/ab", 0.0, 1.0, importance=0.9))
        assert storage.get_record("m3").importance == 0.9  # type: ignore[union-attr]
        assert asyncio.run(storage.adelete(scope_prefix="/a", categories=["y"])) == 1
        assert storage.count() == 2
        storage.reset()
        assert storage.count() == 0
        storage.save([memory(4, "/", 1.0)])
