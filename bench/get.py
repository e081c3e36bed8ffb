"""`state.get` of 1 KB: one thread next to the raw driver's point read, and 100 agents at once (P10)."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import raw
from bench.compare import compare
from bench.measure import Crowd, Row, Table, folder, in_threads, quantile, text
from tenuto import Tenuto

SCOPES, KEYS = 10, 100
CLIENTS, THREADS = 10, 10
P95 = 0.005
PAUSE = 0.05
"""How long a paced agent thinks between two calls, on average."""


def run(*, quick: bool, against: Path | None = None) -> Table:
    kinds = ("raw read", "floor of get", "state.get")
    table = compare("state.get: 1 KB, 1,000 keys", kinds, quick=quick, against=against, durabilities=("full",))
    table.notes += [
        "`state.get` checks the row's checksums and decodes; the raw read returns bytes as they are.",
        "The floor is `state.get` on a backend that holds its records in a dict, followed by the raw read.",
    ]
    if against is None:
        with folder() as path:
            table.rows += _together(path, quick=quick)
        table.notes.append(
            f"100 agents: {CLIENTS} clients of {THREADS} threads each in one process on one file, 90% get and 10% set at "
            "FULL. Paced: each thinks 50 ms between calls, 2,000 calls a second together. Saturated: none thinks; then a "
            "call takes 100 / throughput on average whoever serves it, so its p95 tells the machine's limit, not the wait "
            "that agents see."
        )
    return table


def _names(number: int) -> tuple[str, str]:
    return f"scope-{number % SCOPES}", f"key-{number // SCOPES % KEYS}"


def _fill(path: Path) -> None:
    upserts = raw.Upserts(path / "raw.db", "full")
    with contextlib.closing(Tenuto("bench", path / "tenuto.db")) as agent:
        for number in range(SCOPES * KEYS):
            agent.state.set(*_names(number), text(number))
            upserts.write(*_names(number), text(number).encode())


def _together(path: Path, *, quick: bool) -> list[Row]:
    seconds, rounds = (2, 1) if quick else (5, 3)
    _fill(path)
    rows = []
    for pause in (PAUSE, 0.0):
        crowds: dict[str, list[Agents]] = {"tenuto": [], "raw": []}
        for _ in range(rounds):
            crowds["tenuto"].append(_tenuto_agents(path / "tenuto.db", pause, seconds))
            crowds["raw"].append(_raw_agents(path / "raw.db", pause, seconds))
        for who, met in crowds.items():
            rows += _told(f"100 agents, {'paced' if pause else 'saturated'}: {who}", met, target=who == "tenuto")
    return rows


class Agents:
    """What 100 agents saw: the gets and the sets apart from one another, without the pauses."""

    def __init__(self) -> None:
        self.gets: list[float] = []
        self.sets: list[float] = []
        self.crowd = Crowd([], 1.0, [])

    def one(
        self, seed: int, pause: float, get: Callable[[int], Any], put: Callable[[int], Any]
    ) -> Callable[[int], Any]:
        chance, clock = random.Random(seed), time.perf_counter

        def call(_: int) -> None:
            if pause:
                time.sleep(pause * 2 * chance.random())
            number = chance.randrange(SCOPES * KEYS)
            verb, kept = (put, self.sets) if chance.random() < 0.1 else (get, self.gets)
            began = clock()
            verb(number)
            kept.append(clock() - began)

        return call


def _tenuto_agents(path: Path, pause: float, seconds: float) -> Agents:
    agents = Agents()
    clients = [Tenuto(f"client-{number}", path).open() for number in range(CLIENTS)]

    def maker(seed: int, state: Any) -> Callable[[], Callable[[int], Any]]:
        return lambda: agents.one(
            seed, pause, lambda n: state.get(*_names(n)), lambda n: state.set(*_names(n), text(n + seed))
        )

    makers = [maker(seed, clients[seed % CLIENTS].state) for seed in range(CLIENTS * THREADS)]
    agents.crowd = in_threads(makers, seconds)
    for client in clients:
        client.close()
    return agents


def _raw_agents(path: Path, pause: float, seconds: float) -> Agents:
    agents = Agents()

    def maker(seed: int) -> Callable[[], Callable[[int], Any]]:
        own = raw.Upserts(path, "full")
        return lambda: agents.one(
            seed, pause, lambda n: own.read(*_names(n)), lambda n: own.write(*_names(n), text(n + seed).encode())
        )

    agents.crowd = in_threads([maker(seed) for seed in range(CLIENTS * THREADS)], seconds)
    return agents


def _told(what: str, rounds: list[Agents], *, target: bool) -> list[Row]:
    rows = []
    seconds = sum(agents.crowd.seconds for agents in rounds)
    errors = [error for agents in rounds for error in agents.crowd.errors]
    for verb in ("gets", "sets"):
        calls = list(itertools.chain(*(getattr(agents, verb) for agents in rounds)))
        row = Row(f"{what}, {verb}", quantile(calls, 0.5), quantile(calls, 0.95), quantile(calls, 0.99), max(calls))
        row.rate = len(calls) / seconds
        row.detail["errors"] = errors
        if target and verb == "gets":
            row.target, row.met = "p95 < 5 ms", row.p95 < P95 and not errors
        rows.append(row)
    return rows
