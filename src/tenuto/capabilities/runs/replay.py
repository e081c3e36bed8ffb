"""Replay: match the steps that a run's code asks for with the recorded ones.

The code starts again each time and asks for its steps in order. A step with a key is found by name and key, in any
order; equal ones in their recorded order. Any other must be the next recorded step, by name and arguments: changed code
gets an error that names the difference, never another step's result. Concurrent steps have no order; they are found by
name and arguments.

A new step may run once all recorded ones were asked for; with a key, or concurrently, also before. A recorded step with
another name but the same key or arguments was renamed: it does not run again. Nor does a step that gained or lost its
key.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tenuto.capabilities.runs.arguments import difference
from tenuto.capabilities.runs.log import History, Identity, Op
from tenuto.errors import StepMismatch

Same = tuple[str, str, bytes]
LENIENT: Final = b""
"""The digest of operations that are identified by name and order alone."""


class Replay:
    """The recorded operations that the code has not asked for yet."""

    def __init__(self, run_id: str, history: History) -> None:
        self._run = run_id
        self._ops = history.ops
        self.next = history.next
        self._alone: deque[Op] = deque()
        self._beside: dict[Same, deque[Op]] = {}
        self._keyed: dict[tuple[str, str, str], deque[Op]] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        for n in sorted(history.ops):
            op = history.ops[n]
            identity = op.identity
            if identity.key is not None:
                self._keyed.setdefault((identity.kind, identity.name, identity.key), deque()).append(op)
                self._names.setdefault((identity.kind, identity.key), set()).add(identity.name)
            elif identity.together:
                self._beside.setdefault(_same(identity), deque()).append(op)
            else:
                self._alone.append(op)

    @property
    def has_next(self) -> bool:
        """Return whether a recorded operation is left that must come in order."""
        return bool(self._alone)

    def take_next(self, name: str, digest: bytes) -> Op | None:
        """Return the next recorded operation if it is this step, done, with a plain inline result."""
        if self._alone:
            op = self._alone[0]
            identity = op.identity
            plainly = op.state == "done" and not op.form and not op.apart
            if plainly and identity.name == name and identity.kind == "step" and identity.described.digest == digest:
                return self._alone.popleft()
        return None

    def take(self, identity: Identity) -> Op | None:
        """Return the recorded operation, or None if it is new; raise `StepMismatch` if another one is next."""
        if identity.key is not None:
            return self._take_keyed(identity, identity.key)
        same = _same(identity)
        due = self._alone[0] if self._alone else None
        if due is not None and _same(due.identity) == same:
            return self._alone.popleft()
        found = self._beside.get(same)
        if found:
            op = found.popleft()
            if not found:
                del self._beside[same]
            return op
        if due is not None and not identity.together:
            raise self._mismatch(identity, due)
        return None

    def _take_keyed(self, identity: Identity, key: str) -> Op | None:
        which = identity.kind, identity.name, key
        found = self._keyed.get(which)
        if not found:
            return None
        op = found.popleft()
        if not found:
            del self._keyed[which]
            self._names[identity.kind, key].discard(identity.name)
        if op.identity.described.digest != identity.described.digest:
            raise self._mismatch(identity, op)
        return op

    def hindrance(self, identity: Identity) -> Op | None:
        """Return the recorded operation that forbids running a new step, if any; concurrent code may still ask for it."""
        if identity.key is not None:
            for name in self._names.get((identity.kind, identity.key), ()):
                return self._keyed[identity.kind, name, identity.key][0]
            return self._unkeyed(identity)
        for (kind, name, _), kept in self._keyed.items():  # its key was removed
            if (kind, name) == (identity.kind, identity.name):
                return kept[0]
        for (kind, name, digest), ops in self._beside.items():
            renamed = kind == identity.kind and digest == identity.described.digest != LENIENT and name != identity.name
            if renamed or not identity.together:
                return ops[0]
        return None

    def _unkeyed(self, identity: Identity) -> Op | None:
        """Return a recorded step of that name without a key: the code has added one since."""
        for op in (*self._alone, *(op for ops in self._beside.values() for op in ops)):
            if (op.identity.kind, op.identity.name) == (identity.kind, identity.name):
                return op
        return None

    def refuse(self, identity: Identity, op: Op) -> StepMismatch:
        """Return the error for a new step that a recorded one forbids."""
        return self._mismatch(identity, op)

    def went_on(self, op: Op) -> bool:
        """Return whether the code handled this error and continued: then a replay raises it again.

        The order of concurrent steps does not show this; there, the end of the run does.
        """
        return self.next > op.following and not (op.identity.together and op.left)

    def due(self, kind: str) -> Op | None:
        """Return the next recorded operation of a kind that the code has not asked for."""
        found = [
            op
            for op in (*self._alone, *(op for ops in self._beside.values() for op in ops))
            if op.identity.kind == kind
        ]
        return min(found, key=lambda op: op.n) if found else None

    def left(self) -> Op | None:
        """Return the first recorded operation without a key that the code did not ask for, if any."""
        found = [*list(self._alone)[:1], *(ops[0] for ops in self._beside.values())]
        return min(found, key=lambda op: op.n) if found else None

    def forgotten(self) -> StepMismatch | None:
        """Return the error for code that ended without asking for a recorded operation."""
        op = self.left()
        if op is None:
            return None
        return StepMismatch(
            f"The run {self._run!r} ended without asking for {_called(op.identity)}, which is recorded (number {op.n}). "
            f"Restore that code and repeat the call, or continue in a fork: {self._fork(op)}.",
            op.identity.name,
        )

    def _fork(self, op: Op) -> str:
        """Return the call that forks the run before a step."""
        key, name = op.identity.key, op.identity.name
        which = sum(other.identity.name == name and other.n <= op.n for other in self._ops.values())
        occurrence = f", occurrence={which if key is None else key!r}" if key is not None or which > 1 else ""
        return f"agent.runs.fork({self._run!r}, NEW_ID, at={name!r}{occurrence})"

    def _mismatch(self, identity: Identity, due: Op) -> StepMismatch:
        name, was = identity.name, due.identity
        advice = (
            "Restore the code that asks for the recorded one and repeat the call, or continue in a fork: "
            f"{self._fork(due)}."
        )
        if (was.kind, was.name, was.key) == (identity.kind, name, identity.key):
            differs = difference(was.described, identity.described)
            more = " run.map needs the same items in the same order."
            if identity.kind != "map":
                more = " In new runs, pass key= to a step whose arguments may change."
            return StepMismatch(
                f"The run {self._run!r} asks for {_called(identity)} with other arguments than recorded: {differs}. "
                f"Nothing was run. {advice}{more}",
                name,
            )
        return StepMismatch(
            f"The run {self._run!r} asks for {_called(identity)} where {_called(was)} is recorded "
            f"(number {due.n}). Nothing was run. {advice}",
            was.name,
        )


def _same(identity: Identity) -> Same:
    return identity.kind, identity.name, identity.described.digest


def _called(identity: Identity) -> str:
    key = "" if identity.key is None else f" with the key {identity.key!r}"
    what = "the step" if identity.kind in ("step", "map") else f"run.{identity.kind}"
    return f"{what} {identity.name!r}{key}" if identity.name != identity.kind else f"run.{identity.kind}{key}"
