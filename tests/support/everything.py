"""Fill a store with something of every capability, as a list of operations says."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tenuto import InDoubt, Tenuto, Waiting

Op = tuple[str, int, Any]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.uuids()
    | st.dates()
    | st.just("large " * 20_000),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def _state(agent: Tenuto, n: int, value: Any) -> None:
    agent.state.set(f"scope {n % 2}", f"key{n % 3}", value)
    if n % 4 == 3:
        agent.state.delete(f"scope {n % 2}", f"key{n % 3}")
    agent.state.set("short", f"k{n}", value, ttl=3600)
    agent.user(f"user{n % 2}").set("pref", value)


def _thread(agent: Tenuto, n: int, value: Any) -> None:
    thread = agent.thread(f"t{n % 3}", user=f"user{n % 3}")
    thread.append({"role": "user", "content": f"message {n}"}, key=f"k{n}")
    thread.decide("take the train", why="cheaper")
    thread.tool_call("search", {"n": n}, [n])
    if n % 4 == 3:
        thread.delete()
    agent.checkpoint.create(f"c{n % 2}", {"value": value, "n": list(range(n))}, thread=f"t{n % 3}")


def _run(agent: Tenuto, n: int, value: Any) -> None:
    with contextlib.suppress(Waiting, ValueError, InDoubt), agent.run(f"r{n}", user=f"user{n % 2}") as run:
        run.step("keep", lambda: value)
        run.emit({"n": n})
        run.usage("model", cost=0.25)
        if n % 3 == 1:
            run.step("broken", int, "x")
        if n % 3 == 2:
            run.ask("Pay?", to="finance", choices=["yes", "no"])
    if n % 4 == 3:
        with contextlib.suppress(Exception):
            agent.runs.delete(f"r{n}")


def _task(agent: Tenuto, n: int, value: Any) -> None:
    agent.tasks.enqueue("mails", value, key=f"m{n}", user=f"user{n % 2}")
    if n % 2:
        claimed = agent.tasks.claim("mails")
        if claimed is not None:
            claimed.complete("sent")
    agent.tasks.every("nightly", "mails", cron="0 2 * * *")
    name = f"flow{n % 2}"
    with contextlib.suppress(Exception):
        agent.workflows.create(name, [{"action": "search", "status": "completed", "result": n}, "book"], user="user0")


def _people(agent: Tenuto, n: int, _: Any) -> None:
    question = agent.ask(f"Pay {n}?", to="ann", blocks=f"invoice:{n}", choices=["yes", "no"], key=f"q{n}")
    if n % 2:
        agent.inbox.answer(question.id, "yes", by="ann")
    agent.milestone(f"m{n}", due="30d", on_miss={"question": "Switch?", "to": "ann"})
    agent.routes.add(about="invoice:*", to="finance", deadline="24h")
    agent.handoff.send("resolver", {"case": n}, summary="a case", key=f"h{n}")


def _memory(agent: Tenuto, n: int, _: Any) -> None:
    memory = agent.memory.remember(
        f"user{n % 2} prefers seat {n}", user=f"user{n % 2}", kind="preference", about="seats"
    )
    if n % 3 == 2:
        agent.memory.forget(memory.id, reason="asked")
    agent.progress(f"job{n % 2}", goal="Ship").note(f"n{n}", "noted")
    agent.playbooks.save("refund", ["check", f"pay {n}"], description="Refund a late train")


_OPS: dict[str, Any] = {
    "state": _state, "thread": _thread, "run": _run, "task": _task, "people": _people, "memory": _memory,
}  # fmt: skip
operations = st.lists(st.tuples(st.sampled_from(sorted(_OPS)), st.integers(0, 9), values), max_size=12)
every = [(name, n, {"t": (1, decimal.Decimal("1.50")), "d": dt.date(2026, 1, 2), "u": uuid.UUID(int=n)})
         for n in range(4) for name in sorted(_OPS)]  # fmt: skip
"""A fixed list with something of everything."""


def fill(agent: Tenuto, ops: Sequence[Op]) -> None:
    """Apply operations."""
    for name, n, value in ops:
        _OPS[name](agent, n, value)
