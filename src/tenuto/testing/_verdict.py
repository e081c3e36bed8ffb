"""Judge the notes of a workflow's processes: effects that happened twice or never, and broken promises.

Effects are the user's and counted outside. The promises are tenuto's and hold for every workflow:

- a step never runs again after its result is recorded, or after its caller has continued;
- each repeated attempt of a step is recorded with its reason; an effect="once" step runs again only after `verify` or
  a person said that it did not happen;
- the idempotency key is the same at every attempt;
- a process that has lost a run to another adds nothing to its record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tenuto.capabilities.runs.log import AGAIN, CANCELLED, RESULT, RESUMED, SIGNALLED, STARTED
from tenuto.testing._boundaries import Note

_OTHERS = (SIGNALLED, CANCELLED)
_ALLOWED = ("not happened", "halted", "retry")


@dataclass(frozen=True)
class Outcome:
    """How a workflow ended."""

    kind: str
    """returned, raised, waits, in doubt, died or hung."""
    text: str
    """The value, or the error."""
    until: float | None = None
    """If it waits for a time: until when."""
    said: str = ""
    """If it waits: for what."""

    def __str__(self) -> str:
        """Return the outcome in one line."""
        return f"{self.kind} {self.text}" if len(self.text) < 300 else f"{self.kind} {self.text[:300]}…"


@dataclass(frozen=True)
class Twice:
    """An effect that happened more often than without kills."""

    effect: str
    times: int
    at: str
    """Where the workflow was killed."""
    recorded: bool
    """Whether the run's record shows that the step was in doubt and ran again."""

    def __str__(self) -> str:
        """Return the finding in one line."""
        return f"{self.effect!r} happened {self.times} times when it was {self.at}"

    @property
    def advice(self) -> str:
        """Return what to do."""
        if self.recorded:
            return (
                'Its step was in doubt and ran again, as allowed. Declare it effect="once" with verify=, or let the '
                "receiver detect repeats: crash.effect(…, key=tenuto.idempotency_key())."
            )
        return "No record shows that it was in doubt. Did it happen outside a step?"


@dataclass(frozen=True)
class Kill:
    """A kill and its consequences."""

    at: str
    """Which boundary: "killed after the intent of 'post'"."""
    outcome: Outcome
    effects: dict[str, int]
    """The count of each effect."""
    twice: list[Twice] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Effects that were repeated and may be."""
    broken: list[str] = field(default_factory=list)
    """Promises of tenuto that were broken."""
    difference: str | None = None
    """The outcome, if it differs from the one without kills."""
    output: str = ""
    """The output of the processes."""

    @property
    def ok(self) -> bool:
        """Return whether the kill made no difference."""
        return not (self.twice or self.never or self.broken or self.difference)

    @property
    def paused(self) -> bool:
        """Return whether the run waits for a person to say whether a step happened."""
        return self.outcome.kind == "in doubt"

    def __str__(self) -> str:
        """Return the kill and its consequences in one line."""
        more = [f"twice: {one.effect}" for one in self.twice] + [f"never: {one}" for one in self.never]
        more += [*self.broken, *([self.difference] if self.difference else [])]
        more += [f"again: {one}" for one in self.repeated]
        more += [self.outcome.text] if self.paused else []
        line = f"{'ok   ' if self.ok else 'WRONG'} {self.at}"
        return line if not more else f"{line:<64} {'; '.join(more)}"


def judged(
    at: str, notes: list[Note], outcome: Outcome, plain: Kill | None, world: Counter[str] | None, output: str
) -> Kill:
    """Return the consequences of a kill, compared with `plain`, the trial without one."""
    effects = _counted(notes) if world is None else world
    broken = list(dict.fromkeys(_broken(notes)))
    if plain is None:
        return Kill(at, outcome, dict(effects), broken=broken, output=output)
    harmless = {note["effect"] for note in notes if note["what"] == "effect" and note["again"]}
    more = [name for name in effects if effects[name] > plain.effects.get(name, 0)]
    twice = [Twice(name, effects[name], at, _recorded(notes, name)) for name in more if name not in harmless]
    paused = outcome.kind == "in doubt" and plain.outcome.kind != "in doubt"
    never = [name for name in plain.effects if effects[name] < plain.effects[name] and not paused]
    same = paused or (outcome.kind, outcome.text) == (plain.outcome.kind, plain.outcome.text)
    return Kill(
        at,
        outcome,
        dict(effects),
        twice,
        never,
        sorted({name for name in more if name in harmless} | _known(notes)),
        broken,
        None if same else f"{outcome} instead of {plain.outcome}",
        output,
    )


def _counted(notes: list[Note]) -> Counter[str]:
    """Count effects; effects with a key count once per key, because their receiver deduplicates them."""
    found: Counter[str] = Counter()
    keyed: set[tuple[str, str]] = set()
    for note in notes:
        if note["what"] == "effect" and (note["effect"], note["key"]) not in keyed:
            found[note["effect"]] += 1
            if note["key"] is not None:
                keyed.add((note["effect"], note["key"]))
    return found


def _known(notes: list[Note]) -> set[str]:
    """Return the effects that were repeated and that their receiver deduplicates by key."""
    seen = Counter((note["effect"], note["key"]) for note in notes if note["what"] == "effect" and note["key"])
    return {effect for (effect, _), times in seen.items() if times > 1}


def _recorded(notes: list[Note], effect: str) -> bool:
    """Return whether every repeat of an effect belongs to a step whose repeat is recorded."""
    steps = [note["step"] for note in notes if note["what"] == "effect" and note["effect"] == effect]
    again = {(note["run"], note["n"]) for note in notes if note["what"] == "line" and note["kind"] == AGAIN}
    return all(step is not None and tuple(step) in again for step in steps)


def _broken(notes: list[Note]) -> Iterator[str]:
    begun = {(note["run"], note["n"]): note for note in notes if note["what"] == "begin"}
    for step, note in begun.items():
        yield from _of_step(notes, step, note["name"], once=note["effect"] == "once")
    yield from _of_runs(notes)


def _of_step(notes: list[Note], step: tuple[str, int], name: str, *, once: bool) -> Iterator[str]:  # noqa: C901, PLR0912 - one rule after the other
    """Yield the broken promises of a step, over all its attempts."""
    attempts: set[int] = set()
    said: set[int] = set()
    keys: set[str] = set()
    ended: set[tuple[Any, ...]] = set()
    recorded, gone_on, holder = False, "", -1
    for note in notes:
        what, flow = note["what"], (note["process"], *note.get("flow", ()))
        if what == "begin" and flow in ended and not gone_on:
            gone_on = f"to {note['name']}"
        if what == "line" and note["run"] == step[0] and note["kind"] in (STARTED, RESUMED):
            holder = note["process"]
        if (note.get("run"), note.get("n")) != step:
            continue
        if what == "line" and note["kind"] == RESULT:
            recorded = not note["text"]
        elif what == "line" and note["kind"] == AGAIN:
            said.add(note["attempt"])
            if once and note["why"] not in _ALLOWED:
                yield f"the step {name} may happen only once, but ran again while it was in doubt"
        elif what == "returned":
            gone_on = gone_on or "with its result"
        elif what == "end" and note["raised"] is None:
            ended.add(flow)
        elif what == "begin":
            # A process that was stopped and has lost the run does not know it yet.
            if recorded and note["process"] == holder:
                yield f"the step {name} ran again although its result was recorded"
            elif gone_on and note["process"] == holder:
                yield f"the step {name} ran again although its caller had continued {gone_on}"
            unsaid = note["attempt"] in attempts if note["attempt"] == 1 else note["attempt"] not in said
            if unsaid and note["effect"] != "pure":
                yield f"the step {name} ran again, but no record shows that it was in doubt"
            if keys and note["key"] not in keys:
                yield f"the step {name} had another idempotency key at its next attempt"
            attempts.add(note["attempt"])
            keys.add(note["key"])


def _of_runs(notes: list[Note]) -> Iterator[str]:
    """Yield the records that a process added to a run which another process had taken over."""
    holder: dict[str, int] = {}
    for note in notes:
        if note["what"] != "line":
            continue
        if note["kind"] in (STARTED, RESUMED):
            holder[note["run"]] = note["process"]
        elif note["kind"] not in _OTHERS and holder.get(note["run"], note["process"]) != note["process"]:
            yield f"{note['label']} was written by a process that had lost the run to another"
