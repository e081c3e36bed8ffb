"""LangGraph's own conformance package, on every backend, through the async methods and through the sync ones."""

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from tenuto.adapters.langgraph import TenutoSaver

COUNTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class SyncFace(BaseCheckpointSaver):
    """Answers the suite's async calls by the saver's sync methods, on the thread that asks."""

    def __init__(self, saver: TenutoSaver) -> None:
        super().__init__()
        self.saver = saver

    async def aget_tuple(self, config):
        return self.saver.get_tuple(config)

    async def alist(self, config, **options):
        for found in self.saver.list(config, **options):
            yield found

    async def aput(self, *given):
        return self.saver.put(*given)

    async def aput_writes(self, *given, **named):
        self.saver.put_writes(*given, **named)

    async def adelete_thread(self, *given):
        self.saver.delete_thread(*given)

    async def adelete_for_runs(self, *given):
        self.saver.delete_for_runs(*given)

    async def acopy_thread(self, *given):
        self.saver.copy_thread(*given)

    async def aprune(self, *given, **named):
        self.saver.prune(*given, **named)


@pytest.mark.parametrize("face", ["async", "sync"])
def test_every_case_of_the_conformance_package_passes(stores: Any, face: str) -> None:
    @checkpointer_test(name="TenutoSaver")
    async def saver():
        async with TenutoSaver(stores.new()) as own:
            yield own if face == "async" else SyncFace(own)

    report = asyncio.run(validate(saver))
    results = report.to_dict()["results"]
    assert report.passed_all_base()
    assert {name: result["failures"] for name, result in results.items() if result["failures"]} == {}
    assert {name: result["tests_passed"] for name, result in results.items() if result["detected"]} == COUNTS
    assert sum(COUNTS.values()) == 81
