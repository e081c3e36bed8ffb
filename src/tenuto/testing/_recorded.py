"""What one client asks of a backend and what it is answered, with the times of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Commit, Put, Record, Write

NEVER: Final = 1 << 63
"""When a call ended that was not answered."""


class Found(NamedTuple):
    """The answer to a read."""

    records: tuple[Record | None, ...]


class Call(NamedTuple):
    """One call and its answer: what a read found, what a commit did or what it differed in, None for no answer."""

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
        """Return every key that the call is about."""
        return {*self.read, *(check[0] for check in self.checks), *(write[0] for write in self.writes)}

    @property
    def values(self) -> dict[tuple[bytes, int], bytes | None]:
        """Return keys and versions with their values, as far as the answer tells; None for a deleted one."""
        if isinstance(self.answer, Commit):
            given = zip(self.writes, self.answer.versions, strict=True)
            return {(write[0], version): value_of(write) for write, version in given}
        if isinstance(self.answer, Found):
            return {(record.key, record.version): record.value for record in self.answer.records if record is not None}
        return {}

    def __str__(self) -> str:
        """Tell the call and its answer in a line."""
        asked = ["read " + ", ".join(map(shown, self.read))] if self.read else []
        asked += [f"if {shown(check[0])} is at {check[1]}" for check in self.checks]
        for write in self.writes:
            new = value_of(write)
            asked.append(f"delete {shown(write[0])}" if new is None else f"put {shown(write[0])} {read_out(new)}")
        if isinstance(self.answer, Found):
            told = [f"{read_out(one.value)} at {one.version}" if one else "absent" for one in self.answer.records]
        elif isinstance(self.answer, Commit):
            told = [f"{shown(key)} is at {version}" for key, version in self.values] or ["so it is"]
        elif isinstance(self.answer, Conflict):
            told = [f"{shown(key)} differs" for key in self.answer.keys]
        else:
            told = ["no answer"]
        return f"{', '.join(asked)} -> {', '.join(told)}"


def value_of(write: Write) -> bytes | None:
    """Return what a write leaves at its key, None for a deletion."""
    return write.value if isinstance(write, Put | Append) else None


def read_out(value: bytes | None) -> str:
    """Return a value as people read it."""
    return "absent" if value is None else value.decode(errors="replace")


def shown(key: bytes) -> str:
    """Return a key as people read it, without tenant and scope."""
    return "/".join(map(str, keys.unpack(key)[2:]))


class Recorded:
    """One client of a backend, for one thread; it notes its reads and commits in `calls`."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.calls: list[Call] = []
        self._backend = backend
        self._name = name
        self._unanswered: dict[bytes, int] = {}

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read, and note what was found. A read that failed says nothing about the store."""
        began = time.monotonic_ns()
        found = self._backend.read(keys)
        self.calls.append(Call(self._name, began, time.monotonic_ns(), tuple(keys), (), (), Found(tuple(found))))
        return found

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit, and note what came of it, or that nobody knows. What was surely not applied says nothing."""
        began = time.monotonic_ns()
        call = Call(self._name, began, NEVER, (), tuple(checks), tuple(writes), None)
        try:
            done = self._backend.commit(checks, writes, request=request)
        except Conflict as error:
            # After a lost reply this is a call of its own: the first sending may be on its way even now.
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
