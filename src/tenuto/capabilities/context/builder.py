"""Build the context of one turn: what the model sees, within a budget of tokens.

Keys, below the tenant: `(thread, "thread", "derived", since, "window:…")` is the window of a thread for one budget, deleted
with the thread. It is derived data: a crash before it is stored repeats the work of one build.

Order of sacrifice: old tool output is masked first, then older turns are summarised, then notes are dropped, memories
before decisions. The instructions, the last message of the user, open questions, and a tool call without its result are
always shown. The same store and arguments give the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, get_args

from tenuto import shapes
from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities.context import summaries, window
from tenuto.capabilities.context.calibration import factor_of, observed
from tenuto.capabilities.context.summaries import Summarize
from tenuto.capabilities.context.tokens import CountTokens, Tokens
from tenuto.capabilities.context.window import Fitted, Fitting, Window
from tenuto.capabilities.playbooks import Playbook
from tenuto.capabilities.runs import Usage, usage_of
from tenuto.capabilities.threads import Message, Thread, Threads
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import codec
from tenuto.kernel.contract import Check, Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Call, Store, Work, on_caller, on_store

_Read = tuple[Window, int, list[tuple[int, Message]]]
"""A window, the version of its record, and the messages after it."""
ContextShape = Literal["openai", "responses", "anthropic", "langchain"]
Strategy = Literal["recent", "summarize", "retrieve", "handoff"]
_SHAPES = get_args(ContextShape)
_STORED_SHAPES: dict[str, shapes.Shape] = {
    "openai": "chat", "langchain": "chat", "responses": "responses", "anthropic": "anthropic",
}  # fmt: skip
_AGAIN = 2
"""How often a build is repeated because another process has stored a window meanwhile."""
NOTES = "<context>\n"
"""What the message with the notes begins with."""
_NOTES = 1 / 3
"""The part of the budget that notes may take, unless they have to be kept."""


class Note(NamedTuple):
    """Something that the model should know this turn, from outside of the conversation."""

    part: str
    text: str
    why: str
    keep: bool = False
    """Whether it is shown even if something else has to go."""
    message: int | None = None
    """The number of the message that it repeats: it is shown only if the conversation does not show that."""


class Part(NamedTuple):
    """A part of a context: its name, its tokens, and why it is there."""

    name: str
    tokens: int
    why: str


class LeftOut(NamedTuple):
    """Something that a context does not show: what, its tokens, and why not."""

    what: str
    tokens: int
    why: str


Gather = Callable[[str, str | None, str | None, bool], list[Note]]
"""Collects the notes for a thread, a user and a query, with earlier turns of the thread or not; runs on the store."""


class BuiltContext(NamedTuple):
    """What the model sees this turn."""

    messages: list[Message]
    system: str | None
    """The instructions, for the shape "anthropic", whose API takes them separately; else None."""
    tokens: int
    parts: list[Part]
    left_out: list[LeftOut]
    rewritten: bool
    """Whether this build masked or summarised messages before the previous turn: a provider's prompt cache misses once."""
    factor: float = 1.0
    """What counts were multiplied by: the calibration of the model, and room for the error of an estimate."""


class Settings(NamedTuple):
    """What is asked of a build; a window is stored for each that differs in what it shows of a conversation."""

    budget: int
    instructions: str
    mask: bool
    strategy: Strategy
    shape: ContextShape
    summarize: Summarize | None
    counter: CountTokens | str | None
    model: str | None

    def name(self) -> str:
        """Return the name under which the window is stored."""
        counter = getattr(self.counter, "__qualname__", self.counter)
        found = [self.budget, self.mask, self.strategy, self.shape, counter, self.summarize is not None]
        return f"window:{codec.digest(codec.pack(found)).hex()}"


class ContextBuilder(Timed):
    """Builds contexts from threads and notes."""

    def __init__(self, context: Context, threads: Threads, gather: Gather) -> None:
        self._context = context
        self._threads = threads
        self._gather = gather

    @on_caller
    def build_context(  # noqa: PLR0913 - the words of the API
        self,
        thread: str,
        *,
        user: str | None = None,
        query: str | None = None,
        budget: int = 8_000,
        instructions: str | None = None,
        playbook: Playbook | str | None = None,
        summarize: Summarize | None = None,
        count_tokens: CountTokens | str | None = None,
        mask: bool = True,
        strategy: Strategy = "summarize",
        shape: ContextShape = "openai",
        model: str | None = None,
        keep: bool = True,
    ) -> Work[BuiltContext]:
        """Return what the model sees this turn, within `budget` tokens: deterministic, stable from turn to turn.

        `query` finds memories; by default it is the last message of the user. `summarize(messages)` returns a text for
        older turns; without it they are quoted. `strategy` says what becomes of older turns: "summarize"; "recent" leaves
        them out; "retrieve" shows those that fit the query; "handoff" summarises all but the last exchange, to begin
        another thread with. `count_tokens` is a function, or the name of an OpenAI model or encoding; without it tokens
        are estimated, with room for the error; `model` corrects the estimate by what `calibrate` has learned of it.
        `playbook` is one of `agent.playbooks`, or a text. With `keep=False` nothing is stored: a preview.
        """
        _validate(budget, shape, strategy)
        procedure = playbook.text() if isinstance(playbook, Playbook) else playbook
        _must_be_texts({"instructions": instructions, "playbook": procedure, "query": query, "model": model})
        if summarize is not None and not callable(summarize):
            raise InvalidInput(f"summarize must be a function of messages, not {type(summarize).__name__}.")
        system = "\n\n".join(text for text in (instructions, procedure) if text)
        settings = Settings(budget, system, mask, strategy, shape, summarize, count_tokens, model)
        handle = Thread(self._threads, thread, user=user, ttl=None)
        made, stored = yield from self._build(handle, user, query, settings, keep=keep)
        for _ in range(_AGAIN):
            if stored:
                break
            made, stored = yield from self._build(handle, user, query, settings)
        return made

    @on_store
    def calibrate(self, context: BuiltContext, response: Any, model: str | None = None) -> Work[None]:
        """Learn durably from a provider's response how many tokens its model counts; `build_context(model=…)` uses it.

        `response` is one of OpenAI, Anthropic or LangChain, or the number of input tokens. `model` is the name to learn
        for, by default the one in the response. Pass contexts whose tokens were estimated. `agent.turn` does this itself.
        """
        used = Usage(model or "", response) if isinstance(response, int) else usage_of(response)
        yield from observed(self._context, model or used.model, context.tokens / context.factor, used.input_tokens)

    def _build(
        self, handle: Thread, user: str | None, query: str | None, settings: Settings, *, keep: bool = True
    ) -> Work[tuple[BuiltContext, bool]]:
        """Return a context, and whether its window is stored; another process may have stored one meanwhile."""
        factor: float = yield Store(lambda: factor_of(self._context, settings.model))
        tokens = Tokens(settings.counter, factor)
        read: _Read = yield Store(lambda: self._read(handle, settings))
        found, version, recent = read
        found = found.scaled(tokens.factor)
        asked = query if query is not None else _last_text(found, recent)
        turns = settings.strategy == "retrieve"
        notes: list[Note] = yield Store(lambda: self._gather(handle.id, user, asked, turns))
        assembly = _Assembly(tokens, settings, notes)
        whole = settings.strategy == "handoff"
        fitted = Fitting(found, recent, tokens, assembly.room(), mask=settings.mask, whole=whole).fit()
        now = fitted.window
        if fitted.older:
            text = yield from _summary(fitted, settings, tokens, found.summary)
            now = now._replace(summary=text, summary_tokens=0)
            now = now._replace(summary_tokens=window.tokens_of_summary(now, tokens))
        made = assembly.built(now, fitted)
        return made, not keep or now == found or (yield Store(self._store(handle, settings, now, version)))

    def _read(self, thread: Thread, settings: Settings) -> _Read:
        key = thread._derived_key(settings.name())
        record = None if key is None else self._context.kernel.read([key])[0]
        found = None if record is None else window.loaded(codec.decode(record.value))
        frame, recent = thread._numbered(0 if found is None else found.masked_through)
        if found is not None and found.frame != frame:
            found = None
            frame, recent = thread._numbered(0)
        shape = _STORED_SHAPES[settings.shape]
        shown = [(number, one) for number, message in recent for one in shapes.shown(shape, message)]
        return found or Window(frame), record.version if record is not None else 0, shown

    def _store(self, thread: Thread, settings: Settings, now: Window, version: int) -> Work[bool]:
        """Store a window, unless another process has stored one since it was read; return whether it was stored."""
        key = thread._derived_key(settings.name())
        if key is None:
            return True
        try:
            yield from commit_once(self._context.kernel, [Check(key, version)], [Put(key, codec.encode(now.stored()))])
        except Conflict:
            return False
        return True


def _summary(fitted: Fitted, settings: Settings, tokens: Tokens, earlier: str) -> Work[str]:
    def fits(text: str) -> bool:
        return tokens.message(window.summary_message(text)) <= fitted.reserved

    if settings.strategy in ("recent", "retrieve"):
        return f"- Messages up to {fitted.window.through} are left out."
    if settings.summarize is None:
        lines = earlier.splitlines()
        text = summaries.shortened([*lines, *summaries.quotes(fitted.older[bool(lines) :])], fits)
        return text if fits(text) else ""
    text = yield Call(settings.summarize, (fitted.older,), nullcontext, "summarize")
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"summarize returned {text!r:.80}; it must return a text. Nothing was stored.")
    while text and not fits(text):
        text = text[: len(text) * 3 // 4].rstrip() + "…" if len(text) > 8 else ""
    return text


class _Assembly:
    """Puts a context together and accounts for it."""

    def __init__(self, tokens: Tokens, settings: Settings, notes: Sequence[Note]) -> None:
        self._tokens = tokens
        self._settings = settings
        self._notes = list(notes)
        text = settings.instructions
        self._system = [{"role": "system", "content": text}] if text else []
        self._left: list[LeftOut] = []
        most = int(settings.budget * _NOTES)
        while self._noted() > most and self._drop_note("notes take at most a third of the budget"):
            pass

    def room(self) -> int:
        """Return the tokens that the conversation may take."""
        return self._settings.budget - sum(map(self._tokens.message, self._system)) - self._noted()

    def _noted(self) -> int:
        block = _block(self._notes)
        return 0 if block is None else self._tokens.message(block)

    def built(self, now: Window, fitted: Fitted) -> BuiltContext:
        """Return the context; drop notes until it fits, or raise `InvalidInput` if the rest is too large."""
        budget = self._settings.budget
        self._notes = [one for one in self._notes if one.message is None or one.message <= now.through]
        messages, total = self._measured(now, fitted)
        while total > budget and self._drop_note("the budget is full"):
            messages, total = self._measured(now, fitted)
        if total > budget:
            raise InvalidInput(
                f"A budget of {budget:,} tokens is too small: the instructions, the open questions and the last exchange "
                f"need {total:,}. Raise the budget or shorten them; nothing was stored."
            )
        system, shown = _in_shape(self._settings.shape, messages)
        left = [*_masked(now, fitted), *self._left]
        return BuiltContext(shown, system, total, self._parts(now, fitted), left, fitted.rewritten, self._tokens.factor)

    def _measured(self, now: Window, fitted: Fitted) -> tuple[list[Message], int]:
        around = _block(self._notes)
        shown = [one.message for one in fitted.shown]
        at = 0 if now.last else _last_user(shown)
        last = [now.last.message] if now.last else []
        before = [*self._system, *(one.message for one in now.head), *_summaries(now), *shown[:at]]
        found = [*before, *([around] if around else []), *last, *shown[at:]]
        counted = [*now.head, *([now.last] if now.last else []), *fitted.shown]  # counted when they were first read
        others = [*self._system, *([around] if around else [])]
        total = sum(one.tokens for one in counted) + window.tokens_of_summary(now, self._tokens)
        return found, total + sum(map(self._tokens.message, others))

    def _drop_note(self, why: str) -> bool:
        """Leave out the last note that need not be kept; return whether there was one."""
        for at in range(len(self._notes) - 1, -1, -1):
            note = self._notes[at]
            if not note.keep:
                del self._notes[at]
                self._left.append(LeftOut(f"{note.part}: {note.text[:80]}", self._tokens.text(note.text), why))
                return True
        return False

    def _parts(self, now: Window, fitted: Fitted) -> list[Part]:
        count, parts = self._tokens, []
        always = [*self._system, *(one.message for one in now.head)]
        if always:
            parts.append(Part("instructions", sum(map(count.message, always)), "always shown"))
        if now.summary:
            covered = f"covers the messages up to {now.through}"
            parts.append(Part("summary", window.tokens_of_summary(now, count), covered))
        parts += [Part(note.part, count.text(note.text), note.why) for note in self._notes]
        turns = [*([now.last] if now.last else []), *fitted.shown]
        if turns:
            why = f"messages {turns[0].number} to {turns[-1].number}"
            parts.append(Part("conversation", sum(one.tokens for one in turns), why))
        return parts


def _masked(now: Window, fitted: Fitted) -> list[LeftOut]:
    """Return what of the conversation is not shown verbatim."""
    found = []
    if now.through:
        found.append(LeftOut(f"messages up to {now.through}", now.covered, "older turns are summarised"))
    masked = [one for one in fitted.shown if one.left]
    return found + [LeftOut(f"tool output of message {one.number}", one.left, "masked or cut") for one in masked]


def _summaries(now: Window) -> list[Message]:
    return [window.summary_message(now.summary)] if now.summary else []


def _block(notes: Sequence[Note]) -> Message | None:
    """Return the notes as one message, which stands right before the last message of the user."""
    if not notes:
        return None
    parts: dict[str, list[str]] = {}
    for note in notes:
        parts.setdefault(note.part, []).append(note.text)
    text = "\n\n".join(f"{name}:\n" + "\n".join(f"- {line}" for line in lines) for name, lines in parts.items())
    return {"role": "user", "content": f"{NOTES}{text}\n</context>"}


def _last_user(messages: Sequence[Message]) -> int:
    """Return the index of the last message that the user wrote; the end if there is none."""
    return next((at for at in range(len(messages) - 1, -1, -1) if window.is_written(messages[at])), len(messages))


def _last_text(found: Window, recent: Sequence[tuple[int, Message]]) -> str | None:
    kept = [] if found.last is None else [found.last]
    messages = [*(one.message for one in (*kept, *found.masked)), *(message for _, message in recent)]
    at = _last_user(messages)
    if at == len(messages):
        return None
    said = shapes.said_in(messages[at])
    return None if said is None else shapes.plain_text([one for one in said.parts if isinstance(one, shapes.Text)])


def _in_shape(shape: ContextShape, messages: Sequence[Message]) -> tuple[str | None, list[Message]]:
    if shape == "anthropic":
        found = shapes.as_anthropic(messages)
        return found.system, found.messages
    return None, shapes.as_responses(messages) if shape == "responses" else shapes.as_chat(messages)


def _must_be_texts(given: Mapping[str, object]) -> None:
    for name, text in given.items():
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"{name} must be a text, not {type(text).__name__}.")


def _validate(budget: int, shape: str, strategy: str) -> None:
    if type(budget) is not int or budget < 1:
        raise InvalidInput(f"budget must be a number of tokens, 1 or more, not {budget!r}.")
    if shape not in _SHAPES:
        raise InvalidInput(f"shape must be one of {', '.join(_SHAPES)}; not {shape!r}.")
    if strategy not in get_args(Strategy):
        raise InvalidInput(f"strategy must be one of {', '.join(get_args(Strategy))}; not {strategy!r}.")
