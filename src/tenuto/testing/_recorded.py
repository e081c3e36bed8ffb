"""Record the calls of one client to a backend and their answers, with the times of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Commit, Entry, Put, Record, Write
from tenuto.testing._search import NEVER


class Found(NamedTuple):
    """The answer to a read."""

    records: tuple[Record | None, ...]


class Look(NamedTuple):
    """A call that lists what is stored."""

    verb: Literal["scan", "entries", "streams"]
    key: bytes
    """The prefix, or the stream."""
    after: bytes | int | None = None
    limit: int = 100
    reverse: bool = False


class Page(NamedTuple):
    """The answer to a `Look`."""

    items: tuple[Record, ...] | tuple[Entry, ...] | tuple[bytes, ...]


class Call(NamedTuple):
    """A call and its answer: what a read or a look found, the result or conflict of a commit, or None for no answer."""

    client: str
    began: int
    """In nanoseconds of the monotonic clock, which all processes of a machine share."""
    ended: int
    read: tuple[bytes, ...]
    checks: tuple[AnyCheck, ...]
    writes: tuple[Write, ...]
    answer: Found | Page | Commit | Conflict | None
    look: Look | None = None

    @property
    def keys(self) -> set[bytes]:
        """Return all keys of the call; those of a scan are the ones that it found."""
        named = {*self.read, *(check[0] for check in self.checks), *(write[0] for write in self.writes)}
        if self.look is not None and self.look.verb == "entries":
            named.add(self.look.key)
        if isinstance(self.answer, Page):
            named |= {
                item.key if isinstance(item, Record) else item
                for item in self.answer.items
                if not isinstance(item, Entry)
            }
        return named

    @property
    def values(self) -> dict[tuple[bytes, int], bytes | None]:
        """Return the value of each key and version that the answer shows; None for a deletion."""
        if isinstance(self.answer, Commit):
            given = zip(self.writes, self.answer.versions, strict=True)
            return {(write[0], version): value_of(write) for write, version in given}
        if isinstance(self.answer, Found):
            return {(record.key, record.version): record.value for record in self.answer.records if record is not None}
        if isinstance(self.answer, Page) and self.look is not None:
            shown_by: dict[tuple[bytes, int], bytes | None] = {}
            for item in self.answer.items:
                if isinstance(item, Record):
                    shown_by[item.key, item.version] = item.value
                elif isinstance(item, Entry):
                    shown_by[self.look.key, item.number] = item.value
            return shown_by
        return {}

    def __str__(self) -> str:
        """Return the call and its answer in one line."""
        asked = ["read " + ", ".join(map(shown, self.read))] if self.read else []
        if self.look is not None:
            asked.append(_look_shown(self.look))
        asked += [f"if {shown(check[0])} is at {check[1]}" for check in self.checks]
        for write in self.writes:
            new = value_of(write)
            asked.append(f"delete {shown(write[0])}" if new is None else f"put {shown(write[0])} {read_out(new)}")
        if isinstance(self.answer, Found):
            answer = [f"{read_out(one.value)} at {one.version}" if one else "absent" for one in self.answer.records]
        elif isinstance(self.answer, Page):
            answer = [_item_shown(item) for item in self.answer.items] or ["nothing"]
        elif isinstance(self.answer, Commit):
            answer = [f"{shown(key)} is at {version}" for key, version in self.values] or ["checks hold"]
        elif isinstance(self.answer, Conflict):
            answer = [f"{shown(key)} differs" for key in self.answer.keys]
        else:
            answer = ["no answer"]
        return f"{', '.join(asked)} -> {', '.join(answer)}"


def _look_shown(look: Look) -> str:
    where = shown(look.key) if look.verb == "entries" else f"{shown(look.key)}/…"
    after = look.after if look.after is None or isinstance(look.after, int) else shown(look.after)
    options = [f"after {after}"] if after is not None else []
    options += [f"limit {look.limit}"] if look.limit != Look._field_defaults["limit"] else []
    options += ["reverse"] if look.reverse else []
    return " ".join([look.verb, where, *options])


def _item_shown(item: Record | Entry | bytes) -> str:
    if isinstance(item, bytes):
        return shown(item)
    if isinstance(item, Entry):
        return f"{item.number}: {read_out(item.value)}"
    return f"{shown(item.key)} {read_out(item.value)} at {item.version}"


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
    """A client of a backend for one thread; records its reads, scans, entries, streams and commits in `calls`."""

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

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan and record the answer. A failed scan is not recorded."""
        began = time.monotonic_ns()
        found = self._backend.scan(prefix, after=after, limit=limit, reverse=reverse)
        self._looked(began, Look("scan", prefix, after, limit, reverse), Page(tuple(found)))
        return found

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries and record the answer. A failed call is not recorded."""
        began = time.monotonic_ns()
        found = self._backend.entries(stream, after=after, limit=limit, reverse=reverse)
        self._looked(began, Look("entries", stream, after, limit, reverse), Page(tuple(found)))
        return found

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams and record the answer. A failed call is not recorded."""
        began = time.monotonic_ns()
        found = self._backend.streams(prefix, after=after, limit=limit)
        self._looked(began, Look("streams", prefix, after, limit), Page(tuple(found)))
        return found

    def _looked(self, began: int, look: Look, page: Page) -> None:
        self.calls.append(Call(self._name, began, time.monotonic_ns(), (), (), (), page, look))

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
