"""A tool loop in the style of OpenAI's chat API; four lines make it durable. The model is a small fake, offline.

    python openai_loop.py --kill-at 3    # kill -9 right after the third call of the model or of a tool
    python openai_loop.py                # resumes: finished calls are not repeated, and the flight is booked once

For the real API, replace `FakeOpenAI()` by `openai.OpenAI()`; nothing else changes. `work.log` shows from outside what
was called.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tenuto import Happened, Intent, NotHappened, Tenuto, idempotency_key

LOG, BOOKINGS = Path("work.log"), Path("bookings.jsonl")
TASK = "Find a flight to Lisbon below 200 euros and book it."


def search_flights(city: str) -> str:
    worked(f"search_flights {city}")
    return "TP123 for 180 euros, LH404 for 240 euros"


def book_flight(flight: str) -> str:
    """Book once: the booking carries the step's idempotency key, so that `find_booking` finds it."""
    with BOOKINGS.open("a") as file:
        file.write(json.dumps({"flight": flight, "mark": idempotency_key()}) + "\n")
    worked(f"book_flight {flight}")
    return f"booked {flight}"


def find_booking(intent: Intent) -> Happened | NotHappened:
    """Called after a crash, before anything is booked again."""
    marks = [json.loads(line)["mark"] for line in BOOKINGS.read_text().splitlines()] if BOOKINGS.exists() else []
    return Happened(f"booked {intent.kwargs['flight']}") if intent.idempotency_key in marks else NotHappened()


TOOLS = {
    "search_flights": (search_flights, {"effect": "pure"}),
    "book_flight": (book_flight, {"effect": "once", "verify": find_booking}),
}


def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    answer = client.chat.completions.create(model="small-1", messages=messages, tools=list(TOOLS))
    return answer.choices[0].message.to_dict()


def main() -> None:
    """The usual tool loop."""
    with Tenuto("assistant") as agent, agent.run("trip-42") as run:  # durable: starts or resumes
        print(run, flush=True)
        chat = run.thread  # durable: the conversation
        chat.append({"role": "user", "content": TASK})
        while True:
            reply = run.step("model", ask_model, chat.messages())  # durable: paid for once
            chat.append(reply)
            if not reply.get("tool_calls"):
                break
            for call in reply["tool_calls"]:
                tool, options = TOOLS[call["function"]["name"]]
                arguments = json.loads(call["function"]["arguments"])
                found = run.step(tool.__name__, tool, kwargs=arguments, **options)  # durable
                chat.append({"role": "tool", "tool_call_id": call["id"], "content": found})
        run.result = reply["content"]
        print(run.result)


# -- the fake API and the kill -------------------------------------------------------------------------------------


class FakeOpenAI:
    """Has the methods of `openai.OpenAI` that the loop uses, and three fixed answers."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, *, messages: list[dict[str, Any]], **_: Any) -> Any:
        heard = [message["content"] for message in messages if message["role"] == "tool"]
        worked(f"the model reads {len(messages)} message(s)")
        if len(heard) == 0:
            reply = _calls("call-1", "search_flights", {"city": "Lisbon"})
        elif len(heard) == 1:
            reply = _calls("call-2", "book_flight", {"flight": heard[0].split()[0]})
        else:
            reply = {"role": "assistant", "content": f"Done: {heard[-1]}."}
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(to_dict=lambda: reply))])


def _calls(number: str, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    call = {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def worked(what: str) -> None:
    """Log what was done; then kill this process if asked: it is done, but not recorded."""
    with LOG.open("a") as log:
        log.write(what + "\n")
    print(f"  {what}", flush=True)
    if len(LOG.read_text().splitlines()) == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-at", type=int, metavar="CALL", help="kill -9 right after this call")
    options = parser.parse_args()
    client = FakeOpenAI()
    main()
