"""What a writer of `worker_faults.py` left behind, compared with what it noted."""

import json
from typing import NamedTuple

from crash_harness import beside

from tenuto import Tenuto
from tenuto.backends.sqlite.lockfile import LockFile
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put

LEFT, RIGHT, LINES = (keys.pack("pair", "raw", name) for name in ("left", "right", "lines"))


class Notes(NamedTuple):
    intended: list
    acknowledged: list
    errors: list
    closed: bool
    lies: list
    """Commits that were said not to be applied, and were."""
    met: bool
    """Whether the writer met its fault."""


def read_notes(file):
    notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def of(kind):
        return [what for told, what in notes if told == kind]

    lies, said = [], set()
    for kind, what in notes:
        if kind == "intent":
            said = set()
        elif kind == "error":
            said.add(what[1])
        elif kind == "ack" and what[2] and said == {"not applied"}:
            lies.append(what)
    return Notes(of("intent"), of("ack"), of("error"), bool(of("closed")), lies, bool(of("met")))


def problems(path, notes, *, others=()):
    """Reopen a store after a fault and say what is wrong: it must be before or after each commit, never between."""
    found = [f"said not to be applied, and was: {lie}" for lie in notes.lies]
    with Tenuto("judge", path) as agent:
        agent.open()
        agent._backend._sweep_due = float("inf")  # a sweep's commit would come between the two numbers compared below
        lines = [entry.value.decode() for entry in agent.kernel.entries(LINES, limit=10_000)]
        left, right = agent.kernel.read([LEFT, RIGHT])
        own = [line for line in lines if line not in others]
        if own not in (notes.intended, notes.intended[:-1]):
            found.append(f"stored {own}, intended {notes.intended}")
        acknowledged = [value for value, _, _ in notes.acknowledged]
        if own[: len(acknowledged)] != acknowledged:
            found.append(f"acknowledged {acknowledged}, stored {own}")
        states = {(record.value.decode(), record.version) if record else ("", 0) for record in (left, right)}
        if states != {(lines[-1] if lines else "", len(lines))}:
            found.append(f"the pair is at {states}, the stream at {lines[-1:]} of {len(lines)}")
        found += agent.store.check().findings
        version = agent.kernel.commit([], [Put(LEFT, b"x"), Put(RIGHT, b"x"), Append(LINES, b"x")]).versions
        if version != (len(lines) + 1,) * 3:
            found.append(f"after {len(lines)} commits the next gave {version}")
        commits = agent.store.stats()["commits"]
        lock = LockFile(beside(path, "-lock"))
        mark = lock.load()
        lock.close()
        if mark is None or mark.number != commits:
            found.append(f"the mark says {mark}, the store {commits}")
    with Tenuto("judge", path) as agent:
        found += agent.store.check().findings
    return found
