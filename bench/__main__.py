"""`python -m bench` measures everything; `python -m bench set get` only these; `--quick` less thoroughly.

After several topics it prints one table of them all, with the goals that were missed.

`python -m bench set --against PATH` measures the same calls of another checkout in the same interleaved run.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path

from bench.measure import environment, save, show
from bench.summary import peers, summary, sync_time

TOPICS = [
    "set",
    "get",
    "append",
    "processes",
    "start",
    "memory",
    "context",
    "postgres",
    "redis",
    "idle",
    "server",
    "encrypt",
    "growth",
]
BESIDE = ["frameworks", "history", "langgraph", "sessions", "steps", "tasks"]
"""These need the peers: `make peers`. With `--against` they do without."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"any of {', '.join(TOPICS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of tenuto to compare with")
    wanted = parser.parse_args()
    for name in wanted.topics:
        if name not in TOPICS + BESIDE:
            parser.error(f"{name!r} is no topic; there are {', '.join(TOPICS + BESIDE)}")
    runs = {name: importlib.import_module(f"bench.{name}").run for name in wanted.topics or TOPICS}
    options = {"quick": wanted.quick}
    if wanted.against is not None:
        against = wanted.against.resolve()
        if not (against / "src" / "tenuto").is_dir():
            parser.error(f"{wanted.against} holds no src/tenuto")
        for name, run in runs.items():
            if "against" not in inspect.signature(run).parameters:
                parser.error(f"{name!r} cannot be compared with another checkout")
        options["against"] = against
    print(_told({**environment(), "sync": sync_time(), **peers()}))
    found = {}
    for name, run in runs.items():
        table = run(**options)
        about = environment()
        found[name] = table, about["load"]
        show(table)
        print(f"* Load averages after this topic: {about['load']}. Written to {save(name, table, about)}")
    if len(found) > 1:
        show(summary(found))
        print(f"* {_told({**environment(), 'sync': sync_time(), **peers()})}")


def _told(about: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in about.items())


if __name__ == "__main__":
    main()
