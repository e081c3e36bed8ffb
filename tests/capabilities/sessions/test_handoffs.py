"""Handoffs: validated at both ends, accepted once, left to another when their receiver dies."""

import dataclasses
from collections.abc import Callable
from threading import Thread

import msgspec
import pytest

from tenuto import Conflict, InvalidInput, NotFound, StaleLease, Tenuto, TimedOut
from tenuto.testing import HeldClock


class Case(msgspec.Struct):
    number: int
    lines: list[str] = []


@dataclasses.dataclass
class Line:
    text: str
    amount: float


JSON = {
    "title": "Case",
    "type": "object",
    "properties": {"number": {"type": "integer"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
    "required": ["number"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"amount": {"type": "number", "minimum": 0}}}},
}


def test_a_handoff_arrives_whole_and_is_accepted_once(client: Callable[..., Tenuto]) -> None:
    triage, resolver = client("triage"), client("resolver")
    sent = triage.handoff.send(
        "resolver", Case(881, ["no receipt"]), schema=Case, summary="Invoice without a receipt",
        decisions=["ask the vendor"], open_questions=["who pays?"], ruled_out=[{"tried": "OCR", "why": "blurred"}],
        thread="case-881",
    )  # fmt: skip
    assert resolver.handoff.list("resolver", status="pending") == [sent]
    assert client("other").handoff.receive() is None
    h = resolver.handoff.receive(schema=Case)
    assert h is not None
    assert h.data == Case(881, ["no receipt"])
    assert (h.sender, h.summary, h.thread) == ("triage", "Invoice without a receipt", "case-881")
    assert (h.info.decisions, h.info.open_questions) == (["ask the vendor"], ["who pays?"])
    assert h.info.ruled_out == [{"tried": "OCR", "why": "blurred"}]
    assert resolver.handoff.receive() is None, "it is held"
    with pytest.raises(TimedOut):
        triage.handoff.outcome(sent.id)
    assert h.accept().status == "accepted"
    with pytest.raises(StaleLease):
        h.accept()
    assert resolver.handoff.receive() is None
    assert triage.handoff.outcome(sent.id, wait=1).by == "resolver"
    assert triage.handoff.withdraw(sent.id) is False


@pytest.mark.parametrize(
    ("schema", "data", "field"),
    [
        (Case, {"number": "x"}, r"data\.number"),
        (Case, Case(1, [2]), r"data\.lines\[\.\.\.\]|data\.lines\[0\]"),
        (Case, {}, r"data\.number: is missing"),
        (Line, Line("a", "much"), r"data\.amount"),  # type: ignore
        (list[Line], [Line("a", 1.0), {"text": "b"}], r"amount: is missing"),
        (JSON, {"number": "x"}, r"data\.number: must be of type integer, not string"),
        (JSON, {"number": 1, "lines": [{"amount": 1}, {"amount": -1}]}, r"data\.lines\[1\]\.amount"),
        (JSON, {}, r"data\.number: is missing"),
        (JSON, {"number": 1, "extra": 2}, r"data\.extra: is unknown"),
    ],
)
def test_data_that_does_not_fit_is_refused_at_the_sender_with_the_field_named(
    agent: Tenuto, schema: object, data: object, field: str
) -> None:
    with pytest.raises(InvalidInput, match=field):
        agent.handoff.send("resolver", data, schema=schema)
    assert agent.handoff.list() == []


def test_pydantic_models_are_schemas_too(client: Callable[..., Tenuto]) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        number: int

    agent = client("a")
    with pytest.raises(InvalidInput, match=r"data\.number"):
        agent.handoff.send("a", {"number": "many"}, schema=Order)
    agent.handoff.send("a", Order(number=3), schema=Order)
    h = agent.handoff.receive(schema=Order)
    assert h is not None
    assert h.data == Order(number=3)


def test_a_schema_that_tenuto_cannot_check_is_refused(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="dependentSchemas"):
        agent.handoff.send("x", {}, schema={"dependentSchemas": {}})
    with pytest.raises(InvalidInput, match="lists"):
        agent.handoff.send("x", {}, decisions="one text")
    with pytest.raises(InvalidInput, match="must be lists"):
        agent.handoff.send("x", {}, ruled_out=7)  # type: ignore[arg-type]


def test_what_does_not_fit_the_receiver_goes_back_with_the_field_named(
    client: Callable[..., Tenuto], clock: HeldClock
) -> None:
    triage, resolver = client("triage"), client("resolver")
    wrong = triage.handoff.send("resolver", {"number": "881"})
    clock.advance(1)
    right = triage.handoff.send("resolver", {"number": 882})
    h = resolver.handoff.receive(schema=Case)
    assert h is not None
    assert h.id == right.id
    back = triage.handoff.list(sender="triage", status="rejected")
    assert [one.id for one in back] == [wrong.id]
    assert back[0].reason is not None
    assert "data.number" in back[0].reason


def test_a_rejection_comes_back_with_its_reason(client: Callable[..., Tenuto]) -> None:
    sent = client("triage").handoff.send("resolver", 1)
    h = client("resolver").handoff.receive()
    assert h is not None
    with pytest.raises(InvalidInput, match="reason"):
        h.reject("")
    h.reject("not my department")
    back = client("triage").handoff.outcome(sent.id)
    assert (back.status, back.reason, back.by) == ("rejected", "not my department", "resolver")


def test_a_lost_receiver_leaves_it_to_another_and_can_no_longer_accept(
    client: Callable[..., Tenuto], clock: HeldClock
) -> None:
    client("triage").handoff.send("resolver", 1)
    first = client("resolver").handoff.receive(lease=5)
    assert first is not None
    first._lease._stop_renewing()  # as in a process that hangs
    clock.advance(6)
    second = client("resolver").handoff.receive()
    assert second is not None
    assert second.redelivered
    with pytest.raises(StaleLease):
        first.accept()
    with pytest.raises(StaleLease):
        first.forward("other", 2)
    assert second.accept().deliveries == 2
    assert client().handoff.list("other") == []


def test_a_released_handoff_is_free_at_once_and_a_withdrawn_one_gone(client: Callable[..., Tenuto]) -> None:
    sent = client("triage").handoff.send("resolver", 1)
    h = client("resolver").handoff.receive()
    assert h is not None
    h.release()
    again = client("resolver").handoff.receive(id=sent.id)
    assert again is not None
    assert client("triage").handoff.withdraw(sent.id, "solved")
    with pytest.raises(StaleLease):
        again.accept()
    assert client("resolver").handoff.receive() is None
    with pytest.raises(NotFound):
        client().handoff.receive(id="missing")


def test_the_same_key_sends_once(client: Callable[..., Tenuto]) -> None:
    agent = client("triage")
    one = agent.handoff.send("resolver", {"a": 1}, key="case-7")
    assert agent.handoff.send("resolver", {"a": 1}, key="case-7") == one
    with pytest.raises(Conflict, match="case-7"):
        agent.handoff.send("resolver", {"a": 2}, key="case-7")
    assert len(agent.handoff.list()) == 1


def test_a_handoff_inside_a_step_is_sent_once_however_often_the_step_runs(client: Callable[..., Tenuto]) -> None:
    agent = client("triage")
    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        sent = agent.handoff.send("resolver", {"try": len(calls)})
        if len(calls) == 1:
            raise RuntimeError("after the send")
        return sent.id

    for _ in range(2):
        try:
            with agent.run("case") as run:
                run.step("hand over", work)
        except RuntimeError:
            pass
    assert len(calls) == 2
    assert [one.data for one in agent.handoff.list()] == [{"try": 1}]


def test_a_chain_is_followed_by_its_correlation_id(client: Callable[..., Tenuto]) -> None:
    triage, research, resolution = client("triage"), client("research"), client("resolution")
    with triage.correlation("req-17"):
        first = triage.handoff.send("research", {"case": 7}, thread="t")
    h = research.handoff.receive()
    assert h is not None
    second = h.forward("resolution", {"case": 7, "found": "x"}, summary="found it")
    assert research.handoff.get(first.id).status == "accepted"
    last = resolution.handoff.receive()
    assert last is not None
    last.accept()
    chain = resolution.handoff.chain("req-17")
    assert [(one.id, one.sender, one.to, one.status) for one in chain] == [
        (first.id, "triage", "research", "accepted"),
        (second.id, "research", "resolution", "accepted"),
    ]
    assert (second.previous, second.thread, last.correlation_id) == (first.id, "t", "req-17")


def test_a_case_may_go_back_and_forth_for_ever(client: Callable[..., Tenuto]) -> None:
    agents = [client("triage department"), client("research department")]
    with agents[0].correlation("case-1"):
        agents[0].handoff.send(agents[1].name, 0, key="case-1")
    for turn in range(1, 60):  # the ids, made of each other, become too long for a key
        received = agents[turn % 2].handoff.receive()
        assert received is not None
        received.forward(agents[1 - turn % 2].name, turn)
    assert [one.data for one in agents[0].handoff.chain("case-1")] == [*range(60)]


def test_a_forked_thread_shows_the_receiver_what_was_said_until_then(client: Callable[..., Tenuto]) -> None:
    triage = client("triage")
    triage.thread("t").append({"role": "user", "content": "one"})
    sent = triage.handoff.send("resolver", 1, thread="t", fork=True, key="k")
    assert triage.handoff.send("resolver", 1, thread="t", fork=True, key="k").thread == sent.thread
    triage.thread("t").append({"role": "user", "content": "two"})
    assert sent.thread is not None
    assert sent.thread != "t"
    assert [one["content"] for one in triage.thread(sent.thread).messages()] == ["one"]


@pytest.mark.races
def test_many_receivers_accept_each_handoff_once(client: Callable[..., Tenuto]) -> None:
    sender = client("sender")
    for number in range(12):
        sender.handoff.send("worker", number, key=f"h-{number}")
    done: list[int] = []

    def work() -> None:
        agent = client("worker")
        while any(one.status == "pending" for one in agent.handoff.list("worker")):
            h = agent.handoff.receive()
            if h is not None:
                h.accept()
                done.append(h.data)

    threads = [Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(done) == list(range(12))


def test_handoffs_work_awaited() -> None:
    import asyncio

    from tenuto import AsyncTenuto

    async def story() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            await agent.handoff.send("a", {"number": 1}, schema=Case)
            h = await agent.handoff.receive(Case)
            assert h is not None
            assert h.data == Case(1)
            await h.forward("a", 2)
            again = await agent.handoff.receive(wait=1)
            assert again is not None
            await again.reject("no")
            assert [one.status for one in await agent.handoff.chain(h.correlation_id)] == ["accepted", "rejected"]
            p = agent.progress("x", goal="y")
            await p.complete("one", evidence="e")
            assert (await p.get()).items[0].done

    asyncio.run(story())
