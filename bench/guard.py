"""False alarms of the guard on conversations between people, and how many planted signs it finds.

    python -m bench.guard [CONVERSATIONS.json]

The signs are scenes of `guard_signs`. The file has a list of conversations, each with `sessions` of `turns` with `speaker` and `text`. One of the two speakers is
taken for the agent. Every twentieth statement is recorded as a decision, so that contradictions can be raised falsely, too.
For `known_answer`, everything that the other one said so far is a memory of the user: the most that can be found falsely.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import guard_signs as signs
from tenuto import Tenuto
from tenuto.capabilities.context import Guard, Sign
from tenuto.capabilities.memory import terms


def false_alarms(path: Path) -> tuple[int, list[Sign]]:
    turns, alarms = 0, []
    for conversation in json.loads(path.read_text()):
        with Tenuto("bench", "volatile:") as agent:
            thread = agent.thread("t")
            said = [one for session in conversation["sessions"] for one in session["turns"]]
            for number, one in enumerate(said):
                role = "assistant" if one["speaker"] == conversation["speakers"][0] else "user"
                thread.append({"role": role, "content": one["text"]})
                first = one["text"].split(". ")[0]
                if number % 20 == 0 and 3 <= len(terms(first)) <= 8:
                    thread.decide(first)
            turns += len(said)
            alarms += agent.guard("t").scan()
            guard = agent.guard("asked", user="u")
            for one in said:
                if one["speaker"] == conversation["speakers"][0]:
                    alarms += [sign for sign in guard.say(one["text"]) if sign.kind == "known_answer"]
                else:
                    agent.memory.remember(one["text"], user="u")
    return turns, alarms


def _asked(agent: Tenuto, guard: Guard, first: str, answer: str, again: str) -> list[Sign]:
    agent.thread("t").append({"role": "assistant", "content": first}, {"role": "user", "content": answer})
    return guard.say(again)


def _decided(agent: Tenuto, guard: Guard, decision: str, said: str) -> list[Sign]:
    agent.thread("t").decide(decision)
    return guard.say(said)


def _preferred(agent: Tenuto, guard: Guard, key: str, value: str, said: str) -> list[Sign]:
    agent.user("u").set(key, value)
    return guard.say(said)


def _worked(agent: Tenuto, guard: Guard, said: str, actions: Sequence[str] = signs.WORKFLOW) -> list[Sign]:
    steps = [{"action": one, "status": "completed" if at < 2 else "pending"} for at, one in enumerate(actions)]
    agent.workflows.create("w", steps, user="u")
    return guard.say(said)


def _worked_more(agent: Tenuto, guard: Guard, said: str) -> list[Sign]:
    return _worked(agent, guard, said, signs.MORE_WORK)


def _called(agent: Tenuto, guard: Guard, name: str, args: Any, again: Any) -> list[Sign]:
    agent.thread("t").tool_call(name, args, "found")
    return guard.tool_call(name, again)


def _known(agent: Tenuto, guard: Guard, memory: str, question: str) -> list[Sign]:
    for number in range(20):
        agent.memory.remember(f"The user ordered {number + 3} boxes of screws for the workshop", user="u")
    agent.memory.remember(memory, user="u")
    return guard.say(question)


SCENES: dict[str, list[tuple[Callable[..., list[Sign]], str, str, str]]] = {
    "repeated_call": [(_called, "CALLS", "OTHER_CALLS", "")],
    "repeated_question": [
        (_asked, "QUESTIONS", "OTHER_QUESTIONS", "REWORDED_QUESTIONS"),
        (_asked, "MORE_QUESTIONS", "MORE_OTHER_QUESTIONS", ""),
    ],
    "contradiction": [
        (_decided, "CONTRADICTIONS", "CONSISTENT", "REWORDED_CONTRADICTIONS"),
        (_preferred, "PREFERENCES", "", ""),
        (_decided, "MORE_CONTRADICTIONS", "MORE_CONSISTENT", ""),
        (_preferred, "MORE_PREFERENCES", "", ""),
    ],
    "restarted_work": [
        (_worked, "RESTARTED", "GOING_ON", "REWORDED_RESTARTS"),
        (_worked_more, "MORE_RESTARTED", "MORE_GOING_ON", ""),
    ],
    "known_answer": [
        (_known, "KNOWN", "UNKNOWN", "REWORDED_KNOWN"),
        (_known, "MORE_KNOWN", "MORE_UNKNOWN", ""),
    ],
}


class Judged(NamedTuple):
    """How the guard judged a list of scenes."""

    kind: str
    name: str
    right: bool
    """Whether the scenes have signs."""
    count: int
    wrong: list[Any]


def planted() -> Iterator[Judged]:
    for kind, groups in SCENES.items():
        for act, *names in groups:
            for at, name in enumerate(names):
                scenes = getattr(signs, name) if name else []
                wrong = [scene for scene in scenes if _found(kind, act, scene) != (at != 1)]
                if scenes:
                    yield Judged(kind, name, at != 1, len(scenes), wrong)


def _found(kind: str, act: Callable[..., list[Sign]], scene: Any) -> bool:
    with Tenuto("bench", "volatile:") as agent:
        found = act(agent, agent.guard("t", user="u"), *(scene if isinstance(scene, tuple) else (scene,)))
    return kind in {one.kind for one in found}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        turns, alarms = false_alarms(Path(sys.argv[1]))
        print(f"{turns:,} turns, {len(alarms)} false alarms: {len(alarms) / turns * 1_000:.2f} per 1,000 turns")
        for one in alarms:
            print(f"  {one.kind}: {one.text[:100]!r} - {one.evidence[:120]}")
    for one in planted():
        print(
            f"{one.kind}, {one.name}: {'found' if one.right else 'no sign in'} {one.count - len(one.wrong)} of {one.count}"
        )
        for scene in one.wrong:
            print(f"  {'missed' if one.right else 'false'}: {scene}")
