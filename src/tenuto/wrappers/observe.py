"""Report every call to hooks as one frozen event. A hook can neither change a call nor make it fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tenuto.hooks.events import Call, Event, Hook, Verb
from tenuto.kernel import correlation
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import AnyCheck, Append, Backend, Commit, Entry, Finding, Put, Record, Write

R = TypeVar("R")
_log = logging.getLogger("tenuto.hooks")


class Observe:
    """Forward every call and report it to the hooks."""

    def __init__(self, backend: Backend, hooks: Sequence[Hook]) -> None:
        self._backend = backend
        self._hooks = tuple(hooks)

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read, and report."""
        return self._observed("read", lambda: self._backend.read(keys), _of_records)

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan, and report."""
        return self._observed(
            "scan", lambda: self._backend.scan(prefix, after=after, limit=limit, reverse=reverse), _of_records
        )

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries, and report."""
        return self._observed(
            "entries", lambda: self._backend.entries(stream, after=after, limit=limit, reverse=reverse), _of_records
        )

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit, and report."""
        size = sum(len(write[1]) for write in writes if isinstance(write, Put | Append))
        return self._observed(
            "commit",
            lambda: self._backend.commit(checks, writes, request=request),
            lambda _: (len(writes), size),
        )

    def bell(self, stream: bytes) -> Bell:
        """Return the backend's bell."""
        return self._backend.bell(stream)

    def now(self) -> float:
        """Return the store's time."""
        return self._backend.now()

    def check(self) -> list[Finding]:
        """Check, and report."""
        return self._observed("check", self._backend.check, lambda findings: (len(findings), 0))

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures, and report."""
        return self._observed("stats", self._backend.stats, lambda figures: (len(figures), 0))

    def close(self) -> None:
        """Close the store."""
        self._backend.close()

    def _observed(self, verb: Verb, call: Callable[[], R], measure: Callable[[R], tuple[int, int]]) -> R:
        began = time.perf_counter()
        try:
            result = call()
        except BaseException as error:
            self._report(verb, began, (0, 0), type(error).__name__, repeated=False)
            raise
        repeated = isinstance(result, Commit) and result.repeated
        self._report(verb, began, measure(result), None, repeated=repeated)
        return result

    def _report(self, verb: Verb, began: float, sizes: tuple[int, int], error: str | None, *, repeated: bool) -> None:
        took = time.perf_counter() - began
        report(self._hooks, Call(verb, took, *sizes, error, correlation.current(), repeated))


def report(hooks: Sequence[Hook], event: Event) -> None:
    """Pass an event to hooks; an error in one is logged, and fails nothing."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:  # noqa: BLE001 - a hook must not fail the call
            what = event.verb if isinstance(event, Call) else event.kind
            _log.exception("A hook failed on %s; the call itself is not affected", what)


def _of_records(found: Sequence[Record | Entry | None]) -> tuple[int, int]:
    return len(found), sum(len(item.value) for item in found if item is not None)
