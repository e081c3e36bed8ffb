"""`python -m bench` measures everything; `python -m bench set get` only these; `--quick` less thoroughly."""

from __future__ import annotations

import argparse
import importlib

from bench.measure import environment, save, show

TOPICS = ["set", "get", "append", "threads", "processes", "start", "postgres", "redis"]
BESIDE = ["history", "langgraph", "sessions", "steps", "tasks"]
"""These need the peers: `make peers`."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"any of {', '.join(TOPICS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    wanted = parser.parse_args()
    for name in wanted.topics:
        if name not in TOPICS + BESIDE:
            parser.error(f"{name!r} is no topic; there are {', '.join(TOPICS + BESIDE)}")
    about = environment()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for name in wanted.topics or TOPICS:
        table = importlib.import_module(f"bench.{name}").run(quick=wanted.quick)
        about = environment()
        show(table)
        print(f"* Load averages after this topic: {about['load']}. Written to {save(name, table, about)}")


if __name__ == "__main__":
    main()
