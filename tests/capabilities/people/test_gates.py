"""Gates: while a question blocks a resource, nothing guarded by it is written, also in a race."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.long import size

from tenuto import Blocked, Tenuto


def test_a_gate_names_the_question_with_its_context(agent: Tenuto) -> None:
    agent.gate("invoice:881")
    asked = agent.ask("No receipt", to="ann", context={"amount": 5}, blocks="invoice:881")
    with pytest.raises(Blocked, match="asked of ann: 'No receipt'") as caught:
        agent.gate("invoice:881")
    assert (caught.value.resource, caught.value.question, caught.value.context) == (
        "invoice:881",
        asked.id,
        {"amount": 5},
    )
    agent.gate("invoice:882")
    assert agent.inbox.list(blocks="invoice:881") == [asked]
    assert agent.inbox.list(blocks="invoice:882") == []
    agent.inbox.answer(asked.id, "fine", by="ann")
    agent.gate("invoice:881")


def test_every_guarded_write_checks_the_gate(agent: Tenuto) -> None:
    writes: dict[str, Callable[[], Any]] = {
        "set": lambda: agent.state.set("s", "k", 1, gate="g"),
        "update": lambda: agent.state.update("s", "k", lambda _: 1, gate="g"),
        "delete": lambda: agent.state.delete("s", "old", gate="g"),
        "enqueue": lambda: agent.tasks.enqueue("q", 1, key="k", gate="g"),
    }

    def transact() -> None:
        with agent.state.transaction("s", gate="g") as t:
            t["k"] = 1

    writes["transaction"] = transact
    agent.state.set("s", "old", 1)
    asked = agent.ask("?", blocks="g")
    other = agent.ask("also?", blocks="g")
    for write in writes.values():
        with pytest.raises(Blocked):
            write()
    agent.inbox.answer(asked.id, "fine")
    for write in writes.values():
        with pytest.raises(Blocked):
            write()
    assert (agent.state.items("s"), agent.tasks.pending("q")) == ({"old": 1}, [])
    agent.inbox.cancel(other.id)
    for write in writes.values():
        write()
    assert (agent.state.items("s"), len(agent.tasks.pending("q"))) == ({"k": 1}, 1)


@pytest.mark.parametrize("effect", ["pure", "idempotent", "once"])
def test_a_blocked_step_did_not_happen_and_is_tried_again(agent: Tenuto, effect: Any) -> None:
    paid: list[int] = []

    def body() -> None:
        with agent.run("r") as run:
            run.step("pay", paid.append, 1, effect=effect, gate="g")

    asked = agent.ask("?", blocks="g")
    for _ in range(2):
        with pytest.raises(Blocked):
            body()
    assert agent.runs.get("r").status == "failed"
    assert agent.inbox.list() == [asked], "no question whether it happened"
    agent.inbox.answer(asked.id, "fine")
    body()
    agent.ask("again?", blocks="g")
    body()
    assert paid == [1], "a recorded step is not guarded again"


def test_a_caught_block_is_replayed(agent: Tenuto) -> None:
    def body(fail: bool) -> str:
        with agent.run("r") as run:
            try:
                run.step("pay", lambda: "paid", gate="g")
            except Blocked:
                run.result = run.step("instead", lambda: "parked")
            if fail:
                raise ValueError
            return str(run.result)

    asked = agent.ask("?", blocks="g")
    with pytest.raises(ValueError):
        body(True)
    agent.inbox.answer(asked.id, "fine")
    assert body(False) == "parked", "the decision stands"


@pytest.mark.parametrize("policy", ["deny", "fail", "default", "wait"])
def test_an_expired_question_keeps_its_gate_closed(agent: Tenuto, clock: Any, policy: Any) -> None:
    asked = agent.ask("?", blocks="g", deadline=60, on_timeout=policy, default="ok" if policy == "default" else None)
    clock.advance(61)
    agent.inbox.fire()
    if policy == "default":
        agent.gate("g")
        return
    with pytest.raises(Blocked, match="Retry when it is answered" if policy == "wait" else "cancel.* opens the gate"):
        agent.gate("g")
    agent.inbox.cancel(asked.id, by="ann")
    agent.gate("g")


@pytest.mark.parametrize("name", ["set", "update", "delete", "transaction", "enqueue", "step"])
def test_a_block_between_the_look_and_the_write_stops_the_write(
    agent: Tenuto, client: Callable[..., Tenuto], between: Any, name: str
) -> None:
    writer = client("writer")
    agent.state.set("s", "old", 1)
    called: list[int] = []

    def write() -> None:
        if name == "set":
            writer.state.set("s", "k", 1, gate="g")
        elif name == "update":
            writer.state.update("s", "k", lambda _: 1, gate="g")
        elif name == "delete":
            writer.state.delete("s", "old", gate="g")
        elif name == "enqueue":
            writer.tasks.enqueue("q", 1, gate="g")
        elif name == "transaction":
            with writer.state.transaction("s", gate="g") as t:
                t["k"] = 1
        else:
            with writer.run("r") as run:
                between(writer, lambda: agent.ask("?", blocks="g"))
                run.step("pay", called.append, 1, gate="g")

    if name != "step":
        between(writer, lambda: agent.ask("?", blocks="g"))
    with pytest.raises(Blocked):
        write()
    assert (agent.state.items("s"), agent.tasks.pending("q"), called) == ({"old": 1}, [], [])


def test_a_gate_that_opens_between_the_commit_and_the_look_lets_the_write_through(agent: Tenuto, between: Any) -> None:
    asked = agent.ask("?", blocks="g")
    kernel = agent.kernel
    commit, tried = kernel.commit, []

    def late(checks: Any, writes: Any, **options: Any) -> Any:
        tried.append(1)
        try:
            return commit(checks, writes, **options)
        except Exception:
            kernel.commit = commit  # type: ignore[method-assign]
            agent.inbox.answer(asked.id, "fine")
            raise

    kernel.commit = late  # type: ignore[method-assign]
    agent.state.set("s", "k", 1, gate="g")
    assert tried == [1]
    assert agent.state.get("s", "k") == 1


@pytest.mark.races
def test_nothing_is_written_after_the_block(agent: Tenuto, client: Callable[..., Tenuto]) -> None:
    writer = client("writer")
    for n in range(size(10, 1_000)):
        begin, blocked = threading.Barrier(2), threading.Event()

        def write(n: int = n, begin: threading.Barrier = begin, blocked: threading.Event = blocked) -> None:
            begin.wait()
            while not blocked.is_set():
                try:
                    writer.state.set("s", f"k{n}", 1, gate=f"g{n}")
                except Blocked:
                    return

        thread = threading.Thread(target=write)
        thread.start()
        begin.wait()
        agent.ask("?", blocks=f"g{n}")
        seen = agent.state.entry("s", f"k{n}")
        thread.join()
        assert agent.state.entry("s", f"k{n}") == seen, "a write came after the block"
