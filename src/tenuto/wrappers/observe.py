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
_clock = time.perf_counter
_correlation = correlation.current


class Observe:
    """Forward every call and report it to the hooks."""

    def __init__(self, backend: Backend, hooks: Sequence[Hook]) -> None:
        self._backend = backend
        self._hooks = tuple(hooks)

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read, and report. It is the most frequent call and takes microseconds: here without `_observed`."""
        began = _clock()
        try:
            found = self._backend.read(keys)
        except BaseException as error:
            self._report("read", began, (0, 0), type(error).__name__)
            raise
        took = _clock() - began
        size, newest = 0, None
        for record in found:
            if record is not None:
                size += len(record[1])
                newest = record[2] if newest is None or record[2] > newest else newest
        self._tell(Call("read", took, len(found), size, None, _correlation(), False, newest))
        return found

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

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams, and report."""
        return self._observed(
            "streams", lambda: self._backend.streams(prefix, after=after, limit=limit), lambda found: (len(found), 0)
        )

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load, and report."""
        return self._observed("load", lambda: self._backend.load(records, entries), lambda count: (count, 0))

    def trim(self, stream: bytes, first: int) -> int:
        """Trim, and report."""
        return self._observed("trim", lambda: self._backend.trim(stream, first), lambda count: (count, 0))

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
            self._report(verb, began, (0, 0), type(error).__name__)
            raise
        if isinstance(result, Commit):
            version = result.versions[0] if result.versions else None
            self._report(verb, began, measure(result), None, repeated=result.repeated, version=version)
        else:
            version = _newest(result) if verb in ("read", "scan", "entries") else None
            self._report(verb, began, measure(result), None, version=version)
        return result

    def _report(
        self,
        verb: Verb,
        began: float,
        sizes: tuple[int, int],
        error: str | None,
        *,
        repeated: bool = False,
        version: int | None = None,
    ) -> None:
        took = time.perf_counter() - began
        self._tell(Call(verb, took, *sizes, error, _correlation(), repeated, version))

    def _tell(self, call: Call) -> None:
        for hook in self._hooks:
            try:
                hook(call)
            except Exception:  # noqa: BLE001 - a hook must not fail the call
                _log.exception("A hook failed on %s; the call itself is not affected", call.verb)


def report(hooks: Sequence[Hook], event: Event) -> object:
    """Pass an event to hooks; return the first answer. An error in one is logged, and fails nothing."""
    answer: object = None
    for hook in hooks:
        try:
            found = hook(event)
            answer = found if answer is None else answer
        except Exception:  # noqa: BLE001 - a hook must not fail the call
            what = type(event).__name__
            _log.exception("A hook failed on %s; the call itself is not affected", what)
    return answer


def _newest(found: Any) -> int | None:
    return max((one[2] if isinstance(one, Record) else one[0] for one in found if one is not None), default=None)


def _of_records(found: Sequence[Record | Entry | None]) -> tuple[int, int]:
    return len(found), sum(len(item.value) for item in found if item is not None)
