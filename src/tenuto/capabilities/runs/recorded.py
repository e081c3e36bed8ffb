"""The recorded values of a run: its state, its thread, and values such as times and random numbers.

Each is a line of the run's log, written once. A replay returns the recorded value and writes nothing. The messages of
the thread are in the thread's own stream; a message and its log line are one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tenuto.capabilities.runs.arguments import Described
from tenuto.capabilities.runs.log import RESULT, Identity
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.replay import LENIENT
from tenuto.capabilities.threads import Thread
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Append, Write
from tenuto.kernel.work import Store, Work, on_caller


def noted(
    run: OpenRun,
    kind: str,
    make: Callable[[], Any],
    *,
    name: str | None = None,
    usage: Any = (),
    more: Callable[[], Sequence[Write]] = tuple,
) -> Work[Any]:
    """Return the recorded value, or make and record it, with `more` writes in the same commit."""
    run.must_go_on(f"run.{kind}")
    identity = Identity(kind, name or kind, None, Described(LENIENT), together=run.beside())
    op = yield from run.recall(identity)
    if op is not None:
        return (yield from run.value_of(op))
    run.may_begin(f"run.{kind}")
    with run.busy():
        value = codec.unpack(codec.pack(make()))
        data = [identity.stored(), 0, value, False, 0.0, list(usage), False]
        yield Store(run.record(RESULT, run.number(), data, 2, more=more()))
    return value


class RunState:
    """The state of a run: a dict whose writes are recorded; a replay sees the values of each point again."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._held: dict[str, Any] = {}

    @property
    def _clock(self) -> Clock:
        return self._run.context.clock

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value at this point of the run."""
        return codec.unpack(self._held[key]) if key in self._held else default

    @on_caller
    def set(self, key: str, value: Any) -> Work[None]:
        """Set a value durably; a replay sets the recorded value."""
        kept = yield from noted(self._run, "state", lambda: [value], name=keys.name(key, "key"))
        self._apply(key, kept)

    @on_caller
    def delete(self, key: str) -> Work[None]:
        """Delete a value durably."""
        kept = yield from noted(self._run, "state", list, name=keys.name(key, "key"))
        self._apply(key, kept)

    def _apply(self, key: str, kept: list[Any]) -> None:
        if kept:
            self._held[key] = codec.pack(kept[0])
        else:
            self._held.pop(key, None)

    def keys(self) -> list[str]:
        """Return the keys, sorted."""
        return sorted(self._held)

    def items(self) -> dict[str, Any]:
        """Return everything, by key."""
        return {key: codec.unpack(self._held[key]) for key in self.keys()}

    def __getitem__(self, key: str) -> Any:
        """Return a value; KeyError if there is none."""
        return codec.unpack(self._held[key])

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a value, durably."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a value durably; KeyError if there is none."""
        if key not in self._held:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value."""
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._held)


class RunThread:
    """The conversation of a run: a thread to which a replay appends nothing twice.

    A message and its log line are one commit. During a replay, reads return the messages of that point.
    """

    def __init__(self, run: OpenRun, thread: Thread) -> None:
        self._run = run
        self._thread = thread
        self.id = thread.id

    @property
    def _clock(self) -> Clock:
        return self._run.context.clock

    @on_caller
    def append(self, *messages: Any) -> Work[int]:
        """Append messages atomically and durably, once; return the number of the last one."""
        run = self._run
        run.must_go_on("run.thread")
        identity = Identity("thread", "append", None, Described(LENIENT), together=run.beside())
        op = yield from run.recall(identity)
        if op is not None:
            return int(op.value[1])
        run.may_begin("run.thread")
        n = run.number()

        def along(before: int, after: int) -> list[Append]:
            return [run.log.line(RESULT, n, [identity.stored(), 0, [before, after, self.id], False, 0.0, [], False])]

        with run.busy():
            return int((yield Store(run.guarded(self._thread._appending(messages, fence=run.lease, along=along)))))

    def messages(self, last: int | None = None, after: int | None = None) -> list[Any]:
        """Return the messages at this point of the run: all, the `last` n, those `after` a number."""
        upto = self._run.past.due("thread")
        return self._thread.messages(last, after, None if upto is None else upto.value[0] + 1)

    def count(self) -> int:
        """Return the number of messages at this point of the run."""
        upto = self._run.past.due("thread")
        return self._thread.count() if upto is None else int(upto.value[0])
