"""Helpers of these tests."""

from typing import Any

from tenuto import Tenuto, Waiting
from tenuto.capabilities.people import Question


def ask_question(agent: Tenuto, text: str = "Deploy?", **options: Any) -> Question:
    """Let a run ask, and return its question."""
    try:
        with agent.run("asking") as run:
            run.ask(text, **options)
    except Waiting:
        pass
    return agent.inbox.list()[0]
