"""A durable turn: load, recall, build the context, call the model and its tools, append the messages, learn.

It owns no keys. A turn is the run `turn:THREAD:KEY`: the user's message, each model call, each tool call and the messages
they produce are recorded in its log, each in one commit. A crash in between resumes after the last recorded one. A tool
call is appended to the thread together with its results, so that a conversation never has one without the other. Tools of
one round are called concurrently; each is a step with a key of its own, so a replay finds it in any order.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto import shapes
from tenuto.capabilities._core.base import Timed
from tenuto.capabilities.context import masking
from tenuto.capabilities.context.builder import BuiltContext, ContextBuilder, ContextShape
from tenuto.capabilities.context.guard import Guard, Known, Sign, call_text
from tenuto.capabilities.context.sources import Sources
from tenuto.capabilities.context.tools import Tool, schema_of, tools_of
from tenuto.capabilities.runs import Engine, Face, Run, Step, run_step
from tenuto.capabilities.threads import Message
from tenuto.errors import InvalidInput, StepFailed, TenutoError, TimedOut, Waiting
from tenuto.kernel import keys
from tenuto.kernel.work import Store, Together, Work, on_caller, work_of

Model = Callable[..., Any]
"""Called with the messages and the schemas of the tools; returns a text, a message, or a provider's response."""
Guarding = Literal["report", "reuse", "off"]
_RECENT: Final = 200
"""The messages before a turn that its guard compares with, so that turn 1,000 costs what turn 50 costs."""


class Called(NamedTuple):
    """A tool call of a turn."""

    name: str
    arguments: str
    """As JSON."""
    result: str
    """The text that the model received."""


class Turn(NamedTuple):
    """The result of a turn."""

    text: str
    message: Message
    """The last message of the model, as it is in the thread."""
    calls: list[Called]
    run: str
    """The id of its run."""
    signs: list[Sign] = []  # noqa: RUF012 - a tuple's default, never changed
    """Signs that the model has lost its context; they are reported to hooks, too."""


class Turns(Timed):
    """Durable turns of conversations."""

    def __init__(self, engine: Engine, builder: ContextBuilder, sources: Sources) -> None:
        self._engine = engine
        self._context = engine.context
        self._builder = builder
        self._sources = sources
        self._face: Face | None = None
        """Makes the handle that `current_run` returns inside the model and the tools; None: the blocking run."""

    def _facing(self, face: Face) -> Turns:
        """Return the same turns with another handle for `current_run`."""
        turns = Turns(self._engine, self._builder, self._sources)
        turns._face = face
        return turns

    @on_caller
    def turn(  # noqa: PLR0913 - the words of the API
        self,
        thread: str,
        message: str | Message,
        model: Model,
        *,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        user: str | None = None,
        budget: int = 8_000,
        instructions: str | None = None,
        learn: bool | Callable[..., Any] | None = None,
        key: str | None = None,
        rounds: int = 20,
        spend: float | None = None,
        parallel: int = 4,
        guard: Guarding = "report",
    ) -> Work[Turn]:
        """Answer a message of the user as one durable turn; return the model's last message.

        Called again with the same `key` after a crash, it repeats no recorded call and appends each message once.
        `model(messages, tools)` returns a text, a message or a response of OpenAI or Anthropic. Errors of tools are
        given to the model. `learn=True` stores what the user stated, or pass a function as for `memory.absorb`.
        `rounds` limits the model calls, `spend` the dollars. Up to `parallel` tools of one round run concurrently. `guard`
        looks for signs of lost context: "report" passes them to hooks and returns them, "reuse" also gives the model the
        remembered result of a repeated tool call instead of calling the tool again.
        """
        if not callable(model):
            raise InvalidInput(f"model must be a function of messages and tools, not {type(model).__name__}.")
        if type(rounds) is not int or rounds < 1:
            raise InvalidInput(f"rounds must be 1 or more, not {rounds!r}.")
        if type(parallel) is not int or parallel < 1:
            raise InvalidInput(f"parallel must be 1 or more, not {parallel!r}.")
        if guard not in get_args(Guarding):
            raise InvalidInput(f"guard must be one of {', '.join(get_args(Guarding))}; not {guard!r}.")
        known = tools_of(tools)
        name = secrets.token_hex(8) if key is None else keys.name(key, "key")
        run = Run(self._engine, f"turn:{thread}:{name}", user=user, thread=thread, budget=spend)
        if self._face is not None:
            self._face(run)
        given = {"role": "user", "content": message} if isinstance(message, str) else message
        asking = _Asking(self._builder, run, model, known, thread, user, budget, instructions)
        yield from run._taking()
        try:
            number = yield from work_of(run.thread.append)(given)
            watch = None if guard == "off" else Guard(self._context, self._sources, thread, user)
            before = None if watch is None else (yield Store(lambda: watch._known(number, _RECENT)))
            watching = _Watching(watch, before, number, reuse=guard == "reuse")
            made = yield from _rounds(run, asking, watching, rounds, parallel)
            run.result = {"text": made.text, "calls": len(made.calls)}
            if learn and not run._running.over:
                yield Store(work_of(self._sources.memory.absorb)(thread, None if learn is True else learn, user=user))
        except BaseException as error:
            yield from run._leaving(error)
            raise
        yield from run._leaving(None)
        return made


class _Asking(NamedTuple):
    """How the model of a turn is called."""

    builder: ContextBuilder
    run: Run
    model: Model
    tools: dict[str, Tool]
    thread: str
    user: str | None
    budget: int
    instructions: str | None

    def reply(self, number: int) -> Work[Any]:
        """Call the model as a step, or return its recorded response."""
        shape: ContextShape = getattr(self.model, "shape", "openai")
        given: tuple[Any, ...] = ()
        name = getattr(self.model, "model", None)
        built: BuiltContext | None = None
        size = 0
        if not self.is_recorded("model", str(number)):  # a recorded call needs no context
            schemas = [schema_of(one, shape) for one in self.tools.values()]
            size += sum(len(json.dumps(one)) for one in schemas) // 3
            built = yield from work_of(self.builder.build_context)(
                self.thread,
                user=self.user,
                budget=max(self.budget - size, 1),
                instructions=self.instructions,
                shape=shape,
                model=name if isinstance(name, str) else None,
            )
            given = (built.messages, schemas, built.system)[: _arity(self.model, shape)]
        step = Step("model", self.model, given, str(number), "idempotent", None, None, None)
        response = yield from run_step(self.run._running, step)
        if isinstance(response, Mapping) and (response.get("usage") or response.get("usage_metadata")):
            yield from work_of(self.run.usage)(response)
            if built is not None and isinstance(name, str):
                seen = built._replace(tokens=built.tokens + size)
                yield Store(work_of(self.builder.calibrate)(seen, response, name))
        return response

    def is_recorded(self, name: str, key: str) -> bool:
        """Return whether a step has a recorded result."""
        recorded = self.run._running.history.ops.values()
        return any((one.state, one.identity.name, one.identity.key) == ("done", name, key) for one in recorded)


class _Watching:
    """The guard of a turn. It compares with what was in the thread when the turn began, so a replay finds the same."""

    def __init__(self, guard: Guard | None, known: Known | None, number: int, *, reuse: bool) -> None:
        self._guard = guard
        self._known = known
        self._number = number
        self._reuse = reuse
        self.found: list[Sign] = []

    def take(self, messages: Sequence[Message], *, new: bool) -> dict[str, Any]:
        """Look at messages; report the signs in new ones; return the remembered results to use, by call."""
        if self._guard is None or self._known is None:
            return {}
        numbered = [(self._number + at, message) for at, message in enumerate(messages, 1)]
        self._number += len(messages)
        signs = self._known.read(numbered, live=True)
        self.found += signs
        if new:
            self._guard._reported(signs)
        known = [one for one in signs if one.kind == "repeated_call" and one.remembered is not None]
        return {one.text: one.remembered for one in known} if self._reuse else {}


def _rounds(run: Run, asking: _Asking, watching: _Watching, rounds: int, parallel: int) -> Work[Turn]:
    called: list[Called] = []
    for number in range(rounds):
        new = not asking.is_recorded("model", str(number))
        message = message_of((yield from asking.reply(number)))
        calls = masking.calls_of(message)
        remembered = watching.take([message], new=new)
        if not calls:
            yield from work_of(run.thread.append)(message)
            said = shapes.said_in(message)
            parts = () if said is None else said.parts
            text = shapes.plain_text([one for one in parts if isinstance(one, shapes.Text)])
            return Turn(text, message, called, run.id, watching.found)
        answers = yield from _answers(asking, calls, number, remembered, parallel)
        called += [Called(call.name, call.arguments, text) for call, text in zip(calls, answers, strict=True)]
        shape = shapes.shape_of(message)
        pairs = zip(calls, answers, strict=True)
        results = _results(shape, [(call.id, text) for call, text in pairs])
        watching.take(results, new=False)
        yield from work_of(run.thread.append)(message, *results)
    raise InvalidInput(
        f"The model still called tools after {rounds} rounds; what they returned is in the thread. Repeat the call with "
        "the same key and more rounds."
    )


def _answers(
    asking: _Asking, calls: Sequence[shapes.Call], number: int, remembered: Mapping[str, Any], parallel: int
) -> Work[list[str]]:
    """Call the tools of one round, concurrently; return the texts for the model in order, of errors too."""
    answers: dict[int, str] = {}
    ready: list[tuple[int, Tool, dict[str, Any]]] = []
    waiting: Waiting | None = None
    for at, call in enumerate(calls):
        tool = asking.tools.get(call.name)
        known = remembered.get(call_text(call.name, shapes.arguments(call.arguments)))
        if tool is None:
            answers[at] = f"error: there is no tool {call.name!r}; there are {', '.join(asking.tools) or 'none'}"
            continue
        if known is not None and not asking.is_recorded(tool.name, f"{number}/{at}"):
            answers[at] = _text(known)
            continue
        try:
            named = tool.arguments(call.arguments)
        except InvalidInput as error:
            answers[at] = f"error: {error}"
            continue
        try:
            if tool.approve is None or (yield from _is_approved(asking.run, tool, tool.approve, named)):
                ready.append((at, tool, named))
            else:
                answers[at] = "error: a person rejected this call"
        except Waiting as error:  # ask for every approval of the round before waiting
            waiting = waiting or error
    if waiting is not None:
        raise waiting

    def lane(mine: Sequence[tuple[int, Tool, dict[str, Any]]]) -> Work[None]:
        for at, tool, named in mine:
            answers[at] = yield from _called(asking.run, tool, named, f"{number}/{at}")

    yield Together([lane(ready[at::parallel]) for at in range(min(parallel, len(ready)))])
    return [answers[at] for at in range(len(calls))]


def _is_approved(run: Run, tool: Tool, who: str, named: Mapping[str, Any]) -> Work[bool]:
    question = f"May the agent call {tool.name}({', '.join(f'{k}={v!r}' for k, v in named.items())})?"
    said = yield from work_of(run.ask)(question, to=who, choices=["approve", "reject"])
    return bool(said == "approve")


def _called(run: Run, tool: Tool, named: Mapping[str, Any], key: str) -> Work[str]:
    """Call a tool as a step; return the text for the model, of an error too."""
    step = Step(tool.name, tool.fn, (), key, tool.effect, tool.verify, tool.retry, tool.timeout, kwargs=named)
    try:
        value = yield from run_step(run._running, step)
    except (StepFailed, TimedOut) as error:
        return f"error: {error}"
    except TenutoError:
        raise
    except Exception as error:  # noqa: BLE001 - the model decides what to do about it
        return f"error: {type(error).__name__}: {error}"
    return _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _results(shape: str, results: Sequence[tuple[str, str]]) -> list[Message]:
    if shape == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
        return [{"role": "user", "content": blocks}]
    return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in results]


def message_of(response: Any) -> Message:
    """Return the message in what a model returned: a text, a message, or a response of OpenAI or Anthropic."""
    if isinstance(response, str):
        return {"role": "assistant", "content": response}
    if isinstance(response, Mapping):
        choices = response.get("choices")
        if choices:
            return message_of(choices[0]["message"])
        if response.get("role") == "assistant" and "content" in response:
            kept = ("role", "content", "tool_calls", "refusal")
            return {name: response[name] for name in kept if response.get(name) is not None or name == "content"}
    raise InvalidInput(
        f"The model returned {response!r:.200}; it must return a text, a message with the role assistant, or a response of "
        "OpenAI or Anthropic. The call is recorded; fork its run to continue with another result."
    )


def _arity(model: Model, shape: str) -> int:
    """Return how many of messages, tools and instructions a model's function takes."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 3 if shape == "anthropic" else 2
    positional = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    return min(positional, 3)
