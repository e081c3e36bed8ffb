"""The embedded backends against a dict; the servers have theirs in `tests/backends`."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from support.model import Model

from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.volatile import VolatileBackend
from tenuto.kernel.contract import Backend


class VolatileModel(Model):
    durable = False

    def open(self) -> Backend:
        return VolatileBackend(clock=self.clock)


class SqliteModel(Model):
    def open(self) -> Backend:
        return SqliteBackend(self.place / "store.db", clock=self.clock, durability="process")


@pytest.mark.slow
@pytest.mark.parametrize("model", [VolatileModel, SqliteModel])
@pytest.mark.scorecard(9)
def test_a_backend_never_differs_from_a_dict(model: type[Model], figures: Any) -> None:
    made: Counter[str] = Counter()

    class Counted(model):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            made["programs"] += 1

        @invariant()
        def count(self) -> None:
            made["steps"] += 1

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    figures(**made, differences=0)
