"""A tool loop in the style of Anthropic's messages API; four lines make it durable. The model is a small fake, offline.

    python anthropic_loop.py --kill-at 4    # kill -9 right after the fourth call of the model or of a tool
    python anthropic_loop.py                # resumes: finished calls are not repeated, the mail is sent once

For the real API, replace `FakeAnthropic()` by `anthropic.Anthropic()`; nothing else changes. The model asks for two
tools at once, so that there is more than one place in a turn to be killed at. `work.log` shows from outside what was
called.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tenuto import Happened, Intent, NotHappened, Tenuto, idempotency_key

LOG, SENT = Path("work.log"), Path("sent.jsonl")
TASK = "Tell ann@example.org what the weather in Lisbon and in Porto is."


def weather(city: str) -> str:
    worked(f"weather {city}")
    return {"Lisbon": "sunny, 24 degrees", "Porto": "rain, 18 degrees"}[city]


def send_mail(to: str, text: str) -> str:
    """Send once: the mail carries the step's idempotency key, so that `find_mail` finds it."""
    with SENT.open("a") as file:
        file.write(json.dumps({"to": to, "text": text, "mark": idempotency_key()}) + "\n")
    worked(f"send_mail {to}")
    return "sent"


def find_mail(intent: Intent) -> Happened | NotHappened:
    """Called after a crash, before anything is sent again."""
    marks = [json.loads(line)["mark"] for line in SENT.read_text().splitlines()] if SENT.exists() else []
    return Happened("sent") if intent.idempotency_key in marks else NotHappened()


TOOLS = {"weather": (weather, {"effect": "pure"}), "send_mail": (send_mail, {"effect": "once", "verify": find_mail})}


def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    answer = client.messages.create(model="small-1", max_tokens=1_000, messages=messages, tools=list(TOOLS))
    return answer.to_dict()


def main() -> None:
    """The usual tool loop."""
    with Tenuto("assistant") as agent, agent.run("weather-7") as run:  # durable: starts or resumes
        print(run, flush=True)
        chat = run.thread  # durable: the conversation
        chat.append({"role": "user", "content": TASK})
        while True:
            reply = run.step("model", ask_model, chat.messages())  # durable: paid for once
            chat.append({"role": "assistant", "content": reply["content"]})
            if reply["stop_reason"] != "tool_use":
                break
            results = []
            for block in reply["content"]:
                if block["type"] == "tool_use":
                    tool, options = TOOLS[block["name"]]
                    found = run.step(block["name"], tool, kwargs=block["input"], **options)  # durable
                    results.append({"type": "tool_result", "tool_use_id": block["id"], "content": found})
            chat.append({"role": "user", "content": results})
        run.result = reply["content"][0]["text"]
        print(run.result)


# -- the fake API and the kill -------------------------------------------------------------------------------------


class FakeAnthropic:
    """Has the methods of `anthropic.Anthropic` that the loop uses, and three fixed answers."""

    def __init__(self) -> None:
        self.messages = SimpleNamespace(create=self._create)

    def _create(self, *, messages: list[dict[str, Any]], **_: Any) -> Any:
        worked(f"the model reads {len(messages)} message(s)")
        heard = messages[-1]["content"]
        if isinstance(heard, str):
            cities = [{"city": "Lisbon"}, {"city": "Porto"}]
            content = [_uses(f"use-{number}", "weather", one) for number, one in enumerate(cities, start=1)]
        elif len(heard) == 2:
            text = f"Lisbon: {heard[0]['content']}. Porto: {heard[1]['content']}."
            content = [_uses("use-3", "send_mail", {"to": "ann@example.org", "text": text})]
        else:
            content = [{"type": "text", "text": "Ann knows."}]
        reason = "end_turn" if content[0]["type"] == "text" else "tool_use"
        reply = {"role": "assistant", "stop_reason": reason, "content": content}
        return SimpleNamespace(to_dict=lambda: reply)


def _uses(number: str, name: str, given: dict[str, str]) -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": name, "input": given}


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
    client = FakeAnthropic()
    main()
