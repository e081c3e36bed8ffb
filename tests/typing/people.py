"""Questions, gates, milestones, routes and notifications as a type checker sees them; never run."""

from collections.abc import Sequence
from typing import Any, assert_type

from tenuto import AsyncTenuto, Calendar, Question, Rung, Tenuto
from tenuto.capabilities.people import Approval, Channel, Milestone, Notice, QuestionEvent, Route


def blocking(agent: Tenuto) -> None:
    asked = agent.ask(
        "Pay?", to=["ann", "finance"], context={"amount": 5}, choices=["yes", "no"], deadline="24h", calendar=Calendar(),
        escalate=["lead", Rung("cfo")], on_timeout="deny", blocks="invoice:881", key="881", quorum=2,
    )  # fmt: skip
    assert_type(asked, Question)
    assert_type(asked.as_interrupt(), dict[str, Any])
    assert_type(agent.inbox.acknowledge("q", by="ann"), Question)
    assert_type(agent.inbox.history("q"), Sequence[QuestionEvent])
    assert_type(agent.inbox.fire(limit=5), int)
    agent.inbox.group("finance", ["ann", "bob"])
    assert_type(agent.inbox.groups(), dict[str, Sequence[str]])
    assert_type(agent.inbox.token("q", by="ann", expires="1h"), str)
    assert_type(agent.inbox.approval("token"), Approval)
    assert_type(agent.inbox.redeem("token", "yes"), Question)
    agent.gate("invoice:881")
    assert_type(agent.state.set("s", "k", 1, gate="invoice:881"), int)
    assert_type(agent.milestone("samples", due="2099-01-01", on_miss="contingency"), Milestone)
    assert_type(agent.milestones.meet("samples", evidence=1), Milestone)
    assert_type(agent.milestones.list("missed"), list[Milestone])
    assert_type(agent.routes.add(about="invoice:*", to="finance"), Route)
    assert_type(agent.routes.find("invoice:881"), Route | None)
    assert_type(agent.notify.to("finance", "https://x", secret="env:X"), Channel)
    assert_type(agent.notify.outbox(), list[Notice])
    assert_type(agent.notify.deliver(), int)
    with agent.run("r") as run:
        run.ask("Pay?", to="ann", deadline="1h", on_timeout="fail")
        run.step("pay", print, 1, gate="invoice:881")


async def awaiting(agent: AsyncTenuto) -> None:
    assert_type(await agent.ask("Pay?", to="ann"), Question)
    await agent.gate("invoice:881")
    assert_type(await agent.milestone("samples", due="30d"), Milestone)
    assert_type(await agent.notify.deliver(), int)
    assert_type(await agent.routes.list(), list[Route])
