"""A deal approval that no one answers for 24 hours escalates, with everything needed to decide.

    python deal.py

The clock is held by the program, so that no one has to wait.
"""

from tenuto import Calendar, Tenuto
from tenuto.testing import HeldClock

clock = HeldClock()
agent = Tenuto("sales", "volatile:", clock=clock)
agent.inbox.group("desk", ["ann", "bob"])

question = agent.ask(
    "Approve a discount of 30 % for Globex?",
    to="desk",
    context={"deal": "globex-7", "value": 90_000, "discount": 0.3},
    evidence=["mail of the customer, 12 May", "offer of a competitor: 25 %"],
    policy="Above 20 % the desk decides, above 40 % the CFO.",
    schema={"type": "object", "properties": {"discount": {"type": "number", "maximum": 0.4}}, "required": ["discount"]},
    deadline="24h",
    escalate=["head of sales"],
)
for _ in range(25):
    clock.advance(3_600)
    while agent.inbox.fire():
        event = agent.inbox.history(question.id)[-1]
        print(f"{event.at - question.asked_at}  {event.what}  {event.details}")

late = agent.inbox.get(question.id)
print(f"asked now: {', '.join(late.assignees)}; context: {late.context}")
agent.inbox.answer(question.id, {"discount": 0.25}, by="head of sales")
print(f"answered by {agent.inbox.get(question.id).by}: {agent.inbox.get(question.id).answer}")

business = agent.ask("Extend the offer?", to="desk", deadline="8h", calendar=Calendar(timezone="Europe/Berlin"))
print(f"8 business hours after {business.asked_at:%a %H:%M} UTC is {business.deadline:%a %H:%M} UTC")
