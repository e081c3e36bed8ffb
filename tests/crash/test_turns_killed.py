"""A turn, with three tools and with none, killed at every boundary.

Each message is there once, no recorded call is made again, and what it learned is learned once.
"""

import json

import pytest
from support.long import size

import tenuto
from tenuto import Tenuto, Tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLAN = ["search", "book", "mail"]


def turn(crash, each=1):
    def note(name):
        crash.effect(name, key=tenuto.idempotency_key())
        return f"{name} done"

    def model(messages, tools):
        done = sum(one["role"] == "tool" for one in messages)
        note(f"model {done}")
        if done == len(PLAN):
            return "All is done."
        given = json.dumps({"city": "Lisbon"})
        calls = [
            {"id": f"c{name}", "type": "function", "function": {"name": name, "arguments": given}}
            for name in PLAN[done : done + each]
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    def search(city: str) -> str:
        return note("search")

    def book(city: str) -> str:
        return note("book")

    def mail(city: str) -> str:
        return note("mail")

    with Tenuto("a", crash.url) as agent:
        reply = agent.turn(
            "t", "Book Lisbon", model, tools=[search, Tool(book, effect="idempotent"), mail], user="u", key="k"
        )
        assert [one["role"] for one in agent.thread("t").messages()] == [
            "user",
            *(["assistant", "tool"] * 3 if each == 1 else ["assistant", *["tool"] * 3]),
            "assistant",
        ]
        return [reply.text, [one.result for one in reply.calls], agent.thread("t").messages()]


def parallel_turn(crash):
    return turn(crash, each=3)


def turn_without_tools(crash):
    def model(messages):
        crash.effect("model", key=tenuto.idempotency_key())
        return "I prefer to answer at once."

    with Tenuto("a", crash.url) as agent:
        reply = agent.turn("t", "My dog is called Rex.", model, user="u", key="k", learn=True)
        return [reply.text, agent.thread("t").messages(), [one.text for one in agent.memory.list("u")]]


WORK = (turn, parallel_turn, turn_without_tools)
EVERYWHERE = [(store, work) for store in ("sqlite", "postgres", "http") for work in WORK]
SHORT = [("sqlite", turn), ("postgres", parallel_turn), ("http", turn), ("sqlite", turn_without_tools)]


@pytest.mark.parametrize(("url", "work"), size(SHORT, EVERYWHERE), indirect=["url"])
def test_a_turn_that_is_killed_anywhere_ends_as_if_it_had_not_been(crash, url, work) -> None:
    report = crash(work, url=url)  # the outcome has every message of the thread: each is there once
    assert report.ok, report
    assert len(report.kills) > (10 if work is turn_without_tools else 20)
    assert not report.paused
