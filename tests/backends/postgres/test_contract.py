"""The one suite, and the model, over Postgres."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support import pg_server
from support.model import Model

from tenuto.backends.postgres import PostgresBackend
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract
from tenuto.wrappers.tenant import Tenant


@pytest.mark.usefixtures("server")
class OverPostgres(BackendContract):
    durability = "full"
    rings = True

    @pytest.fixture(autouse=True)
    def _place(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return pg_server.backend(self.server, self.schema, clock=clock, durability=self.durability)


class TestPostgres(OverPostgres):
    pass


class TestPostgresProcessDurability(OverPostgres):
    durability = "process"


class TestTenantOfPostgres(OverPostgres):
    confined = True

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Tenant(super().connect(place, clock), "acme")


class PostgresModel(Model):
    def open(self) -> PostgresBackend:
        if not hasattr(self, "schema"):
            self.schema = "m_" + uuid.uuid4().hex[:12]
        return pg_server.backend(pg_server.SHARED, self.schema, clock=self.clock, durability="process", pool=2)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "schema"):
            pg_server.SHARED.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_postgres_never_differs_from_a_dict() -> None:
    run_state_machine_as_test(
        PostgresModel,
        settings=settings(
            max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
