"""The workflows that are killed at every boundary: each a function of the crash fixture, with its effects counted.

An effect with a key is one that its receiver recognises when it comes again; `again` is for what does no harm.
"""

import asyncio

import tenuto
from tenuto import AsyncTenuto, Happened, NotHappened, Retry, Tenuto, Unknown

LARGE = "large " * 20_000


def told(crash, name, *, keyed=True):
    """Let something happen in the world: one that is idempotent, by its key, or one that must happen once."""
    crash.effect(name, key=tenuto.idempotency_key() if keyed else None)
    return f"{name} told"


def every_kind_of_step(crash):
    def find(intent):
        return Happened("charged told") if "charged" in crash.effects else NotHappened()

    def fetch(what):
        crash.effect("fetched", again=True)
        return f"{what} {LARGE}"

    with Tenuto("a", crash.url) as agent, agent.run("r", user="u") as run:
        page = run.step("fetch", fetch, "page", effect="pure")
        posted = run.step("post", told, crash_of(crash), "posted", key="post")
        paid = run.step("charge", lambda name: told(crash, name, keyed=False), "charged", effect="once", verify=find)
        large = run.step("large", lambda: told(crash, "made large") + LARGE)
        return [len(page), posted, paid, len(large)]


def crash_of(crash):
    """Return the fixture as an argument: it has no stored form, so such a step needs a key."""
    return crash


def everything_noted(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        # Each is given to a step: another value on a replay would be another argument.
        seen = [run.now(), run.uuid(), run.random()]
        run.step("seen", lambda *_: told(crash, "seen"), *seen)
        run.state["progress"] = 1
        run.thread.append({"role": "user", "content": "Book a flight"})
        run.step("one", lambda count: told(crash, f"counted {count}"), run.thread.count())
        run.state["progress"] = run.state["progress"] + 1
        run.thread.append({"role": "assistant", "content": "Done"}, {"role": "user", "content": "Thanks"})
        run.emit({"progress": run.state["progress"]})
        run.usage("model", cost=0.5)
        result = run.step("two", lambda count: told(crash, f"counted {count}"), run.thread.count())
        run.result = [run.state.items(), [one["content"] for one in run.thread.messages()], result]
    emitted = [one.value for one in agent_again(crash).runs.watch("r", timeout=1)]
    record = agent_again(crash).runs.get("r")
    return [run.result, emitted, record.cost, record.result]


def agent_again(crash):
    return Tenuto("reader", crash.url)


def retries(crash):
    def flaky(name, times):
        crash.effect(f"tried {name}", again=True)
        if crash.effects.count(f"tried {name}") < times:
            raise ConnectionError(name)
        return told(crash, name)

    def find(intent):
        return Happened("sent told") if "sent" in crash.effects else NotHappened()

    def optional():
        crash.effect("tried optional", again=True)
        raise ValueError("it is not there")

    soon = Retry(attempts=9, first=0.001)
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        one = run.step("ask", flaky, "asked", 2, retry=soon)
        two = run.step("send", flaky, "sent", 2, effect="once", verify=find, retry=soon)
        try:
            three = run.step("optional", optional)
        except ValueError as error:
            three = f"without: {error}"
        return [one, two, three, run.step("last", told, crash_of(crash), "ended", key="last")]


def an_error_that_leaves_the_run(crash):
    def broken():
        crash.effect("tried", again=True)
        if crash.effects.count("tried") < 2:
            raise ValueError("broken")
        return told(crash, "done")

    with Tenuto("a", crash.url) as agent:
        for _ in range(3):
            try:
                with agent.run("r") as run:
                    run.step("before", lambda: told(crash, "before"))
                    return run.step("broken", broken)
            except ValueError:
                continue  # the same call again, as whoever started it would
    return None


def mapped(crash, concurrency=1):
    def item(n):
        return told(crash, f"item {n}")

    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        first = run.map("item", item, range(3), concurrency=concurrency)
        second = run.map("item", item, range(2), concurrency=concurrency)
        once = run.map(
            "once", lambda n: told(crash, f"once {n}", keyed=False), range(2), concurrency=1, effect="once",
            verify=lambda intent: (
                Happened(f"once {intent.args[0]} told") if f"once {intent.args[0]}" in crash.effects else NotHappened()
            ),
        )  # fmt: skip
        return [first, second, once, run.step("sum", lambda: told(crash, "sum"))]


def mapped_at_once(crash):
    return mapped(crash, concurrency=3)


def waits(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        run.step("before", lambda: told(crash, "before"))
        run.sleep("24h")
        go = run.wait("go")
        run.step("between", lambda: told(crash, "between"))
        answer = run.ask("Which seat?", choices=["aisle", "window"])
        try:
            run.wait("never", timeout="2h")
        except tenuto.TimedOut:
            late = True
        return [go, answer, late, run.step("after", lambda: told(crash, "after"))]


def people(crash):
    """Whoever sends the signals and answers the questions."""
    agent = Tenuto("person", crash.url)
    agent.signal("r", "go", {"amount": 7})
    for question in agent.inbox.list():
        if question.step is None:
            agent.inbox.answer(question.id, "aisle", by="ann")
        elif question.step in crash.effects:
            agent.inbox.answer(question.id, Happened(f"{question.step} told"), by="ann")
        else:
            agent.inbox.answer(question.id, NotHappened(), by="ann")


def once_without_verify(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        one = run.step("charged", lambda: told(crash, "charged", keyed=False), effect="once")
        two = run.step(
            "posted", lambda: told(crash, "posted", keyed=False), effect="once", verify=lambda _: Unknown("?")
        )
        return [one, two]


def nested(crash):
    with Tenuto("a", crash.url) as agent:

        @agent.durable
        def part(run, n):
            return run.step("work", lambda: told(crash, f"part {n}"))

        @agent.durable
        def whole(run, count):
            parts = [part.run(f"{run.id}/{n}", n) for n in range(count)]
            inside = run.step("inside", lambda: part.run(f"{run.id}/inside", "inside"))
            return [parts, inside, run.step("end", lambda: told(crash, "ended"))]

        return whole.run("w", 2)


async def asynchronous(crash):
    async def fetch(name):
        await asyncio.sleep(0)
        return told(crash, name)

    async with AsyncTenuto("a", crash.url) as agent:

        @agent.durable
        async def crawl(run, names):
            async def branch(name):
                page = await run.step(f"fetch {name}", fetch, name)
                await run.state.set(name, page)
                return await run.step(f"parse {name}", lambda: told(crash, f"parsed {name}"))  # a thread's

            found = await asyncio.gather(*(branch(name) for name in names))
            items = await run.map("item", fetch, ["i", "j"], concurrency=2)
            await run.thread.append({"role": "user", "content": "done"})
            return [list(found), items, await run.state.items(), await run.thread.count()]

        return await crawl.run("c", ["a", "b"])


async def asynchronous_waits(crash):
    async with AsyncTenuto("a", crash.url) as agent, agent.run("r") as run:

        async def asleep():
            await run.sleep("1h")
            return await run.step("slept", lambda: told(crash, "slept"))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.wait("go")), group.create_task(asleep())]
        run.result = [task.result() for task in tasks]
    return run.result


WORKFLOWS = [
    every_kind_of_step,
    everything_noted,
    retries,
    an_error_that_leaves_the_run,
    mapped,
    mapped_at_once,
    nested,
    asynchronous,
]
WAITING = [waits, asynchronous_waits]
