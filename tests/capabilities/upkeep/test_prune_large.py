"""Pruning a large journal while others commit: how large the store is before and after, and how long others wait."""

import threading
import time
from pathlib import Path

import pytest
from support.long import LONG

from tenuto import Tenuto
from tenuto.capabilities._core import journal
from tenuto.kernel import keys
from tenuto.kernel.contract import Append
from tenuto.testing import HeldClock

DAY = 86_400.0


@pytest.mark.slow
def test_a_large_journal_is_pruned_while_others_commit(tmp_path: Path) -> None:
    """1,000,000 entries in the long form. The waits are printed, not asserted: this machine may be busy."""
    total = 1_000_000 if LONG else 20_000
    clock = HeldClock()
    with Tenuto("agent", tmp_path / "store.db", clock=clock, durability="process") as agent:
        stream, line = keys.pack("s", "state"), journal.line(agent._context, [("k", b"\x01" + b"x" * 200, None)])
        for _ in range(total // 10):
            agent.kernel.commit([], [Append(stream, line)] * 10)
            clock.advance(300 * DAY * 10 / total)
    with Tenuto("agent", tmp_path / "store.db", clock=clock) as agent, Tenuto("other", tmp_path / "store.db") as other:
        before = agent.store.stats()
        size = (tmp_path / "store.db").stat().st_size
        quiet = _waits(other, lambda: time.sleep(1.0))
        began = time.perf_counter()
        busy = _waits(other, lambda: agent.store.prune("30d"))
        took = time.perf_counter() - began
        after = agent.store.stats()
        assert total * 0.09 < after["entries"] < total * 0.12 + 5_000
        assert agent.store.check().findings == []
        copy = agent.store.backup(tmp_path / "copy.db")
        agent.store.compact()
        small = (tmp_path / "store.db").stat().st_size
        assert agent.store.check().findings == []
    assert small < size / 2
    print(
        f"{before['entries']:,} entries, {size / 1e6:.0f} MB -> {after['entries']:,} entries in {took:.1f} s; "
        f"free pages {after['free_bytes'] / 1e6:.0f} of {after['bytes'] / 1e6:.0f} MB; backup {copy / 1e6:.0f} MB; compacted {small / 1e6:.0f} MB; "
        f"others' commits: quiet median {quiet[0]:.1f} ms, worst {quiet[1]:.1f} ms; "
        f"while pruning median {busy[0]:.1f} ms, 99% {busy[2]:.1f} ms, worst {busy[1]:.1f} ms"
    )


def _waits(other: Tenuto, work: object) -> tuple[float, float, float]:
    """Return the median, the worst and the 99th percentile of commits while work is done, in milliseconds."""
    took: list[float] = []
    over = threading.Event()

    def commit() -> None:
        while not over.is_set():
            began = time.perf_counter()
            other.state.set("other", "k", len(took))
            took.append((time.perf_counter() - began) * 1_000)
            over.wait(0.005)

    thread = threading.Thread(target=commit)
    thread.start()
    work()  # type: ignore[operator]
    over.set()
    thread.join()
    ordered = sorted(took)
    return ordered[len(ordered) // 2], ordered[-1], ordered[int(len(ordered) * 0.99)]
