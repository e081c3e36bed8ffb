"""100 agents on `tenuto serve`, on SQLite and on Postgres, beside the same agents on the store itself, in one run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench import servers
from bench.measure import Row, Table, folder, quantile

AGENTS, PROCESSES = 100, 4
TOKEN = "tk_bench"


@contextlib.contextmanager
def serving(url: str, log: Path) -> Iterator[str]:
    """Run `tenuto serve` on a store; yield its address."""
    words = [sys.executable, "-m", "tenuto", "serve", "--url", url, "--port", "0", "--no-access-log"]
    with log.open("w") as out:
        process = subprocess.Popen(words, stderr=out, env={**os.environ, "TENUTO_TOKEN": TOKEN})
        try:
            while not (found := re.search(r"serving (\S+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(found[1] + "/ready") as reply:
                    assert reply.status == 200
                    break
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def crowd(kind: str, url: str, agents: int, seconds: float, pause: float) -> tuple[list[float], float]:
    """Let agents work at once in several processes; return what each call took, and how many were made a second."""
    each = max(1, agents // PROCESSES)
    environment = {**os.environ, **({"TENUTO_API_KEY": TOKEN} if url.startswith("http") else {})}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.agents", kind, url, str(each), str(seconds), str(pause), str(at * each)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for at in range(min(PROCESSES, agents))
    ]  # fmt: skip
    for one in running:
        assert one.stdout.readline() == "ready\n"
    took: list[float] = []
    for one in running:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in running:
        took += json.loads(one.stdout.readline())
        one.communicate()
    return took, len(took) / seconds


def run(*, quick: bool) -> Table:
    seconds = 3.0 if quick else 10.0
    rows: list[Row] = []
    for store in ("SQLite (full)", "Postgres"):
        with folder() as path, contextlib.ExitStack() as stack:
            url = stack.enter_context(servers.postgres(path)).url if store == "Postgres" else str(path / "store.db")
            address = stack.enter_context(serving(url, path / "log"))
            for what, agents, pause in (
                ("1 agent", 1, 0.0),
                ("100 agents, 2 calls a second each", AGENTS, 0.5),
                ("100 agents, 30 calls a second each", AGENTS, 0.030),
                ("100 agents, no pause", AGENTS, 0.0),
            ):
                for kind in ("get", "set"):
                    for where, at in (("embedded", url), ("server", address)):
                        rows.append(_row(f"{store}, {what}: {kind}, {where}", *crowd(kind, at, agents, seconds, pause)))
                        if pause and kind == "get" and where == "server":
                            rows[-1].target, rows[-1].met = "p95 <= 10 ms", rows[-1].p95 <= 0.010
                        elif not pause and agents > 1 and where == "server":
                            rows[-1].target, rows[-1].met = ">= 3,000 a second", rows[-1].rate >= 3_000
    return Table(
        "100 agents on a server",
        rows,
        [
            (
                f"{AGENTS} agents are threads of {PROCESSES} processes, which have a client each; values of 1 KB. Server, "
                "store and agents share the machine."
            ),
            "`tenuto serve` with one process, without the access log. Without a pause, the wait is that of a queue of 100.",
        ],
    )


def _row(what: str, took: list[float], rate: float) -> Row:
    shares = {
        name: quantile(took, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("worst", 1.0))
    }
    return Row(what, rate=rate, **shares)
