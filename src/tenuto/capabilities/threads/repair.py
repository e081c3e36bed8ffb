"""Messages as providers shape them: what is stored of an object, and which tool call a result answers.

Pure functions; nothing here reads or writes. Three shapes of tool calls are known: OpenAI chat (`tool_calls`
of an assistant, answered by messages of the role "tool"), OpenAI responses (items `function_call` and
`custom_tool_call`, answered by items of that name with `_output`), and Anthropic (blocks `tool_use`, answered by
blocks `tool_result` at the beginning of what the user says next). All of them refuse a conversation in which
a call has no result, or a result no call; most also one in which other messages stand in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from tenuto.errors import NotStorable
from tenuto.kernel import codec

Message = dict[str, Any]

INTERRUPTED: Final = (
    "This tool call was interrupted by a crash and its outcome is unknown: it may or may not have taken effect. "
    "Check before repeating it."
)
"""What a result says that `repair` has put in for one that never came."""

# -- what is stored of an object -------------------------------------------------------------------


def messages_of(objects: Sequence[Any], *, deep: bool = False) -> list[Message]:
    """Return each message as the dict that is stored: a dict as it is, an object as the dict it gives.

    With `deep` objects inside of dicts are looked for too.
    """
    return [
        item if type(item) is dict and not deep else _message(item, f"messages[{at}]")
        for at, item in enumerate(objects)
    ]


def _message(value: Any, path: str) -> Message:
    # An object is a message as the dict it gives, also where its type is registered: others must be able to read it.
    given = value if type(value) in _NO_OBJECTS else _given(value, path)
    found = plain(given, path)
    if type(found) is not dict:
        raise NotStorable(
            f"{path} is of type {type(value).__name__}, not a message. Give a dict such as "
            '{"role": "user", "content": "…"}, or an object that gives one.',
            path,
        )
    return found


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return a value with every object in it replaced by the dict it gives; what can be stored stays.

    An object gives a dict by `to_dict()` (the SDKs' wire form, without what was never set), by
    `model_dump()`, as a dataclass, a msgspec struct or a mapping. An enum gives its value.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth > codec.MAX_DEPTH:
        raise NotStorable(f"{path:.80}… is nested deeper than {codec.MAX_DEPTH} levels; flatten it.", path)
    if kind is list or kind is tuple:
        return kind(plain(inner, f"{path}[{at}]", depth + 1) for at, inner in enumerate(value))
    if kind is dict:
        return {key: plain(inner, _below(path, key), depth + 1) for key, inner in value.items()}
    try:
        codec.encode(value)
    except NotStorable:
        return plain(_given(value, path), path, depth + 1)
    return value


_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_NO_OBJECTS: Final = _LEAVES | {dict, list, tuple}


def _given(value: Any, path: str) -> Any:
    kind = type(value)
    try:
        if isinstance(value, Enum):
            return value.value
        for method in ("to_dict", "model_dump"):
            if callable(getattr(kind, method, None)):
                return getattr(value, method)()
        if dataclasses.is_dataclass(kind):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
        if hasattr(kind, "__struct_fields__"):
            return _struct(value)
        if isinstance(value, Mapping):
            return dict(value)
    except Exception as error:
        raise NotStorable(f"{path} is of type {_named(kind)} and could not be made a dict: {error}.", path) from error
    raise NotStorable(
        f"{path} is of type {_named(kind)}, which gives no dict and has no stored form. "
        "Give plain data, or register the type with tenuto.register.",
        path,
    )


def _struct(value: Any) -> dict[str, Any]:
    names = getattr(value, "__struct_encode_fields__", value.__struct_fields__)  # as its wire form names them
    given = {name: getattr(value, own) for name, own in zip(names, value.__struct_fields__, strict=True)}
    config = getattr(value, "__struct_config__", None)
    return given if config is None or config.tag is None else {config.tag_field: config.tag, **given}


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r:.80}]"


# -- calls and results -------------------------------------------------------------------------------

Shape = Literal["chat", "responses", "anthropic"]
_ITEMS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_OUTPUTS: Final = {output: call for call, output in _ITEMS.items()}


class Call(NamedTuple):
    """One call of a tool in a conversation, or the result of one."""

    shape: Shape
    kind: str
    """Of an item of the responses API: which output answers it."""
    id: str
    name: str


class Repair(NamedTuple):
    """One thing that `repair` did to the conversation as it is read; what was appended stays as it was."""

    what: Literal["closed", "moved", "left out", "taken back"]
    """A call without a result was closed; a result was moved to its call; a result without a call was left out.

    A message was taken back by whoever had appended it: `take_back` notes it here too.
    """
    number: int
    """Of the message with the call; of the one with the result where that was left out; of the one taken back."""
    call_id: str
    name: str
    """Of the tool; empty where only a result is known."""


Edits = dict[int, list[Message | None]]
"""What is read in place of a message, by its number; None stands for the message itself."""
_ITSELF: Final[list[Message | None]] = [None]
_NOTHING: Final[Edits] = {}


def calls_in(message: Message) -> list[Call]:
    """Return the tool calls that a message makes."""
    kind = message.get("type")
    if isinstance(kind, str) and kind in _ITEMS:
        return [Call("responses", kind, str(message.get("call_id")), str(message.get("name", "")))]
    if message.get("role") != "assistant":
        return []
    found = []
    for call in _dicts(message.get("tool_calls")):
        function = call.get("function")
        name = function.get("name", "") if isinstance(function, dict) else call.get("name", "")
        found.append(Call("chat", "", str(call.get("id")), str(name)))
    used = (block for block in _dicts(message.get("content")) if block.get("type") == "tool_use")
    return found + [Call("anthropic", "", str(block.get("id")), str(block.get("name", ""))) for block in used]


def results_in(message: Message) -> list[Call]:
    """Return the calls that a message answers."""
    kind = message.get("type")
    if isinstance(kind, str) and kind in _OUTPUTS:
        return [Call("responses", _OUTPUTS[kind], str(message.get("call_id")), "")]
    if message.get("role") == "tool":
        return [Call("chat", "", str(message.get("tool_call_id")), "")]
    if message.get("role") != "user":
        return []
    return [_answered(block) for block in _dicts(message.get("content")) if block.get("type") == "tool_result"]


def _is_calls_alone(message: Message) -> bool:
    """Tell whether a message is Anthropic's and holds calls and nothing else: it continues the turn before it."""
    blocks = message.get("content")
    if message.get("role") != "assistant" or not isinstance(blocks, list) or not blocks:
        return False
    return all(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)


def _answered(block: Message) -> Call:
    return Call("anthropic", "", str(block.get("tool_use_id")), "")


def _dicts(value: Any) -> Iterator[Message]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


# -- repair --------------------------------------------------------------------------------------------


class _Open(NamedTuple):
    """A call that has no result yet."""

    call: Call
    number: int
    """Of the message that makes it."""
    behind: int
    """The number of the message behind which a result would stand: the last one of the same turn."""


class Repairs:
    """What a conversation needs so that a provider takes it: a function of the messages as they were appended.

    It is worked out from the beginning each time. So doing it again gives the same, and a result that
    came after its call had been closed takes the place of what was put in for it.
    """

    def __init__(self, messages: Sequence[Message], taken: Mapping[int, list[Message | None]] = _NOTHING) -> None:
        """`taken` says what is read in place of messages that were taken back, by their number."""
        self.notes: list[Repair] = []
        self._open: dict[tuple[str, ...], _Open] = {}
        self._lost: list[_Open] = []
        self._put: dict[int, list[tuple[Call, Message]]] = {}
        """Results to be put behind a message, by its number, each with its call."""
        self._instead: dict[int, list[Message | None]] = dict(taken)
        self._near: set[tuple[str, ...]] = set()
        """The calls that a result could answer here, with nothing else in between."""
        self._fresh = False
        """Whether the message before made calls."""
        for number, message in enumerate(messages, 1):
            for shown in taken.get(number, _ITSELF):
                self._take(number, message if shown is None else shown)
        for found in sorted([*self._lost, *self._open.values()], key=lambda item: item.number):
            self.notes.append(Repair("closed", found.number, found.call.id, found.call.name))
            self._put.setdefault(found.behind, []).append((found.call, _result_of(found.call, INTERRUPTED)))
        self.notes.sort(key=lambda note: note.number)

    @property
    def edits(self) -> Edits:
        """Return what is to be read in place of which message."""
        found: Edits = dict(self._instead)
        for number, put in self._put.items():
            found[number] = [*found.get(number, [None]), *_together(put)]
        return dict(sorted(found.items()))

    def _take(self, number: int, message: Message) -> None:
        calls, results = calls_in(message), results_in(message)
        again = self._fresh and all(call[:3] not in self._open for call in calls) and _is_calls_alone(message)
        for call in calls:
            if call[:3] in self._open:  # the id is used again: what waits for the first one waits in vain
                self._lost.append(self._open[call[:3]])
            self._open[call[:3]] = _Open(call, number, number)
        if results:
            if results[0].shape == "anthropic":
                self._take_blocks(number, message)
            elif not self._answers(number, results[0], message):
                self._instead[number] = []
        elif again:  # the turn that the message before began goes on, and results come behind it
            for key in self._near & self._open.keys():
                self._open[key] = self._open[key]._replace(behind=number)
            self._near.update(call[:3] for call in calls)
        elif calls and calls[0].shape == "responses":
            self._near.update(call[:3] for call in calls)  # parallel calls are items of their own
        elif message.get("type") != "reasoning":
            self._near = {call[:3] for call in calls}
        self._fresh = bool(calls)

    def _take_blocks(self, number: int, message: Message) -> None:
        kept, leading = [], True
        for block in message["content"]:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                near = self._near
                self._near = near if leading else set()
                if self._answers(number, _answered(block), block):
                    kept.append(block)
                self._near = near
            else:
                leading = False
                kept.append(block)
        if not leading:
            self._near = set()
        if len(kept) < len(message["content"]):
            self._instead[number] = [{**message, "content": kept}] if kept else []

    def _answers(self, number: int, result: Call, content: Message) -> bool:
        """Tell whether a result stays where it is; else it is moved to its call, or left out."""
        found = self._open.pop(result[:3], None)
        if found is not None and result[:3] in self._near:
            return True
        if found is None:
            self.notes.append(Repair("left out", number, result.id, ""))
        else:
            self.notes.append(Repair("moved", found.number, result.id, found.call.name))
            self._put.setdefault(found.behind, []).append((found.call, content))
        return False


def _result_of(call: Call, text: str) -> Message:
    if call.shape == "chat":
        return {"role": "tool", "tool_call_id": call.id, "content": text}
    if call.shape == "responses":
        return {"type": _ITEMS[call.kind], "call_id": call.id, "output": text}
    return {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}


def is_closing(message: Message) -> bool:
    """Tell whether a message is a result that `repair` has put in for one that never came."""
    blocks = message.get("content")
    if isinstance(blocks, list):
        return bool(blocks) and all(isinstance(block, dict) and is_closing(block) for block in blocks)
    return INTERRUPTED in (blocks, message.get("output"))


def _together(put: Sequence[tuple[Call, Message]]) -> list[Message]:
    """Return results as messages: blocks of Anthropic's in one of the user's, the others as they are."""
    blocks = [result for call, result in put if call.shape == "anthropic"]
    rest = [result for call, result in put if call.shape != "anthropic"]
    return [*rest, {"role": "user", "content": blocks}] if blocks else rest


def woven(messages: Sequence[Message], first: int, edits: Edits) -> list[Message]:
    """Return messages, numbered from `first` on, as they are read once repaired."""
    found: list[Message] = []
    for number, message in enumerate(messages, first):
        found += [message if item is None else item for item in edits.get(number, _ITSELF)]
    return found


# -- compaction ------------------------------------------------------------------------------------------


def border(messages: Sequence[Message], wanted: int) -> int:
    """Return how many messages from the front can be left out, `wanted` at most, parting no call from its result.

    A call at the end that still waits for its result stays, and so does reasoning with what follows it.
    """
    waiting: dict[tuple[str, ...], int] = {}
    parts: list[tuple[int, int]] = []  # (call, result): the border does not fall between
    for at, message in enumerate(messages):
        parts += [(waiting.pop(result[:3]), at) for result in results_in(message) if result[:3] in waiting]
        waiting.update((call[:3], at) for call in calls_in(message))
        if message.get("type") == "reasoning" or (
            calls_in(message) and any(map(_is_calls_alone, messages[at + 1 : at + 2]))
        ):
            parts.append((at, at + 1))
    end = len(messages)
    while end and (calls_in(messages[end - 1]) or results_in(messages[end - 1])):
        end -= 1
    parts += [(at, len(messages)) for at in waiting.values() if at >= end]
    found = min(wanted, len(messages))
    for first, last in sorted(parts, key=lambda part: part[1], reverse=True):
        if first < found <= last:
            found = first
    return max(found, 0)


def leading_instructions(messages: Sequence[Message]) -> int:
    """Return how many messages at the front are instructions (system, developer): they are never summarised."""
    count = 0
    while count < len(messages) and messages[count].get("role") in ("system", "developer"):
        count += 1
    return count
