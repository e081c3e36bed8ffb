"""Handoffs as messages of A2A, and from handoffs of the OpenAI Agents SDK."""

import asyncio

import pytest

from tenuto import InvalidInput, Tenuto
from tenuto.adapters.handoffs import from_a2a, on_handoff, to_a2a

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def test_a_handoff_is_an_a2a_message_and_back() -> None:
    with Tenuto("triage", "volatile:") as agent, Tenuto("other side", "volatile:") as other:
        with agent.correlation("req-17"):
            sent = agent.handoff.send(
                "resolver", {"number": 881}, summary="no receipt", decisions=["ask"], thread="t", key="case-881"
            )
        message = to_a2a(sent)
        assert message == {
            "messageId": "case-881",
            "contextId": "req-17",
            "role": "ROLE_AGENT",
            "parts": [{"text": "no receipt"}, {"data": {"number": 881}}],
            "metadata": {"tenuto": {"sender": "triage", "to": "resolver", "decisions": ["ask"], "thread": "t"}},
        }
        for _ in range(2):  # delivered twice
            came = from_a2a(other, "resolver", message, schema=SCHEMA)
        assert (came.data, came.summary, came.decisions, came.thread) == ({"number": 881}, "no receipt", ["ask"], "t")
        assert [one.id for one in other.handoff.chain("req-17")] == ["case-881"]
        old = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
        assert from_a2a(other, "resolver", old).data == "hi"
        with pytest.raises(InvalidInput, match=r"data\.number"):
            from_a2a(other, "resolver", {**message, "messageId": "x", "parts": [{"data": {}}]}, schema=SCHEMA)
        with pytest.raises(InvalidInput, match="messageId"):
            from_a2a(other, "resolver", {"parts": []})


def test_a_handoff_of_the_openai_agents_sdk_is_sent_durably() -> None:
    agents = pytest.importorskip("agents")
    pydantic = pytest.importorskip("pydantic")

    class Case(pydantic.BaseModel):
        number: int

    with Tenuto("triage", "volatile:") as agent:
        hand = agents.handoff(
            agents.Agent(name="resolver"), on_handoff=on_handoff(agent, "resolver", schema=Case), input_type=Case
        )
        chosen = asyncio.run(hand.on_invoke_handoff(agents.RunContextWrapper(None), '{"number": 881}'))
        assert chosen.name == "resolver"
        assert [one.data for one in agent.handoff.list("resolver")] == [{"number": 881}]
