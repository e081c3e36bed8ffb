"""What a run has done before, found again as its code asks for it.

The code of a run begins anew each time, and asks for its steps in order. One with a key is found by name and key,
wherever it stands; of several with the same, the first is found first. Any other must be the next on record, by name and arguments: code that changed is told which
step differs, and never gets a neighbour's result. Steps that were begun beside others have no order; they are
found by name and arguments among those.

A step that is not on record is new, and may be run, once everything on record has been asked for; with a key, or
beside others, also before. A recorded step under another name, with the same key or the same arguments, shows
that it was renamed: it is not run again. Nor is one whose name is on record with a key and that is asked for
without, or the other way round.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tenuto.capabilities.arguments import difference
from tenuto.capabilities.runlog import Identity, Op, Told
from tenuto.errors import StepMismatch

Same = tuple[str, str, bytes]
LENIENT: Final = b""
"""The digest of what is recognised by its name and place alone."""


class Past:
    """The recorded things of a run that its code has not asked for yet."""

    def __init__(self, run_id: str, told: Told) -> None:
        self._run = run_id
        self._ops = told.ops
        self.next = told.next
        self._alone: deque[Op] = deque()
        self._beside: dict[Same, deque[Op]] = {}
        self._keyed: dict[tuple[str, str, str], deque[Op]] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        for n in sorted(told.ops):
            op = told.ops[n]
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
        """Tell whether something is on record that has its place in an order."""
        return bool(self._alone)

    def take_next(self, name: str, digest: bytes) -> Op | None:
        """Return the next thing on record if it is this step, and it is done as most are: plainly, and all of it here."""
        if self._alone:
            op = self._alone[0]
            identity = op.identity
            plainly = op.state == "done" and not op.form and not op.apart
            if plainly and identity.name == name and identity.kind == "step" and identity.described.digest == digest:
                return self._alone.popleft()
        return None

    def take(self, identity: Identity) -> Op | None:
        """Return what is on record for this, or None if it is new; `StepMismatch` if something else is due."""
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
        """Return what speaks against running a step that is not on record: something recorded that nobody asked for.

        Beside others it may be asked for in a moment.
        """
        if identity.key is not None:
            for name in self._names.get((identity.kind, identity.key), ()):
                return self._keyed[identity.kind, name, identity.key][0]
            return self._unkeyed(identity)
        for (kind, name, _), kept in self._keyed.items():  # it had a key, which was taken away
            if (kind, name) == (identity.kind, identity.name):
                return kept[0]
        for (kind, name, digest), ops in self._beside.items():
            renamed = kind == identity.kind and digest == identity.described.digest != LENIENT and name != identity.name
            if renamed or not identity.together:
                return ops[0]
        return None

    def _unkeyed(self, identity: Identity) -> Op | None:
        """Return a step of that name that is on record without a key: one was given to it since."""
        for op in (*self._alone, *(op for ops in self._beside.values() for op in ops)):
            if (op.identity.kind, op.identity.name) == (identity.kind, identity.name):
                return op
        return None

    def refuse(self, identity: Identity, op: Op) -> StepMismatch:
        """Return the error for a step that is not on record, while another one is that nobody asked for."""
        return self._mismatch(identity, op)

    def went_on(self, op: Op) -> bool:
        """Tell whether the code went on behind an error: then it handled it, and is given it again.

        Beside others the order tells nothing: a neighbour goes on by itself. There it is known from the run's end.
        """
        return self.next > op.following and not (op.identity.together and op.left)

    def due(self, kind: str) -> Op | None:
        """Return the next thing of a kind on record that the code has not asked for yet."""
        found = [
            op
            for op in (*self._alone, *(op for ops in self._beside.values() for op in ops))
            if op.identity.kind == kind
        ]
        return min(found, key=lambda op: op.n) if found else None

    def left(self) -> Op | None:
        """Return the first thing on record, by order, that the code did not ask for, if any; keys have no order."""
        found = [*list(self._alone)[:1], *(ops[0] for ops in self._beside.values())]
        return min(found, key=lambda op: op.n) if found else None

    def forgotten(self) -> StepMismatch | None:
        """Return the error for code that has come to its end and left something on record out."""
        op = self.left()
        if op is None:
            return None
        return StepMismatch(
            f"The run {self._run!r} came to its end without asking for {_called(op.identity)}, which is on record "
            f"(number {op.n}). Let the code ask for it again and make the same call, or go on from there in another "
            f"run: {self._fork(op)}.",
            op.identity.name,
        )

    def _fork(self, op: Op) -> str:
        """Return the call that begins another run with what there is before a step."""
        key, name = op.identity.key, op.identity.name
        which = sum(other.identity.name == name and other.n <= op.n for other in self._ops.values())
        occurrence = f", occurrence={which if key is None else key!r}" if key is not None or which > 1 else ""
        return f"agent.runs.fork({self._run!r}, NEW_ID, at={name!r}{occurrence})"

    def _mismatch(self, identity: Identity, due: Op) -> StepMismatch:
        name, was = identity.name, due.identity
        advice = (
            "Let the code ask for what is on record and make the same call again, or go on from there in another run: "
            f"{self._fork(due)}."
        )
        if (was.kind, was.name, was.key) == (identity.kind, name, identity.key):
            differs = difference(was.described, identity.described)
            more = " An item of run.map is known by its place: give the same items in the same order."
            if identity.kind != "map":
                more = " In runs to come, give a step whose arguments may change a key=."
            return StepMismatch(
                f"The run {self._run!r} asks for {_called(identity)} with other arguments than on record: {differs}. "
                f"Nothing was run. {advice}{more}",
                name,
            )
        return StepMismatch(
            f"The run {self._run!r} asks for {_called(identity)} where {_called(was)} is on record "
            f"(number {due.n}). Nothing was run. {advice}",
            was.name,
        )


def _same(identity: Identity) -> Same:
    return identity.kind, identity.name, identity.described.digest


def _called(identity: Identity) -> str:
    key = "" if identity.key is None else f" with the key {identity.key!r}"
    what = "the step" if identity.kind in ("step", "map") else f"run.{identity.kind}"
    return f"{what} {identity.name!r}{key}" if identity.name != identity.kind else f"run.{identity.kind}{key}"
