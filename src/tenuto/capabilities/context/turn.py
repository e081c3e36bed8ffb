"""A durable turn: load, recall, build the context, call the model and its tools, append the messages, learn.

It owns no keys. A turn is the run `turn:THREAD:KEY`: the user's message, each model call, each tool call and the messages
they produce are recorded in its log, each in one commit. A crash in between resumes after the last recorded one. A tool
call is appended to the thread together with its results, so that a conversation never has one without the other.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tenuto import shapes
from tenuto.capabilities._core.base import Timed
from tenuto.capabilities.context import masking
from tenuto.capabilities.context.builder import ContextBuilder, ContextShape
from tenuto.capabilities.context.tools import Tool, schema_of, tools_of
from tenuto.capabilities.memory import Memories
from tenuto.capabilities.runs import Engine, Run, Step, run_step
from tenuto.capabilities.threads import Message
from tenuto.errors import InvalidInput, StepFailed, TenutoError, TimedOut
from tenuto.kernel import keys
from tenuto.kernel.work import Store, Work, on_caller, work_of

Model = Callable[..., Any]
"""Called with the messages and the schemas of the tools; returns a text, a message, or a provider's response."""


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


class Turns(Timed):
    """Durable turns of conversations."""

    def __init__(self, engine: Engine, builder: ContextBuilder, memories: Memories) -> None:
        self._engine = engine
        self._context = engine.context
        self._builder = builder
        self._memories = memories

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
    ) -> Work[Turn]:
        """Answer a message of the user as one durable turn; return the model's last message.

        Called again with the same `key` after a crash, it repeats no recorded call and appends each message once.
        `model(messages, tools)` returns a text, a message or a response of OpenAI or Anthropic. Errors of tools are
        given to the model. `learn=True` stores what the user stated, or pass a function as for `memory.absorb`.
        `rounds` limits the model calls, `spend` the dollars.
        """
        if not callable(model):
            raise InvalidInput(f"model must be a function of messages and tools, not {type(model).__name__}.")
        if type(rounds) is not int or rounds < 1:
            raise InvalidInput(f"rounds must be 1 or more, not {rounds!r}.")
        known = tools_of(tools)
        name = secrets.token_hex(8) if key is None else keys.name(key, "key")
        run = Run(self._engine, f"turn:{thread}:{name}", user=user, thread=thread, budget=spend)
        given = {"role": "user", "content": message} if isinstance(message, str) else message
        asking = _Asking(self._builder, run, model, known, thread, user, budget, instructions)
        yield from run._taking()
        try:
            yield from work_of(run.thread.append)(given)
            made = yield from _rounds(run, asking, rounds)
            run.result = {"text": made.text, "calls": len(made.calls)}
            if learn and not run._running.over:
                yield Store(work_of(self._memories.absorb)(thread, None if learn is True else learn, user=user))
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
        if not self._is_recorded(str(number)):  # a recorded call needs no context
            schemas = [schema_of(one, shape) for one in self.tools.values()]
            size = sum(len(json.dumps(one)) for one in schemas) // 3
            built = yield from work_of(self.builder.build_context)(
                self.thread,
                user=self.user,
                budget=max(self.budget - size, 1),
                instructions=self.instructions,
                shape=shape,
            )
            given = (built.messages, schemas, built.system)[: _arity(self.model, shape)]
        step = Step("model", self.model, given, str(number), "idempotent", None, None, None)
        response = yield from run_step(self.run._running, step)
        if isinstance(response, Mapping) and (response.get("usage") or response.get("usage_metadata")):
            yield from work_of(self.run.usage)(response)
        return response

    def _is_recorded(self, key: str) -> bool:
        recorded = self.run._running.history.ops.values()
        return any((one.state, one.identity.name, one.identity.key) == ("done", "model", key) for one in recorded)


def _rounds(run: Run, asking: _Asking, rounds: int) -> Work[Turn]:
    called: list[Called] = []
    for number in range(rounds):
        message = message_of((yield from asking.reply(number)))
        calls = masking.calls_of(message)
        if not calls:
            yield from work_of(run.thread.append)(message)
            said = shapes.said_in(message)
            parts = () if said is None else said.parts
            text = shapes.plain_text([one for one in parts if isinstance(one, shapes.Text)])
            return Turn(text, message, called, run.id)
        answers = []
        for at, call in enumerate(calls):
            answers.append((yield from _called(run, asking.tools, call, f"{number}/{at}")))
        called += [Called(call.name, call.arguments, text) for call, text in zip(calls, answers, strict=True)]
        shape = shapes.shape_of(message)
        pairs = zip(calls, answers, strict=True)
        yield from work_of(run.thread.append)(message, *_results(shape, [(call.id, text) for call, text in pairs]))
    raise InvalidInput(
        f"The model still called tools after {rounds} rounds; what they returned is in the thread. Repeat the call with "
        "the same key and more rounds."
    )


def _called(run: Run, tools: dict[str, Tool], call: shapes.Call, key: str) -> Work[str]:
    """Call a tool as a step; return the text for the model, of an error too."""
    tool = tools.get(call.name)
    if tool is None:
        return f"error: there is no tool {call.name!r}; there are {', '.join(tools) or 'none'}"
    try:
        named = tool.arguments(call.arguments)
    except InvalidInput as error:
        return f"error: {error}"
    if tool.approve is not None:
        question = f"May the agent call {tool.name}({', '.join(f'{k}={v!r}' for k, v in named.items())})?"
        said = yield from work_of(run.ask)(question, to=tool.approve, choices=["approve", "reject"])
        if said != "approve":
            return "error: a person rejected this call"
    step = Step(tool.name, tool.fn, (), key, tool.effect, tool.verify, tool.retry, tool.timeout, kwargs=named)
    try:
        value = yield from run_step(run._running, step)
    except (StepFailed, TimedOut) as error:
        return f"error: {error}"
    except TenutoError:
        raise
    except Exception as error:  # noqa: BLE001 - the model decides what to do about it
        return f"error: {type(error).__name__}: {error}"
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
