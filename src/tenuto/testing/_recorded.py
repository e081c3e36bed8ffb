"""Record the calls of one client to a backend and their answers, with the times of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Commit, Put, Record, Write

NEVER: Final = 1 << 63
"""The end time of a call without an answer."""


class Found(NamedTuple):
    """The answer to a read."""

    records: tuple[Record | None, ...]


class Call(NamedTuple):
    """A call and its answer: the records of a read, the result or conflict of a commit, or None for no answer."""

    client: str
    began: int
    """In nanoseconds of the monotonic clock, which all processes of a machine share."""
    ended: int
    read: tuple[bytes, ...]
    checks: tuple[AnyCheck, ...]
    writes: tuple[Write, ...]
    answer: Found | Commit | Conflict | None

    @property
    def keys(self) -> set[bytes]:
        """Return all keys of the call."""
        return {*self.read, *(check[0] for check in self.checks), *(write[0] for write in self.writes)}

    @property
    def values(self) -> dict[tuple[bytes, int], bytes | None]:
        """Return the value of each key and version that the answer shows; None for a deletion."""
        if isinstance(self.answer, Commit):
            given = zip(self.writes, self.answer.versions, strict=True)
            return {(write[0], version): value_of(write) for write, version in given}
        if isinstance(self.answer, Found):
            return {(record.key, record.version): record.value for record in self.answer.records if record is not None}
        return {}

    def __str__(self) -> str:
        """Return the call and its answer in one line."""
        asked = ["read " + ", ".join(map(shown, self.read))] if self.read else []
        asked += [f"if {shown(check[0])} is at {check[1]}" for check in self.checks]
        for write in self.writes:
            new = value_of(write)
            asked.append(f"delete {shown(write[0])}" if new is None else f"put {shown(write[0])} {read_out(new)}")
        if isinstance(self.answer, Found):
            answer = [f"{read_out(one.value)} at {one.version}" if one else "absent" for one in self.answer.records]
        elif isinstance(self.answer, Commit):
            answer = [f"{shown(key)} is at {version}" for key, version in self.values] or ["checks hold"]
        elif isinstance(self.answer, Conflict):
            answer = [f"{shown(key)} differs" for key in self.answer.keys]
        else:
            answer = ["no answer"]
        return f"{', '.join(asked)} -> {', '.join(answer)}"


def value_of(write: Write) -> bytes | None:
    """Return the value that a write stores, None for a deletion."""
    return write.value if isinstance(write, Put | Append) else None


def read_out(value: bytes | None) -> str:
    """Return a value as readable text."""
    return "absent" if value is None else value.decode(errors="replace")


def shown(key: bytes) -> str:
    """Return a key as readable text, without tenant and scope."""
    return "/".join(map(str, keys.unpack(key)[2:]))


class Recorded:
    """A client of a backend for one thread; records its reads and commits in `calls`."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.calls: list[Call] = []
        self._backend = backend
        self._name = name
        self._unanswered: dict[bytes, int] = {}

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read and record the answer. A failed read is not recorded."""
        began = time.monotonic_ns()
        found = self._backend.read(keys)
        self.calls.append(Call(self._name, began, time.monotonic_ns(), tuple(keys), (), (), Found(tuple(found))))
        return found

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit and record the answer, or that the outcome is unknown. A commit that surely failed is not recorded."""
        began = time.monotonic_ns()
        call = Call(self._name, began, NEVER, (), tuple(checks), tuple(writes), None)
        try:
            done = self._backend.commit(checks, writes, request=request)
        except Conflict as error:
            # After a lost reply this is a separate call: the first one may still be in flight.
            self.calls.append(call._replace(ended=time.monotonic_ns(), answer=error))
            raise
        except StorageUnavailable as error:
            if error.outcome == "unknown" and request not in self._unanswered:
                if request is not None:
                    self._unanswered[request] = len(self.calls)
                self.calls.append(call)
            raise
        ended = time.monotonic_ns()
        at = self._unanswered.pop(request, None) if request is not None else None
        if at is None:
            self.calls.append(call._replace(ended=ended, answer=done))
        else:
            self.calls[at] = self.calls[at]._replace(ended=ended, answer=done)
        return done
