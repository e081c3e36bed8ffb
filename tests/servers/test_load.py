"""Steady load on `tenuto serve`: the memory of the server process stays flat.

The short form only shows that the measurement works. The long form (TENUTO_LONG=1) takes ten minutes.
"""

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.long import LONG, size

from tenuto import Tenuto

pytestmark = [pytest.mark.slow, pytest.mark.timeout(size(180, 1_200))]

AGENTS, PAUSE, KEYS = 20, 0.04, 50
GROWTH = 8 * 1024 * 1024
"""Bytes that the process may grow by after its warm-up: the SQLite page caches of its threads fill slowly."""


def work(url: str, token: str, number: int, done: threading.Event, counts: list[int]) -> None:
    """Do what agents do: set, get, list, append, watch, open and close connections."""
    with Tenuto(f"agent-{number}", url, api_key=token) as agent:
        n = 0
        while not done.wait(PAUSE):
            n += 1
            scope = f"agent-{number}"
            agent.state.set(scope, f"k{n % KEYS}", {"n": n, "text": "x" * 500})
            agent.state.get(scope, f"k{n % KEYS}")
            agent.state.get(scope, f"absent-{n}")
            if n % 10 == 0:
                agent.state.items(scope)
                agent.thread(f"t{number}-{n // 500}").append({"role": "user", "content": f"message {n}"})
                with Tenuto("visitor", url, api_key=token) as visitor:  # another connection, another client
                    visitor.thread(f"t{number}-{n // 500}").messages(last=5)
            counts[number] = n


def slope(samples: list[tuple[float, int]]) -> float:
    """Return the growth in bytes a minute, by linear regression."""
    return 60 * statistics.linear_regression(*zip(*samples, strict=True)).slope


def test_the_memory_of_a_server_stays_flat_under_load(
    start_server: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = start_server(str(tmp_path / "store.db"), "--no-access-log")
    serving.ready()
    process = psutil.Process(serving.process.pid)
    done, counts = threading.Event(), [0] * AGENTS
    threads = [
        threading.Thread(target=work, args=(serving.url, serving.token, number, done, counts))
        for number in range(AGENTS)
    ]
    for thread in threads:
        thread.start()
    began, seconds = time.monotonic(), size(6, 600)
    samples: list[tuple[float, int]] = []
    while (passed := time.monotonic() - began) < seconds:
        assert serving.process.poll() is None
        samples.append((passed, process.memory_info().rss))
        done.wait(seconds / 200)
    done.set()
    for thread in threads:
        thread.join()
    later = samples[len(samples) // 2 :]
    growth = max(size for _, size in later[-10:]) - max(size for _, size in later[:10])
    connections, files = len(process.net_connections()), process.num_fds()
    with capsys.disabled():
        print(
            f"\n{sum(counts):,} rounds of 3 calls or more in {seconds:.0f} s; resident {samples[0][1] >> 10:,} KB at the start, "
            f"{later[0][1] >> 10:,} KB halfway, {later[-1][1] >> 10:,} KB at the end; "
            f"{slope(later) / 1024:+,.0f} KB a minute in the second half; {files} open files, {connections} connections"
        )
    assert min(counts) > 0, "an agent made no progress"
    assert files < 300
    if LONG:
        assert growth < GROWTH, f"grew by {growth:,} bytes in the second half"
