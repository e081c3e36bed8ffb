"""The vectors of an index in memory: a matrix with a row for each text that has one, and similarities to a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.capabilities.memory.search.embedders import numpy_or_raise
from tenuto.capabilities.memory.search.ranking import Dense

_POOL = 500


class Vectors:
    """Rows of vectors, by the number of the text; each may have two: with the text before it, and alone."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.dim = 0
        self._parts: list[Any] = []
        self._matrix: Any = None
        self._count = 0

    def add(self, numbers: Sequence[int], vectors: Any) -> None:
        """Add vectors of these texts; another vector of a text replaces the first."""
        if self.dim == 0:
            self.dim = int(vectors.shape[-1])
        for at, number in enumerate(numbers):
            self.rows[number] = self._count + at
        self._count += len(numbers)
        self._parts.append(vectors)
        self._matrix = None

    def raw(self, question: Any) -> tuple[Any, Any] | None:
        """Return the numbers of the texts with a vector, and their similarities to a question."""
        if not self.rows or len(question) != self.dim:
            return None
        np = numpy_or_raise()
        if self._matrix is None:
            self._matrix = np.concatenate(self._parts) if len(self._parts) > 1 else self._parts[0]
            self._parts = [self._matrix]
        numbers = np.fromiter(self.rows.keys(), dtype=np.int64, count=len(self.rows))
        rows = np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))
        return numbers, (self._matrix @ question)[rows]


def similarities(tables: Sequence[tuple[Vectors, Vectors | None, int]], question: Any) -> list[Dense]:
    """Return the similarities to a question of several indexes, each with its number of texts, scaled together."""
    near = _scaled([(table, size) for table, _, size in tables], question)
    alone = _scaled([(text or Vectors(), size) for _, text, size in tables], question)
    return [Dense(one, other, top) for (one, top), (other, _) in zip(near, alone, strict=True)]


def _scaled(tables: Sequence[tuple[Vectors, int]], question: Any) -> list[tuple[list[float], list[int]]]:
    np = numpy_or_raise()
    raw = [table.raw(question) for table, _ in tables]
    known = [one[1] for one in raw if one is not None]
    if not known:
        return [([], []) for _ in tables]
    low, high = min(float(one.min()) for one in known), max(float(one.max()) for one in known)
    found: list[tuple[list[float], list[int]]] = []
    for (_, size), one in zip(tables, raw, strict=True):
        values = np.zeros(size, dtype=np.float32)
        top: list[int] = []
        if one is not None:
            numbers, similar = one
            values[numbers] = (similar - low) / ((high - low) or 1.0)
            best = np.argpartition(-similar, _POOL - 1)[:_POOL] if len(similar) > _POOL else slice(None)
            top = numbers[best].tolist()
        found.append((values.tolist(), top))
    return found
