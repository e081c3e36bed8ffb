"""Acts: what a replica does with its subject when the audit asks. Each is a function of the subject and the pipe."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tenuto.audit.driving import drive as drive  # noqa: PLC0414  # an act, too
from tenuto.audit.subjects import Subject, is_conflict
from tenuto.capabilities.people import Happened, NotHappened
from tenuto.wrappers.observe import Observe

TYPED: Final = {
    "when": datetime(2026, 5, 1, 12, 30, tzinfo=UTC),
    "pair": (1, 2),
    "text": "Grüße, 東京, שלום",
    "ratio": 0.1,
    "big": 2**53 + 1,
}
_STILL: Final = 1.5
"""Seconds after which a value that does not change will not."""
_PAUSE: Final = 0.2
"""Seconds between two turns of a conversation under load."""


def kind(subject: Subject, _: Connection) -> tuple[str, list[str], bool]:
    """Return what the subject is, and what it can do."""
    return subject.kind, sorted(subject.abilities), subject.conversations


def read(subject: Subject, _: Connection, key: str) -> Any:
    """Read a value."""
    return subject.read(key)


def write(subject: Subject, _: Connection, key: str, value: Any, seconds: float | None = None) -> None:
    """Write a value."""
    subject.write(key, value, seconds=seconds)


def say(subject: Subject, _: Connection, key: str, texts: list[str]) -> None:
    """Add messages to a conversation."""
    for text in texts:
        subject.say(key, text)


def said(subject: Subject, _: Connection, key: str) -> list[str]:
    """Return the texts of a conversation."""
    return subject.said(key)


def adds(subject: Subject, _: Connection, key: str, times: int) -> tuple[int, int, list[str]]:
    """Add one to a counter several times; return how many returned, how many conflicts, and the other errors."""
    returned = conflicts = 0
    errors: list[str] = []
    for _round in range(times):
        try:
            subject.add(key)
            returned += 1
        except Exception as error:  # noqa: BLE001 - an error is evidence, and no lost update
            if is_conflict(error):
                conflicts += 1
            else:
                errors.append(f"{type(error).__name__}: {error}"[:120])
    return returned, conflicts, errors


def count(subject: Subject, _: Connection, key: str) -> int:
    """Return a counter."""
    return subject.count(key)


def fields(subject: Subject, _: Connection, key: str, names: list[str]) -> list[str]:
    """Set fields of one value; return those whose write returned."""
    kept = []
    for name in names:
        with suppress(Exception):  # what raised is not counted as written
            subject.change(key, name, True)
            kept.append(name)
    return kept


def seen(subject: Subject, _: Connection, key: str) -> tuple[Any, Any]:
    """Return a value and its version."""
    return subject.seen(key)


def write_if(subject: Subject, _: Connection, key: str, value: Any, version: Any) -> None:
    """Write a value if it is still at a version."""
    subject.write_if(key, value, version)


def writes_for_ever(subject: Subject, pipe: Connection, key: str, first: int, size: int) -> None:
    """Write increasing numbers until killed; report each that returned."""
    number = first
    while True:
        subject.write(key, {"number": number, "padding": "x" * size})
        pipe.send(number)
        number += 1


def number(subject: Subject, _: Connection, key: str) -> int:
    """Return the number of a value that `writes_for_ever` wrote; raise if it is not whole."""
    found = subject.read(key)
    if found is None:
        return 0
    if set(found) != {"number", "padding"} or set(found["padding"]) - {"x"}:
        raise ValueError("the value is neither the old nor the new one")
    return int(found["number"])


def counts_up(subject: Subject, pipe: Connection, key: str, times: int) -> None:
    """Write increasing numbers, with the time of the end of each write."""
    for value in range(1, times + 1):
        subject.write(key, {"count": value})
        pipe.send((True, (value, time.monotonic())))
        time.sleep(0.002)


def watches(subject: Subject, _: Connection, key: str, until: int, seconds: float) -> list[tuple[float, float, int]]:
    """Read a counter until it has reached a number; return begin, end and value of each read."""
    found: list[tuple[float, float, int]] = []
    ends, changed, last = time.monotonic() + seconds, time.monotonic(), -1
    while time.monotonic() < min(ends, changed + _STILL):
        began = time.monotonic()
        value = subject.count(key)
        found.append((began, time.monotonic(), value))
        if value != last:
            changed, last = time.monotonic(), value
        if value >= until:
            break
        time.sleep(0.0005)
    return found


def typed(subject: Subject, _: Connection, key: str) -> list[str]:
    """Write values of several types; return the names of those that came back changed."""
    changed = []
    for name, value in TYPED.items():
        try:
            subject.write(f"{key}-{name}", {"value": value})
        except Exception:  # noqa: BLE001, S112 - refused is not changed
            continue
        found = subject.read(f"{key}-{name}")
        if not (isinstance(found, dict) and found.get("value") == value and type(found["value"]) is type(value)):
            changed.append(f"{name}: {value!r} became {found.get('value') if isinstance(found, dict) else found!r}")
    return changed


def aliased(subject: Subject, _: Connection, key: str) -> bool:
    """Return whether changing a value that was read changes what is stored."""
    subject.write(key, {"seat": "aisle"})
    subject.read(key)["seat"] = "window"
    return bool(subject.read(key)["seat"] == "window")


def load(subject: Subject, _: Connection, prefix: str, conversations: int, seconds: float) -> dict[str, Any]:
    """Let concurrent conversations take turns, each a lookup and a write; return the times of the lookups."""
    took: list[float] = []
    errors: list[str] = []
    ends = time.monotonic() + seconds
    ready = threading.Barrier(conversations)

    def converse(mine: int) -> None:
        key = f"{prefix}-{mine}"
        try:
            subject.write(key, {"turn": 0, "notes": "x" * 200})
        except Exception as error:  # noqa: BLE001 - reported
            errors.append(f"{type(error).__name__}: {error}"[:120])
        ready.wait()
        time.sleep(_PAUSE * mine / conversations)
        turn = 0
        while time.monotonic() < ends or not turn:
            turn += 1
            began = time.perf_counter()
            try:
                subject.read(key)
                took.append(time.perf_counter() - began)
                subject.write(key, {"turn": turn, "notes": "x" * 200})
            except Exception as error:  # noqa: BLE001 - reported
                errors.append(f"{type(error).__name__}: {error}"[:120])
            time.sleep(_PAUSE if conversations > 1 else 0.01)

    threads = [threading.Thread(target=converse, args=(one,), daemon=True) for one in range(conversations)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(seconds + 30)
    return {"took": took, "errors": errors}


def files(subject: Subject, _: Connection, prefix: str) -> tuple[int, int]:
    """Return how many files and sockets are open before and after 200 calls from 10 threads."""
    subject.read(prefix)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count

    def call(mine: int) -> None:
        for _round in range(20):
            with suppress(Exception):
                subject.read(f"{prefix}-{mine}")

    threads = [threading.Thread(target=call, args=(one,)) for one in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return before, len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def outage(subject: Subject, _: Connection) -> list[str]:
    """Read and write without storage; return what each call answered."""
    away = subject.outage()
    found = []
    for name, call in (("read", lambda: away.read("user")), ("write", lambda: away.write("user", {"new": True}))):
        began = time.monotonic()
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            found.append(f"{name}: raised {type(error).__name__} after {time.monotonic() - began:.1f} s")
        else:
            found.append(f"{name}: returned {answer!r:.60}")
    return found


def grow(subject: Subject, _: Connection, key: str, turns: int) -> list[tuple[int, int]]:
    """Hold a conversation of 1 KB a turn; return the bytes of the storage after some turns."""
    sizes = [(0, subject.size())]
    for turn in range(1, turns + 1):
        subject.say(key, f"turn {turn} " + os.urandom(500).hex())
        if turn % (turns // 4) == 0:
            sizes.append((turn, subject.size()))
    return sizes


def earlier(subject: Subject, _: Connection, key: str) -> int:
    """Return how many values of a key can be read, the current one included."""
    for value in (1, 2, 3):
        subject.write(key, {"value": value})
    return subject.earlier(key)


def forget(subject: Subject, _: Connection, key: str, other: str) -> tuple[bool, bool]:
    """Delete a value; return whether it is gone and another one still there."""
    subject.write(key, {"messages": ["hello"]})
    subject.write(other, {"city": "Lisbon"})
    subject.delete(key)
    return subject.read(key) is None, subject.read(other) == {"city": "Lisbon"}


def backup(subject: Subject, _: Connection, folder: str, prefix: str) -> tuple[int, list[str]]:
    """Write data, back up, restore; return how much was compared and what differs."""
    expected = {f"{prefix}-{one}": {"number": one, "text": "x" * one} for one in range(50)}
    for key, value in expected.items():
        subject.write(key, value)
    texts = [f"message {one}" for one in range(20)]
    for text in texts:
        subject.say(f"{prefix}-talk", text)
    copy = subject.backup(folder)
    wrong = [key for key, value in expected.items() if copy.read(key) != value]
    if copy.said(f"{prefix}-talk") != texts:
        wrong.append(f"{prefix}-talk")
    copy.close()
    return len(expected) + len(texts), wrong


def hooked(subject: Subject, _: Connection, key: str) -> tuple[int, int]:
    """Return how many calls a tenuto store received, and how many a hook reported with a duration."""
    events: list[Any] = []
    kernel: Any = Observe(subject.target.kernel, [events.append])
    made = 20
    for one in range(made):
        kernel.read([f"\x02audit\x00\x02{key}{one}\x00".encode()])
    return made, sum(one.verb == "read" and one.seconds > 0 and one.error is None for one in events)


# -- what a tenuto store can do beyond get and set ---------------------------------------------


def run_and_die(subject: Subject, _: Connection, run_id: str, ledger: str) -> None:
    """Run a trip, and die inside the payment: after its effect, before its result is recorded."""
    _trip(subject.target, run_id, Path(ledger), dies=True)


def run_again(subject: Subject, _: Connection, run_id: str, ledger: str) -> list[str]:
    """Resume the trip; return its result."""
    _trip(subject.target, run_id, Path(ledger), dies=False)
    return Path(ledger).read_text().split()


def _trip(agent: Any, run_id: str, ledger: Path, *, dies: bool) -> None:
    def note(what: str) -> str:
        with ledger.open("a") as file:
            file.write(f"{what}\n")
        return what

    def pay(amount: int) -> str:
        note("paid")
        if dies:
            os._exit(137)
        return f"paid {amount}"

    def happened(_: Any) -> Any:
        return Happened("paid 42") if "paid" in ledger.read_text().split() else NotHappened()

    with agent.run(run_id) as run:
        run.step("search", note, "searched")
        run.step("pay", pay, 42, effect="once", verify=happened)
        run.step("mail", note, "mailed")


def steps(subject: Subject, _: Connection, run_id: str) -> dict[str, str]:
    """Return the steps of a run and their status."""
    return {one.name: one.status for one in subject.target.runs.get(run_id).steps}


def progress(subject: Subject, _: Connection, name: str) -> str | None:
    """Write a progress document; return the next action as a new client reads it."""
    agent = subject.target
    agent.progress(name, goal="book a trip").next("compare the two flights")
    found: str | None = agent.progress(name).get().next_action
    return found


def masked(subject: Subject, _: Connection, name: str) -> tuple[int, int, int, int]:
    """Return tokens of a conversation and of the built context, and checkpoints before and after pruning."""
    agent = subject.target
    thread = agent.thread(name)
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages: list[Any] = [{"role": "user", "content": "find flights"}]
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "flight TP123 " * 4_000}]
    messages += [{"role": "user", "content": f"question {one}"} for one in range(12)]
    thread.append(*messages)
    built = agent.build_context(thread=name, budget=4_000)
    for one in range(5):
        agent.checkpoint.create(name, {"step": one}, thread=name)
    before = len(agent.checkpoint.list(thread=name))
    agent.checkpoint.prune(thread=name, keep_last=2)
    return 4 * 4_000, built.tokens, before, len(agent.checkpoint.list(thread=name))


def learned(subject: Subject, _: Connection, user: str, name: str) -> bool:
    """Return whether what is known of a user survives the deletion of a conversation."""
    agent = subject.target
    agent.thread(name, user=user).append({"role": "user", "content": "I only eat vegan food"})
    agent.memory.remember("The user eats vegan food", user=user)
    agent.thread(name, user=user).delete()
    found = agent.memory.recall("what food", user=user)
    return bool(found) and agent.thread(name).messages() == []


# -- LangGraph ---------------------------------------------------------------------------------


def begun(subject: Any, _: Connection, key: str) -> None:
    """Record the finished work of one task of a step."""
    subject.begun(key)


def pending(subject: Any, _: Connection, key: str) -> int:
    """Return how many writes of finished tasks there are."""
    return len(subject.pending(key))
