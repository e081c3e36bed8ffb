"""A turn with three tools, killed at every boundary: each message is there once, and no recorded call is made again."""

import json

import pytest

import tenuto
from tenuto import Tenuto, Tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLAN = ["search", "book", "mail"]


def turn(crash):
    def note(name):
        crash.effect(name, key=tenuto.idempotency_key())
        return f"{name} done"

    def model(messages, tools):
        done = sum(one["role"] == "tool" for one in messages)
        note(f"model {done}")
        if done == len(PLAN):
            return "All is done."
        function = {"name": PLAN[done], "arguments": json.dumps({"city": "Lisbon"})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{done}", "type": "function", "function": function}],
        }

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
            *["assistant", "tool"] * 3,
            "assistant",
        ]
        return [reply.text, [one.result for one in reply.calls], agent.thread("t").messages()]


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_turn_that_is_killed_anywhere_ends_as_if_it_had_not_been(crash, url) -> None:
    report = crash(turn, url=url)  # the outcome has every message of the thread: each is there once
    assert report.ok, report
    assert len(report.kills) > 20
    assert not report.paused
