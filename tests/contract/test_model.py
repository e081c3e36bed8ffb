"""The embedded backends against a dict; the servers have theirs in `tests/backends`."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
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
def test_a_backend_never_differs_from_a_dict(model: type[Model]) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
