"""Tool calls and their results: match them, and close calls that have no result. Pure functions.

Three shapes of tool calls are known: OpenAI chat (`tool_calls` of an assistant, answered by messages of the role
"tool"), OpenAI responses (items `function_call` and `custom_tool_call`, answered by items of that name with `_output`),
and Anthropic (blocks `tool_use`, answered by blocks `tool_result` at the start of the next user message). All reject a
conversation with a call without a result, or a result without a call; most also reject other messages in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities.threads.messages import Message

INTERRUPTED: Final = (
    "This tool call was interrupted by a crash and its outcome is unknown: it may or may not have taken effect. "
    "Check before repeating it."
)
"""The content of a result that `repair` inserts."""

Shape = Literal["chat", "responses", "anthropic"]
_ITEMS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_OUTPUTS: Final = {output: call for call, output in _ITEMS.items()}


class Call(NamedTuple):
    """A tool call in a conversation, or its result."""

    shape: Shape
    kind: str
    """The item type of a call in the responses API."""
    id: str
    name: str


class Repair(NamedTuple):
    """One repair of the conversation as it is read; the stored messages do not change."""

    what: Literal["closed", "moved", "left out", "taken back"]
    """A call without a result was closed, a result moved to its call, a result without a call left out, or a message
    hidden by `take_back`.
    """
    number: int
    """Of the message with the call; of the result if it was left out; of the message taken back."""
    call_id: str
    name: str
    """Of the tool; empty if only a result is known."""


Edits = dict[int, list[Message | None]]
"""The messages to read in place of a message, by its number; None is the message itself."""
_ITSELF: Final[list[Message | None]] = [None]
_NOTHING: Final[Edits] = {}


def calls_in(message: Message) -> list[Call]:
    """Return the tool calls in a message."""
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
    """Return whether an Anthropic message holds only calls: then it continues the turn before it."""
    blocks = message.get("content")
    if message.get("role") != "assistant" or not isinstance(blocks, list) or not blocks:
        return False
    return all(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)


def _answered(block: Message) -> Call:
    return Call("anthropic", "", str(block.get("tool_use_id")), "")


def _dicts(value: Any) -> Iterator[Message]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


class _Open(NamedTuple):
    """A call that has no result yet."""

    call: Call
    number: int
    """Of the message with the call."""
    behind: int
    """The number of the message after which a result belongs: the last one of the same turn."""


class Repairs:
    """The repairs that a conversation needs so that a provider accepts it.

    They are computed from the original messages each time. So they are idempotent, and a late result replaces the
    one that was inserted for it.
    """

    def __init__(self, messages: Sequence[Message], taken: Mapping[int, list[Message | None]] = _NOTHING) -> None:
        """`taken` has the replacements of messages that were taken back, by number."""
        self.notes: list[Repair] = []
        self._open: dict[tuple[str, ...], _Open] = {}
        self._lost: list[_Open] = []
        self._put: dict[int, list[tuple[Call, Message]]] = {}
        """Results to insert after a message, by its number, each with its call."""
        self._instead: dict[int, list[Message | None]] = dict(taken)
        self._near: set[tuple[str, ...]] = set()
        """The calls that a result may answer here, with no other message in between."""
        self._fresh = False
        """Whether the previous message had calls."""
        for number, message in enumerate(messages, 1):
            for shown in taken.get(number, _ITSELF):
                self._take(number, message if shown is None else shown)
        for found in sorted([*self._lost, *self._open.values()], key=lambda item: item.number):
            self.notes.append(Repair("closed", found.number, found.call.id, found.call.name))
            self._put.setdefault(found.behind, []).append((found.call, _result_of(found.call, INTERRUPTED)))
        self.notes.sort(key=lambda note: note.number)

    @property
    def edits(self) -> Edits:
        """Return the replaced messages, by number."""
        found: Edits = dict(self._instead)
        for number, put in self._put.items():
            found[number] = [*found.get(number, [None]), *_together(put)]
        return dict(sorted(found.items()))

    def _take(self, number: int, message: Message) -> None:
        calls, results = calls_in(message), results_in(message)
        again = self._fresh and all(call[:3] not in self._open for call in calls) and _is_calls_alone(message)
        for call in calls:
            if call[:3] in self._open:  # the id is reused: the first call gets no result
                self._lost.append(self._open[call[:3]])
            self._open[call[:3]] = _Open(call, number, number)
        if results:
            if results[0].shape == "anthropic":
                self._take_blocks(number, message)
            elif not self._answers(number, results[0], message):
                self._instead[number] = []
        elif again:  # it continues the turn of the previous message: results come after it
            for key in self._near & self._open.keys():
                self._open[key] = self._open[key]._replace(behind=number)
            self._near.update(call[:3] for call in calls)
        elif calls and calls[0].shape == "responses":
            self._near.update(call[:3] for call in calls)  # parallel calls are separate items
        elif message.get("type") != "reasoning":
            self._near = {call[:3] for call in calls}
        self._fresh = bool(calls)

    def _take_blocks(self, number: int, message: Message) -> None:
        blocks, leading = [], True
        for block in message["content"]:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                near = self._near
                self._near = near if leading else set()
                if self._answers(number, _answered(block), block):
                    blocks.append(block)
                self._near = near
            else:
                leading = False
                blocks.append(block)
        if not leading:
            self._near = set()
        if len(blocks) < len(message["content"]):
            self._instead[number] = [{**message, "content": blocks}] if blocks else []

    def _answers(self, number: int, result: Call, content: Message) -> bool:
        """Return whether a result stays in place; else move it to its call, or leave it out."""
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
    """Return whether a message is a result that `repair` inserted."""
    blocks = message.get("content")
    if isinstance(blocks, list):
        return bool(blocks) and all(isinstance(block, dict) and is_closing(block) for block in blocks)
    return INTERRUPTED in (blocks, message.get("output"))


def _together(put: Sequence[tuple[Call, Message]]) -> list[Message]:
    """Return results as messages; Anthropic's blocks share one user message."""
    blocks = [result for call, result in put if call.shape == "anthropic"]
    rest = [result for call, result in put if call.shape != "anthropic"]
    return [*rest, {"role": "user", "content": blocks}] if blocks else rest


def woven(messages: Sequence[Message], first: int, edits: Edits) -> list[Message]:
    """Return messages, numbered from `first`, with repairs applied."""
    found: list[Message] = []
    for number, message in enumerate(messages, first):
        found += [message if item is None else item for item in edits.get(number, _ITSELF)]
    return found


def border(messages: Sequence[Message], wanted: int) -> int:
    """Return how many leading messages, at most `wanted`, can be cut without separating a call from its result.

    A call at the end without a result is not cut, and reasoning stays with the message after it.
    """
    waiting: dict[tuple[str, ...], int] = {}
    parts: list[tuple[int, int]] = []  # (call, result): no cut in between
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
    """Return the number of leading instructions (system, developer), which are never summarised."""
    count = 0
    while count < len(messages) and messages[count].get("role") in ("system", "developer"):
        count += 1
    return count
