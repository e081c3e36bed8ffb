"""Inject storage faults: before a call, after it, instead of its reply, or as a delay.

For tests of tenuto and of programs that use it. Each fault is armed once and fires once, at the next call of
its verb, in the order of arming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from tenuto.errors import StorageUnavailable
from tenuto.hooks.events import Verb
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Entry, Finding, Record, Write

R = TypeVar("R")


class _Fault(NamedTuple):
    verb: Verb
    when: Literal["before", "after"]
    error: BaseException | None
    delay: float


class Faults:
    """Forward every call until an armed fault fires."""

    def __init__(self, backend: Backend, *, clock: Clock | None = None) -> None:
        self._backend = backend
        self._clock = clock or SystemClock()
        self._armed: list[_Fault] = []

    def fail_before(self, verb: Verb = "commit", error: BaseException | None = None) -> None:
        """Make the next call fail without reaching the store."""
        failure = error or StorageUnavailable("A fault was injected before the call. Nothing was written; try again.")
        self._armed.append(_Fault(verb, "before", failure, 0.0))

    def fail_after(self, error: BaseException, verb: Verb = "commit") -> None:
        """Make the next call succeed in the store and then raise `error`, like a crash right after it."""
        self._armed.append(_Fault(verb, "after", error, 0.0))

    def lose_reply(self, verb: Verb = "commit") -> None:
        """Make the next call succeed in the store and lose its reply, so that the caller cannot know."""
        lost = StorageUnavailable("The reply was lost. Commit again with the same request id.", outcome="unknown")
        self._armed.append(_Fault(verb, "after", lost, 0.0))

    def delay(self, seconds: float, verb: Verb = "commit") -> None:
        """Delay the next call by this many seconds."""
        self._armed.append(_Fault(verb, "before", None, seconds))

    @property
    def armed(self) -> int:
        """Return the number of faults that have not fired yet."""
        return len(self._armed)

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read, unless a fault fires."""
        return self._faulty("read", lambda: self._backend.read(keys))

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan, unless a fault fires."""
        return self._faulty("scan", lambda: self._backend.scan(prefix, after=after, limit=limit, reverse=reverse))

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries, unless a fault fires."""
        return self._faulty("entries", lambda: self._backend.entries(stream, after=after, limit=limit, reverse=reverse))

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit, unless a fault fires."""
        return self._faulty("commit", lambda: self._backend.commit(checks, writes, request=request))

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams, unless a fault fires."""
        return self._faulty("streams", lambda: self._backend.streams(prefix, after=after, limit=limit))

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load, unless a fault fires."""
        return self._faulty("load", lambda: self._backend.load(records, entries))

    def trim(self, stream: bytes, first: int) -> int:
        """Trim, unless a fault fires."""
        return self._faulty("trim", lambda: self._backend.trim(stream, first))

    def bell(self, stream: bytes) -> Bell:
        """Return the backend's bell."""
        return self._backend.bell(stream)

    def now(self) -> float:
        """Return the store's time."""
        return self._backend.now()

    def check(self) -> list[Finding]:
        """Check, unless a fault fires."""
        return self._faulty("check", self._backend.check)

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures, unless a fault fires."""
        return self._faulty("stats", self._backend.stats)

    def close(self) -> None:
        """Close the store."""
        self._backend.close()

    def _faulty(self, verb: Verb, call: Callable[[], R]) -> R:
        fault = next((fault for fault in self._armed if fault.verb == verb), None)
        if fault is None:
            return call()
        self._armed.remove(fault)
        if fault.delay:
            self._clock.sleep(fault.delay)
        if fault.error is None:
            return call()
        if fault.when == "after":
            call()
        raise fault.error
