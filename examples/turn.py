"""One durable turn with three tools. Kill it anywhere and run it again: nothing recorded is called twice.

The model here is a function of your own, so that this runs without a key. With a client of a provider, pass
`OpenAIModel(client, "gpt-4o")` or `AnthropicModel(client, "…")` of `tenuto.adapters.models` instead.
"""

import json
import sys

from tenuto import Tenuto, Tool


def search_flights(city: str, latest: int = 24) -> list[str]:
    """Find flights to a city that leave before an hour."""
    print("searching", city)
    return [f"TP{hour:03} at {hour}:00" for hour in (7, 9, 18) if hour < latest]


def book(flight: str) -> str:
    """Book a flight."""
    print("booking", flight)
    return "ticket-1"


def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    print("mailing", to, text)
    return "sent"


PLAN = [
    ("search_flights", {"city": "Lisbon", "latest": 12}),
    ("book", {"flight": "TP009"}),
    ("send_mail", {"to": "ann", "text": "Booked."}),
]


def model(messages: list[dict], tools: list[dict]) -> dict | str:
    """Stand in for a provider: call one tool after the other, then answer."""
    done = sum(one["role"] == "tool" for one in messages)
    print("thinking with", len(tools), "tools")
    if done == len(PLAN):
        return "Your flight is booked."
    name, given = PLAN[done]
    call = {"id": f"call-{done}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


with Tenuto("travel", sys.argv[1] if len(sys.argv) > 1 else None) as agent:
    reply = agent.turn(
        "trip", "Book a morning flight to Lisbon", model, key="m-1", user="ann", instructions="You book travel.",
        tools=[search_flights, Tool(book, effect="once"), Tool(send_mail, effect="once")],
    )  # fmt: skip
    print(reply.text, [one.result for one in reply.calls])
