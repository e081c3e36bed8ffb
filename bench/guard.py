"""False alarms of the guard on conversations between people, and how many planted signs it finds.

    python -m bench.guard CONVERSATIONS.json

The file has a list of conversations, each with `sessions` of `turns` with `speaker` and `text`. One of the two speakers is
taken for the agent. Every twentieth statement is recorded as a decision, so that contradictions can be raised falsely, too.
For `known_answer`, everything that the other one said so far is a memory of the user: the most that can be found falsely.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tenuto import Tenuto
from tenuto.capabilities.context import Sign
from tenuto.capabilities.memory import terms

KNOWN = [
    ("The user prefers aisle seats", "Which seat do you prefer?"),
    ("The user's account number is {number}", "Could you tell me your account number?"),
    (
        "Parcels for warehouse {number} need a signature of the manager",
        "Who gives the signature for parcels of warehouse {number}?",
    ),
    (
        "Ann pays her invoices by bank transfer on the last Friday of each month",
        "On which Friday of the month does Ann pay invoices?",
    ),
    ("The customer {number} works in Berlin and lives in Potsdam", "In which town does the customer {number} live?"),
]
VALUES = [("LGA", "JFK"), ("500", "900"), ("PDF", "CSV"), ("2026", "2027"), ("EUR", "USD")]


def false_alarms(path: Path) -> tuple[int, list[Sign]]:
    turns, signs = 0, []
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
            signs += agent.guard("t").scan()
            guard = agent.guard("asked", user="u")
            for one in said:
                if one["speaker"] == conversation["speakers"][0]:
                    signs += [sign for sign in guard.say(one["text"]) if sign.kind == "known_answer"]
                else:
                    agent.memory.remember(one["text"], user="u")
    return turns, signs


def planted(count: int = 100) -> dict[str, float]:
    kinds = ("repeated_call", "repeated_question", "contradiction", "restarted_work", "known_answer")
    found = dict.fromkeys(kinds, 0)
    for number in range(count):
        with Tenuto("bench", "volatile:") as agent:
            thread, value, other = agent.thread("t"), *VALUES[number % len(VALUES)]
            question = f"Which supplier delivers part {number} to the warehouse in the north?"
            thread.append({"role": "assistant", "content": question}, {"role": "user", "content": "Number seven."})
            thread.tool_call("search", {"part": number}, "found")
            thread.decide(f"The report number {number} uses {value}")
            agent.workflows.create(
                "w",
                [{"step": 1, "action": f"collect_data_{number}", "status": "completed"}, {"step": 2, "action": "b"}],
                user="u",
            )
            known, asked = KNOWN[number % len(KNOWN)]
            for others in range(20):
                agent.memory.remember(f"The user ordered {others + 3} boxes of screws for the workshop", user="u")
            agent.memory.remember(known.format(number=number), user="u")
            guard = agent.guard("t", user="u")
            signs = [
                *guard.say(asked.format(number=number)),
                *guard.tool_call("search", {"part": number}),
                *guard.say(f"One question: which supplier delivers part {number} to the warehouse in the north?"),
                *guard.say(f"The report number {number} uses {other}."),
                *guard.tool_call(f"collect_data_{number}", {}),
            ]
            for kind in {one.kind for one in signs}:
                found[kind] += 1
    return {kind: times / count for kind, times in found.items()}


if __name__ == "__main__":
    turns, signs = false_alarms(Path(sys.argv[1]))
    print(f"{turns:,} turns, {len(signs)} false alarms: {len(signs) / turns * 1_000:.2f} per 1,000 turns")
    for one in signs:
        print(f"  {one.kind}: {one.text[:100]!r} - {one.evidence[:120]}")
    print("planted signs found:", ", ".join(f"{kind} {share:.0%}" for kind, share in planted().items()))
