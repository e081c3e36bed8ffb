"""Encryption: the same calls of 1 KB on a plain store, encrypted, with users' keys, and with hashed names, interleaved."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Row, Table, folder, take_turns, text
from tenuto import Encryption, Tenuto

KEY = b"0123456789abcdef" * 2
OPTIONS: dict[str, Any] = {
    "plain": None,
    "encrypted": Encryption(KEY),
    "with users' keys": Encryption(KEY, user_keys=True),
    "with hashed names": Encryption(KEY, hash_names=True),
}


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    sizes = {}
    with folder() as path, contextlib.ExitStack() as stack:
        agents = {
            name: stack.enter_context(Tenuto("bench", path / f"{number}.db", encryption_key=options))
            for number, (name, options) in enumerate(OPTIONS.items())
        }
        for what, calls in _calls().items():
            makers = {name: calls(agent) for name, agent in agents.items()}
            found = take_turns(makers, rounds=5 if quick else 15, calls=50 if quick else 200, warmup=50)
            for name, samples in found.items():
                row = samples.row(f"{what}: {name}")
                row.ratio = str(samples.against(found["plain"]))
                rows.append(row)
        sizes = {name: _size(path / f"{number}.db") for number, name in enumerate(OPTIONS)}
    stored = ", ".join(f"{name} {size / sizes['plain']:.2f}x" for name, size in sizes.items())
    return Table("Encryption: calls of 1 KB on SQLite at full durability", rows, [f"Bytes of the files: {stored}."])


def _calls() -> dict[str, Callable[[Tenuto], Callable[[int], Any]]]:
    def setting(agent: Tenuto) -> Callable[[int], Any]:
        return lambda n: agent.state.set("task", f"key-{n % 100}", text(n))

    def getting(agent: Tenuto) -> Callable[[int], Any]:
        return lambda n: agent.state.get("task", f"key-{n % 100}")

    def appending(agent: Tenuto) -> Callable[[int], Any]:
        count = itertools.count()
        thread = agent.thread("t", user="ann")
        return lambda _: thread.append({"role": "user", "content": text(next(count))})

    return {"state.set": setting, "state.get": getting, "thread.append": appending}


def _size(path: Path) -> int:
    return path.stat().st_size
