"""The bench on which a checklist runs: replicas of the target, and where the findings of each rule come from."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tenuto.audit.findings import Finding
from tenuto.audit.replicas import Gone, Refused, Replica, Target, replicas

Check = Callable[["Bench"], Iterator[Finding]]
CHECKS: Final[list[tuple[tuple[str, ...], Check]]] = []
"""The codes of each check."""
_LATE: Final = ("T020", "T010", "T006", "T024")
"""They may leave a torn file, which would fail every later check."""


class Bench:
    """The target's replicas during one audit, and what the rules already found."""

    def __init__(self, target: Target, *, seconds: float, wanted: Callable[[str], bool]) -> None:
        self.target = target
        self.seconds = seconds
        """For each level of load."""
        self.wanted = wanted
        self.found: dict[str, Finding] = {}
        self._id = f"audit-{secrets.token_hex(3)}"
        self._pair: list[Replica] = []
        self.folder = ""
        self.kind, self.conversations = "", False
        self.abilities: set[str] = set()

    def key(self, name: str) -> str:
        """Return a key that no other audit uses."""
        return f"{self._id}-{name}"

    def fresh(self) -> Replica:
        """Start a new process; the caller ends it."""
        return Replica(self.target)

    def many(self, count: int) -> Any:
        """Start several processes for a block."""
        return replicas(self.target, count)

    @property
    def pair(self) -> tuple[Replica, Replica]:
        """Return two processes that run during the whole audit."""
        while len(self._pair) < 2:
            self._pair.append(Replica(self.target))
        return self._pair[0], self._pair[1]

    def run(self, step: Callable[[int, int, str], None]) -> None:
        """Run the checks; report each with its number, the total, and its first code."""
        with tempfile.TemporaryDirectory(prefix="tenuto-audit-") as folder:
            self.folder = folder
            try:
                self.kind, abilities, self.conversations = self.pair[0]("kind")
                self.abilities = set(abilities)
                self._checked(step)
            finally:
                for one in self._pair:
                    one.stop()

    def _checked(self, step: Callable[[int, int, str], None]) -> None:
        ordered = sorted(CHECKS, key=lambda one: (_LATE.index(one[0][0]) if one[0][0] in _LATE else -1, one[0]))
        chosen = [(codes, check) for codes, check in ordered if any(map(self.wanted, codes))]
        for at, (codes, check) in enumerate(chosen):
            step(at, len(chosen), codes[0])
            try:
                findings = list(check(self))
            except (Refused, Gone) as error:
                findings = [Finding(codes[0], "failed", f"The target failed while it was tested: {error}.")]
                self._renew()
            self.found.update({one.code: one for one in findings if self.wanted(one.code)})

    def _renew(self) -> None:
        """Replace the two processes: one of them may be stuck."""
        for one in self._pair:
            with suppress(OSError):
                one.kill()
        self._pair = []

    def path(self, name: str) -> Path:
        """Return a path in the folder of this audit."""
        return Path(self.folder) / name


def check(*codes: str) -> Callable[[Check], Check]:
    """Register the check of one or more rules."""

    def put(call: Check) -> Check:
        CHECKS.append((codes, call))
        return call

    return put


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of values; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def latencies(took: list[float]) -> Mapping[str, float]:
    """Return p50, p95, p99 and the maximum in milliseconds."""
    return {
        name: round(percentile(took, share) * 1_000, 2)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }
