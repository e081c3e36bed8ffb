"""What the notes of a workflow's processes tell: which effects happened twice or never, and which promise was broken.

Effects are the user's, counted outside; the promises are tenuto's, and hold whatever the workflow is:

- a step whose result is on record never runs again, nor one behind which its code has gone on;
- a step that runs again has a line on record that says so, and why; one that may happen only once runs again only
  where somebody said that it had not happened;
- its idempotency key is the same at every attempt;
- whoever lost a run to another process adds nothing to its record any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tenuto.capabilities.runlog import AGAIN, CANCELLED, RESULT, RESUMED, SIGNALLED, STARTED
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
    """Where it waits: until when, if for a time."""
    said: str = ""
    """Where it waits: for what."""

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.kind} {self.text}" if len(self.text) < 300 else f"{self.kind} {self.text[:300]}…"


@dataclass(frozen=True)
class Twice:
    """An effect that happened more often than when nothing disturbed the workflow."""

    effect: str
    times: int
    at: str
    """Where the workflow was killed."""
    recorded: bool
    """True where the run's record says that its step was in doubt, and ran again."""

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.effect!r} happened {self.times} times when it was {self.at}"

    @property
    def advice(self) -> str:
        """Say what to do."""
        if self.recorded:
            return (
                'Its step was in doubt and ran again, as it may. Declare it effect="once" with verify=, or let the '
                "receiver know a repeat: crash.effect(…, key=tenuto.idempotency_key())."
            )
        return "No record says that it was in doubt. Did it happen outside of a step?"


@dataclass(frozen=True)
class Kill:
    """One kill, and what came of it."""

    at: str
    """Which boundary: "killed after the intent of 'post'"."""
    outcome: Outcome
    effects: dict[str, int]
    """How often each effect happened."""
    twice: list[Twice] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Effects that happened again and may."""
    broken: list[str] = field(default_factory=list)
    """Promises of tenuto that were not kept."""
    difference: str | None = None
    """What came out instead of what comes out undisturbed."""
    output: str = ""
    """What the processes printed."""

    @property
    def ok(self) -> bool:
        """Tell whether it made no difference."""
        return not (self.twice or self.never or self.broken or self.difference)

    @property
    def paused(self) -> bool:
        """Tell whether the run waits for somebody to say whether a step happened."""
        return self.outcome.kind == "in doubt"

    def __str__(self) -> str:
        """Say it in one line."""
        more = [f"twice: {one.effect}" for one in self.twice] + [f"never: {one}" for one in self.never]
        more += [*self.broken, *([self.difference] if self.difference else [])]
        more += [f"again: {one}" for one in self.repeated]
        more += [self.outcome.text] if self.paused else []
        line = f"{'ok   ' if self.ok else 'WRONG'} {self.at}"
        return line if not more else f"{line:<64} {'; '.join(more)}"


def judged(
    at: str, notes: list[Note], outcome: Outcome, plain: Kill | None, world: Counter[str] | None, output: str
) -> Kill:
    """Return what became of a workflow that was killed there; `plain` is the one that was not."""
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
    """Count effects; those that were given a key happen once for each key, as their receiver sees to."""
    found: Counter[str] = Counter()
    keyed: set[tuple[str, str]] = set()
    for note in notes:
        if note["what"] == "effect" and (note["effect"], note["key"]) not in keyed:
            found[note["effect"]] += 1
            if note["key"] is not None:
                keyed.add((note["effect"], note["key"]))
    return found


def _known(notes: list[Note]) -> set[str]:
    """Return the effects that came to their receiver again and were recognised by their key."""
    seen = Counter((note["effect"], note["key"]) for note in notes if note["what"] == "effect" and note["key"])
    return {effect for (effect, _), times in seen.items() if times > 1}


def _recorded(notes: list[Note], effect: str) -> bool:
    """Tell whether every repeat of an effect was of a step whose record says that it was repeated."""
    steps = [note["step"] for note in notes if note["what"] == "effect" and note["effect"] == effect]
    again = {(note["run"], note["n"]) for note in notes if note["what"] == "line" and note["kind"] == AGAIN}
    return all(step is not None and tuple(step) in again for step in steps)


def _broken(notes: list[Note]) -> Iterator[str]:
    begun = {(note["run"], note["n"]): note for note in notes if note["what"] == "begin"}
    for step, note in begun.items():
        yield from _of_step(notes, step, note["name"], once=note["effect"] == "once")
    yield from _of_runs(notes)


def _of_step(notes: list[Note], step: tuple[str, int], name: str, *, once: bool) -> Iterator[str]:  # noqa: C901, PLR0912 - one rule after the other
    """Yield what was wrong with a step, over all its attempts."""
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
                yield f"the step {name} may happen once, and ran again while it was in doubt"
        elif what == "returned":
            gone_on = gone_on or "with its result"
        elif what == "end" and note["raised"] is None:
            ended.add(flow)
        elif what == "begin":
            # One that stood still and lost the run meanwhile is behind the time, and does not know.
            if recorded and note["process"] == holder:
                yield f"the step {name} ran again although its result was on record"
            elif gone_on and note["process"] == holder:
                yield f"the step {name} ran again although the code had gone on {gone_on}"
            unsaid = note["attempt"] in attempts if note["attempt"] == 1 else note["attempt"] not in said
            if unsaid and note["effect"] != "pure":
                yield f"the step {name} ran again and no line on record says that it was in doubt"
            if keys and note["key"] not in keys:
                yield f"the step {name} had another idempotency key at its next attempt"
            attempts.add(note["attempt"])
            keys.add(note["key"])


def _of_runs(notes: list[Note]) -> Iterator[str]:
    """Yield where a process added to the record of a run that another had taken."""
    holder: dict[str, int] = {}
    for note in notes:
        if note["what"] != "line":
            continue
        if note["kind"] in (STARTED, RESUMED):
            holder[note["run"]] = note["process"]
        elif note["kind"] not in _OTHERS and holder.get(note["run"], note["process"]) != note["process"]:
            yield f"{note['label']} was written by a process that had lost the run to another"
