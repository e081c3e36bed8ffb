"""A durable turn: load, recall, build the context, call the model and its tools, append the messages, learn.

It owns no keys. A turn is the run `turn:THREAD:KEY`: the user's message, each model call, each tool call and the messages
they produce are recorded in its log, each in one commit. A crash in between resumes after the last recorded one. A tool
call is appended to the thread together with its results, so that a conversation never has one without the other. Tools of
one round are called concurrently; each is a step with a key of its own, so a replay finds it in any order.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto import shapes
from tenuto.capabilities._core.base import Timed
from tenuto.capabilities._core.values import NO_OBJECTS, to_dict
from tenuto.capabilities.context import masking
from tenuto.capabilities.context.builder import BuiltContext, ContextBuilder, ContextShape
from tenuto.capabilities.context.guard import Guard, Known, Sign, call_text
from tenuto.capabilities.context.replies import is_cut, message_of
from tenuto.capabilities.context.sources import Sources
from tenuto.capabilities.context.tools import Tool, is_async, schema_of, storable, text_of, tools_of
from tenuto.capabilities.runs import Engine, Face, Retry, Run, Step, run_step
from tenuto.capabilities.threads import Message, Thread, messages_of
from tenuto.errors import Conflict, InvalidInput, NotStorable, StepFailed, TenutoError, TimedOut, Waiting
from tenuto.kernel import keys
from tenuto.kernel.durations import Duration
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
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Work[Turn]:
        """Answer a message of the user as one durable turn; return the model's last message.

        Called again with the same `key` after a crash, it repeats no recorded call and appends each message once; with
        another message it raises `Conflict`. `model(messages, tools)` returns a text, a message or a provider's response;
        `retry` and `timeout` are those of its calls. Errors of tools are given to the model. `learn=True` stores what the
        user stated, or pass a function as for `memory.absorb`. `rounds` limits the model calls, `spend` the dollars. Up to
        `parallel` tools of one round run concurrently. `guard` looks for signs of lost context: "report" passes them to
        hooks and returns them, "reuse" also gives the model the remembered result of a repeated tool call instead of
        calling the tool again.
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
        if self._face is None:
            _must_be_blocking([model, *(one.fn for one in known.values())])
        name = secrets.token_hex(8) if key is None else keys.name(key, "key")
        run = Run(self._engine, f"turn:{thread}:{name}", user=user, thread=thread, budget=spend)
        if self._face is not None:
            self._face(run)
        given = {"role": "user", "content": message} if isinstance(message, str) else message
        asking = _Asking(self._builder, run, model, known, thread, user, budget, instructions, retry, timeout)
        yield from run._taking()
        try:
            begun = bool(run._running.history.ops)
            number = yield from work_of(run.thread.append)(given)
            if begun:
                yield Store(lambda: self._must_be_same(thread, number, given, name))
            changing = [one.name for one in known.values() if one.changing]
            watch = None if guard == "off" else Guard(self._context, self._sources, thread, user, changing)
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

    def _must_be_same(self, thread: str, number: int, given: Any, key: str) -> None:
        """Raise `Conflict` if a turn began with another message."""
        handle = Thread(self._sources.threads, thread, user=None, ttl=None)
        found = handle.messages(after=number - 1, before=number + 1, original=True)
        if found and found[0] != messages_of((given,))[0]:
            raise Conflict(
                f"The key {key!r} was used for another message of the thread {thread!r}; nothing was called. Use a key of "
                "its own for each message, such as its id."
            )


def _must_be_blocking(functions: Sequence[Callable[..., Any]]) -> None:
    for fn in functions:
        if is_async(fn):
            name = getattr(fn, "__name__", type(fn).__name__)
            raise TypeError(
                f"{name} is a coroutine function; nothing was called. Use the turn of AsyncTenuto to await it."
            )


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
    retry: Retry | None
    timeout: Duration | None

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
        step = Step("model", self.model, given, str(number), "idempotent", None, self.retry, self.timeout)
        response = _data_of((yield from run_step(self.run._running, step)))
        if isinstance(response, Mapping) and (response.get("usage") or response.get("usage_metadata")):
            known = {} if _names_its_model(response) else {"model": name if isinstance(name, str) else "unknown"}
            response = {**response, **known}
            yield from work_of(self.run.usage)(response)
            if built is not None and isinstance(name, str):
                seen = built._replace(tokens=built.tokens + size)
                yield Store(work_of(self.builder.calibrate)(seen, response, name))
        return response

    def is_recorded(self, name: str, key: str) -> bool:
        """Return whether a step has a recorded result."""
        recorded = self.run._running.history.ops.values()
        return any((one.state, one.identity.name, one.identity.key) == ("done", name, key) for one in recorded)


def _data_of(response: Any) -> Any:
    """Return a response as data: of a registered type, as of LangChain's messages, a step returns the object."""
    if isinstance(response, Mapping) or type(response) in NO_OBJECTS:
        return response
    with contextlib.suppress(NotStorable):  # `message_of` says what a model may return
        return to_dict(response, "the response")
    return response


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
        response = yield from asking.reply(number)
        message = message_of(response)
        calls = masking.calls_of(message)
        remembered = watching.take([message], new=new)
        if not calls:
            yield from work_of(run.thread.append)(message)
            said = shapes.said_in(message)
            parts = () if said is None else said.parts
            text = shapes.plain_text([one for one in parts if isinstance(one, shapes.Text)])
            return Turn(text, message, called, run.id, watching.found)
        cut = len(calls) - 1 if is_cut(response) else None
        answers = yield from _answers(asking, calls, number, remembered, parallel, cut)
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
    asking: _Asking,
    calls: Sequence[shapes.Call],
    number: int,
    remembered: Mapping[str, Any],
    parallel: int,
    cut: int | None,
) -> Work[list[str]]:
    """Call the tools of one round, concurrently; return the texts for the model in order, of errors too.

    `cut` is the call at which the response reached its limit of tokens: its arguments may be incomplete.
    """
    answers: dict[int, str] = {}
    ready: list[tuple[int, Tool, dict[str, Any]]] = []
    waiting: Waiting | None = None
    for at, call in enumerate(calls):
        known = remembered.get(call_text(call.name, shapes.arguments(call.arguments)))
        refusal = _refusal(asking, call, cut=at == cut)
        if refusal is not None:
            answers[at] = refusal
            continue
        tool = asking.tools[call.name]
        if known is not None and not asking.is_recorded(tool.name, f"{number}/{at}"):
            answers[at] = text_of(known)
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


def _refusal(asking: _Asking, call: shapes.Call, *, cut: bool) -> str | None:
    """Return what the model gets instead of a call that cannot be made, or None."""
    if cut:
        return "error: your reply reached its limit of tokens, so this call was not made; repeat it, shorter"
    if call.name not in asking.tools:
        return f"error: there is no tool {call.name!r}; there are {', '.join(asking.tools) or 'none'}"
    return None


def _is_approved(run: Run, tool: Tool, who: str, named: Mapping[str, Any]) -> Work[bool]:
    question = f"May the agent call {tool.name}({', '.join(f'{k}={v!r}' for k, v in named.items())})?"
    said = yield from work_of(run.ask)(question, to=who, choices=["approve", "reject"])
    return bool(said == "approve")


def _called(run: Run, tool: Tool, named: Mapping[str, Any], key: str) -> Work[str]:
    """Call a tool as a step; return the text for the model, of an error too."""
    step = Step(
        tool.name, tool.fn, (), key, tool.effect, tool.verify, tool.retry, tool.timeout, kwargs=named, recorded=storable
    )  # fmt: skip
    try:
        value = yield from run_step(run._running, step)
    except (StepFailed, TimedOut) as error:
        return f"error: {error}"
    except TenutoError:
        raise
    except Exception as error:  # noqa: BLE001 - the model decides what to do about it
        return f"error: {type(error).__name__}: {error}"
    return text_of(value)


def _results(shape: str, results: Sequence[tuple[str, str]]) -> list[Message]:
    if shape == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
        return [{"role": "user", "content": blocks}]
    return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in results]


def _names_its_model(response: Mapping[str, Any]) -> bool:
    about = response.get("response_metadata") or response
    return isinstance(about.get("model_name") or about.get("model"), str)


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
