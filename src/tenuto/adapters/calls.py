"""What all durable agents share: an identity for each model and tool call, and its replay as a step of a run.

    calls = Calls.here()                                       # None outside a run: the framework then works as before
    turn = calls.begin("travel")                               # one turn of one agent
    response = await turn.model(request, lambda: model.request(...))
    result = await turn.tool("book", call.id, lambda: book(**call.args), effect="once")

It owns no keys: every call is a step of the open run (`capabilities/runs/step.py`), intent before, result after.

The framework runs again from its first line after a crash, so a call needs an identity that is the same each time:

- a turn is the agent's name and its number among the turns of that name in the run: `travel/1`;
- a model call is its number in the turn: `travel/1/3`. Its record contains a digest of the request. If a replay asks
  something else, it raises `StepMismatch`: another prompt never gets the recorded answer;
- a tool call is the id that the model gave it: `travel/1/call_x7`. Models repeat ids; equal ones count in their order.

Calls may be concurrent, and each has its own key, so their order does not matter. A call inside another call's step (an
agent that a tool calls) belongs to that step and is not recorded separately.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar, cast

from tenuto.aio import AsyncRun
from tenuto.aio.bridge import Pool, Pools, perform
from tenuto.capabilities.people import AskOptions
from tenuto.capabilities.runs import OpenRun, Run, Step, current_run, current_step, run_step
from tenuto.errors import StepMismatch
from tenuto.kernel import codec
from tenuto.kernel.durations import moment
from tenuto.kernel.work import work_of

T = TypeVar("T")
_THREADS: Final = 16
APPROVE: Final = "approve"
DENY: Final = "deny"
_numbers: weakref.WeakKeyDictionary[OpenRun, dict[str, int]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_own: list[Pools] = []


class Calls:
    """The open run of this task or thread, for a framework that runs inside it."""

    def __init__(self, handle: Run | AsyncRun) -> None:
        run = handle._sync if isinstance(handle, AsyncRun) else handle
        self._run = run
        self._pools = handle._pools if isinstance(handle, AsyncRun) else _pools()
        self.id = run.id

    @classmethod
    def here(cls) -> Calls | None:
        """Return the open run, or None outside a run and inside a step."""
        handle = current_run()
        return None if handle is None or current_step.get() is not None else cls(handle)

    @classmethod
    def outside(cls) -> Calls | None:
        """Return the open run, also inside a step, to send its watchers what the step receives."""
        handle = current_run()
        return None if handle is None else cls(handle)

    def begin(self, agent: str) -> Turn:
        """Begin a turn of an agent; it has the same name on each replay if the run begins its turns in the same order."""
        return self.turn(f"{agent}/{self._number(agent)}")

    def turn(self, name: str) -> Turn:
        """Return the turn of a name."""
        return Turn(self, name)

    def _number(self, what: str) -> int:
        """Return 1, 2, 3 … for the same thing, counted anew each time the run is opened."""
        with _lock:
            counts = _numbers.setdefault(self._run._running, {})
            counts[what] = counts.get(what, 0) + 1
            return counts[what]

    async def step(self, name: str, key: str, call: Callable[[], Awaitable[T]], **options: Any) -> T:
        """Await a call as a step with this key, or return its recorded result."""

        async def called() -> T:  # a coroutine function is awaited in the caller's task
            return await call()

        step = Step(name, called, (), key, **options)
        return cast("T", await perform(self._pools, run_step(self._run._running, step), self._run._clock))

    async def ask(self, question: str, **options: Any) -> Any:
        """Ask people through the inbox and return their answer; without one, the run pauses until it comes."""
        return await perform(self._pools, work_of(self._run.ask)(question, **options), self._run._clock)

    async def ask_all(self, questions: Sequence[tuple[str, AskOptions]]) -> list[Any]:
        """Ask several questions at once; all are in the inbox before the run pauses."""
        asked = [self.ask(text, **options) for text, options in questions]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def started(self, turn: str) -> datetime:
        """Return when a turn was begun first."""

        async def now() -> datetime:
            return moment(self._run._running.context.kernel.now())

        return await self.step("turn", turn, now, effect="pure")

    async def emit(self, value: Any, *, durable: bool = False) -> None:
        """Send a value to those who watch the run; see `Run.emit`."""
        await perform(self._pools, work_of(self._run.emit)(value, durable=durable), self._run._clock)

    async def usage(self, model: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> None:
        """Record the tokens of a model call; inside its step, together with its result."""
        work = work_of(self._run.usage)(
            model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=min(cached_tokens, input_tokens),
        )
        await perform(self._pools, work, self._run._clock)


class Turn:
    """The calls of one turn of an agent."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self.calls = calls
        self.name = name
        """The same on each replay: `travel/1`."""

    async def model(self, request: Any, call: Callable[[], Awaitable[T]], *, name: str = "model", **options: Any) -> T:
        """Await a model call as a step, or return its recorded response; raise `StepMismatch` if the request differs.

        `request` is plain data: what identifies the request, without times and generated ids. The response must be
        plain data, too.
        """
        number = self._calls._number(f"{self.name} {name}")
        key = f"{self.name}/{number}"
        digest = codec.digest(codec.pack(request)).hex()[:32]

        async def recorded() -> dict[str, Any]:
            return {"request": digest, "response": await call()}

        found = await self._calls.step(name, key, recorded, **options)
        if found["request"] != digest:
            raise StepMismatch(
                f"The run {self._calls.id!r} sends another request in its model call {key!r} than the one that is recorded. "
                "Nothing was called. Call the agent with the same input, or use another run id for another input.",
                name,
            )
        return cast("T", found["response"])

    async def tool(self, name: str, call_id: str, call: Callable[[], Awaitable[T]], **options: Any) -> T:
        """Await a tool call as a step, or return its recorded result; the options are those of `run.step`."""
        return await self._calls.step(name, f"{self.name}/{call_id}", call, **options)

    async def other(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call whose repetition does nothing, such as listing tools, as a pure step."""
        number = self._calls._number(f"{self.name} {name}")
        return await self._calls.step(name, f"{self.name}/{number}", call, effect="pure")

    def approval(self, tool: str, call_id: str, arguments: Any, options: AskOptions) -> tuple[str, AskOptions]:
        """Return the question whether a tool may be called, for `Calls.ask_all`."""
        shown = ", ".join(f"{name}={value!r:.60}" for name, value in arguments.items())
        context = {"tool": tool, "arguments": arguments, "call": call_id, "turn": self.name}
        given: AskOptions = {"choices": [APPROVE, DENY], "context": context, "about": [f"tool:{tool:.500}"], **options}
        return f"May the agent call {tool}({shown:.300})?", given


class Verdict(NamedTuple):
    """The answer to a question of `Turn.approval`."""

    approved: bool
    said: str
    """The message to the model about a denied call."""


def verdict(answer: Any) -> Verdict:
    """Return what an answer means; whatever is not an approval denies the call."""
    if answer == APPROVE or answer is True:
        return Verdict(approved=True, said="")
    said = "" if answer == DENY or not answer else f" {answer}"
    return Verdict(approved=False, said=f"The tool call was denied.{said}")


def _pools() -> Pools:
    """Return the threads for runs of the blocking client, whose frameworks await nevertheless."""
    with _lock:
        if not _own:
            _own.append(Pools(Pool(_THREADS, "tenuto-calls"), Pool(_THREADS, "tenuto-tools")))
        return _own[0]
