"""Programs that type checkers must reject: every line marked as wrong, and no other. Never run."""

from tenuto import (
    AsyncTenuto,
    Run,
    Tenuto,
)


def book(flight: str, seats: int = 1) -> str:
    return flight * seats


def steps(run: Run) -> None:
    run.step("book", book, "TP123")
    run.step("book", book, "TP123", 2)
    run.step("book", book)  # wrong
    run.step("book", book, 7)  # wrong
    run.step("book", book, "TP123", 2, 3)  # wrong
    run.step("book", book, "TP123", effect="twice")  # wrong
    run.step("book", book, "TP123", retries=3)  # wrong
    run.step("book", book, flight=7)  # wrong
    run.step("book", book, "TP123", seats="two")  # wrong
    run.step(book)  # wrong
    run.step(book, "TP123", seats=2)
    number: int = run.step("book", book, "TP123")  # wrong
    numbers: list[int] = run.map("book", book, ["TP123"])  # wrong
    run.map("book", book, [7])  # wrong
    print(number, numbers)


def blocking(agent: Tenuto) -> None:
    agent.once("k", book, 7)  # wrong
    agent.runs.list(status="done")  # wrong
    agent.workflows.list(status="done")  # wrong
    agent.inbox.list(status="done")  # wrong
    agent.state.set("scope", "key")  # wrong
    agent.state["scope"].set("key")  # wrong
    version: str = agent.state.set("scope", "key", 1)  # wrong
    print(agent.state.clock, version)  # wrong
    if agent.runs.get("r").status == "finished":  # wrong
        print("never")


async def awaiting(agent: AsyncTenuto) -> None:
    version: int = agent.state.set("scope", "key", 1)  # wrong
    await agent.state.set("scope", "key")  # wrong
    await agent.state["scope"].set("key")  # wrong
    text: str = await agent.state.set("scope", "key", 1)  # wrong
    async with agent.run("r") as run:
        await run.step("book", book, 7)  # wrong
    for change in agent.state.watch("scope"):  # wrong
        print(change, version, text)
