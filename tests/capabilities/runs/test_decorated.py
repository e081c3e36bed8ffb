"""`@agent.step` makes the calls of a function inside a run's body steps of that run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import AsyncTenuto, InvalidInput, Tenuto

from .runs_world import World, killed, resumed


def test_a_decorated_function_is_a_step_in_a_run_and_a_call_elsewhere(client: Callable[..., Tenuto]) -> None:
    agent, world = client(), World()

    @agent.step
    def plan(city: str, *, days: int = 1) -> str:
        world.do("plan")
        return f"{city} {days}"

    @agent.step(name="book it", effect="once")
    def book(what: str) -> str:
        return f"booked {plan(what)}"  # inside a step: an ordinary call

    def body(run: Any) -> str:
        return book(plan("Rome", days=3))

    assert plan("Oslo") == "Oslo 1"  # outside of a run
    killed(agent, body)
    assert resumed(client(), body) == "booked Rome 3 1"
    assert world.count("plan") == 3
    steps = agent.runs.get("r").steps
    assert [(one.name, one.effect, one.status) for one in steps] == [
        ("plan", "idempotent", "completed"),
        ("book it", "once", "completed"),
    ]
    assert plan.__name__ == "plan"


def test_wrong_options_are_refused_when_the_function_is_decorated(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="effect must be one of"):
        agent.step(effect="twice")(str)  # type: ignore[arg-type]


def test_a_coroutine_function_is_a_step_of_an_async_run() -> None:
    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:

            @agent.step
            async def add(a: int, b: int) -> int:
                return a + b

            async with agent.run("r") as run:
                run.result = await add(1, b=await add(1, 1))
            assert await add(2, 2) == 4
            found = await agent.runs.get("r")
            assert (found.result, [one.name for one in found.steps]) == (3, ["add", "add"])
            with pytest.raises(TypeError, match="not a coroutine function"):
                agent.step(len)

    asyncio.run(main())
