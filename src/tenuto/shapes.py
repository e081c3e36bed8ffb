"""Convert messages between provider formats: roles, texts, images, tool calls and their results.

Pure functions without I/O. There are three formats: "responses" (items of OpenAI's responses API, used by the OpenAI
Agents SDK), "chat" (OpenAI's chat messages, which most frameworks understand) and "anthropic" (messages of content
blocks). A message is parsed into a neutral form (`Said`), which is written in any other format. Parts without a
counterpart (reasoning, server-side tools, ids, usage) are left out of the conversion. The thread stores the original
message, so its writer reads it back unchanged.

A stored message is always in the format of its writer's provider, so that `thread.messages()` and `thread.repair()`
understand it. If the writer has more fields than that (LangChain's objects, entries of Claude's transcripts), they
are stored under the key `kept`, with the writer's name in `by`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

Message = dict[str, Any]
Shape = Literal["responses", "chat", "anthropic"]
KEPT: Final = "kept"

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_CHAT_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "function_call", "name", "refusal", "audio"})
_ITEM_KEYS: Final = frozenset({"role", "type", "id"})
"""An item needs at least one of these; providers reject one with none."""
_BLOCKS: Final[dict[str, Shape]] = {
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), "responses"),
    **dict.fromkeys(("image_url", "input_audio", "file"), "chat"),
    **dict.fromkeys(
        ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "server_tool_use"),
        "anthropic",
    ),
}
"""Content blocks that occur in one format only."""

# -- the neutral form ------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A text."""

    text: str


class Image(NamedTuple):
    """An image by its URL; an embedded one has a `data:` URL."""

    url: str


class Call(NamedTuple):
    """A tool call."""

    id: str
    name: str
    arguments: str
    """As JSON."""


class Result(NamedTuple):
    """The result of a tool call."""

    id: str
    parts: tuple[Text | Image, ...]
    failed: bool = False


Part = Text | Image | Call | Result


class Said(NamedTuple):
    """The neutral form of a message."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


# -- shapes ----------------------------------------------------------------------------------------------------


def shape_of(message: Message) -> Shape | Literal["any"]:
    """Return the format of a message; "any" if it is the same in all of them."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        return "chat" if role in ("tool", "function") else "responses"  # an item has a type and usually no role
    if type(content) is list:
        for block in content:
            found = _BLOCKS.get(block.get("type", "")) if type(block) is dict else None
            if found is not None:
                return found
    if not _CHAT_KEYS.isdisjoint(message):
        return "chat"
    if "stop_reason" in message:
        return "anthropic"
    return "responses" if "type" in message else "any"


def fits(shape: Shape, message: Message) -> bool:
    """Return whether a provider of this format accepts a message unchanged."""
    found = shape_of(message)
    if found == shape:
        if shape == "responses":
            return not _ITEM_KEYS.isdisjoint(message)
        return shape != "anthropic" or message.keys() == {"role", "content"}
    if found != "any":
        return False
    if shape == "anthropic" and (message["role"] not in ("user", "assistant") or len(message) > 2):
        return False
    return type(message.get("content")) is str or (shape != "responses" and type(message.get("content")) is list)


def stored(shape: Shape, message: Message) -> Message:
    """Return the stored form of a message, from which `shown` restores it for the same format."""
    if KEPT not in message and fits(shape, message):
        return message
    return {**message, KEPT: {"by": shape, **({KEPT: message[KEPT]} if KEPT in message else {})}}


def shown(shape: Shape, message: Message) -> list[Message]:
    """Return a stored message in a format: unchanged if it was written in it, else converted."""
    kept = kept_of(message)
    if kept is None:
        body = message
    else:
        body = {key: value for key, value in message.items() if key != KEPT}
        if kept["by"] == shape:
            return [{**body, **({KEPT: kept[KEPT]} if KEPT in kept else {})}]
    if fits(shape, body):
        return [body]
    if shape == "anthropic" and shape_of(body) == "anthropic":  # a response has fields that a request must not have
        return [{"role": body["role"], "content": body["content"]}]
    said = said_in(body)
    return list(_WRITE[shape](said)) if said is not None else []


def kept_of(message: Message) -> dict[str, Any] | None:
    """Return the writer's own fields of a message, if any."""
    kept = message.get(KEPT)
    return kept if type(kept) is dict and "by" in kept else None


# -- reading ---------------------------------------------------------------------------------------------------


def said_in(message: Message) -> Said | None:
    """Return the neutral form of a message; None if nothing in it can be converted."""
    read = {"responses": _read_item, "anthropic": _read_blocks}.get(shape_of(message), _read_chat)
    role, parts = read(message)
    if role not in ("user", "assistant"):
        role = "system"
    found = tuple(parts)
    return Said(role, found) if found else None


def _read_chat(message: Message) -> tuple[Any, Iterator[Part]]:
    role = message.get("role")
    if role in ("tool", "function"):
        answered = Result(str(message.get("tool_call_id") or message.get("name")), words(message.get("content")))
        return "user", iter([answered])

    def parts() -> Iterator[Part]:
        yield from words(message.get("content"))
        if isinstance(message.get("refusal"), str):
            yield Text(message["refusal"])
        for call in message.get("tool_calls") or ():
            function = call.get("function") or call.get("custom") or {}
            given = function.get("arguments", function.get("input", ""))
            yield Call(str(call.get("id")), str(function.get("name", "")), given or "{}")

    return role, parts()


def _read_item(item: Message) -> tuple[Any, Iterator[Part]]:
    kind = item.get("type")
    if kind == "function_call":
        return "assistant", iter([Call(str(item.get("call_id")), str(item.get("name")), item.get("arguments") or "{}")])
    if kind == "custom_tool_call":
        given = as_json({"input": item.get("input", "")})
        return "assistant", iter([Call(str(item.get("call_id")), str(item.get("name")), given)])
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "user", iter([Result(str(item.get("call_id")), words(item.get("output")))])
    if item.get("role") in _ROLES:
        return item["role"], iter(words(item.get("content")))
    return "user", iter(())


def _read_blocks(message: Message) -> tuple[Any, Iterator[Part]]:
    def parts() -> Iterator[Part]:
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            if not isinstance(block, dict):
                yield from words(block)
                continue
            kind = block.get("type")
            if kind == "tool_use":
                given = as_json(block.get("input", {}))
                yield Call(str(block.get("id")), str(block.get("name")), given)
            elif kind == "tool_result":
                yield Result(str(block.get("tool_use_id")), words(block.get("content")), bool(block.get("is_error")))
            else:
                yield from words([block])

    return message.get("role"), parts()


def words(content: Any) -> tuple[Text | Image, ...]:
    """Return the texts and images of a content in any format."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    found: list[Text | Image] = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, str):
            found.append(Text(block))
        elif isinstance(block, dict):
            text = block.get("text", block.get("refusal"))
            url = _address(block)
            if url is not None:
                found.append(Image(url))
            elif isinstance(text, str):
                found.append(Text(text))
    return tuple(found)


def _address(block: Message) -> str | None:
    source, url = block.get("source"), block.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if block.get("type") == "image" and isinstance(source, dict):
        if source.get("type") == "base64":
            return f"data:{source.get('media_type')};base64,{source.get('data')}"
        url = source.get("url")
    return url if isinstance(url, str) else None


# -- writing ---------------------------------------------------------------------------------------------------


def written(shape: Shape, said: Said) -> list[Message]:
    """Return messages in a format that say the same."""
    return list(_WRITE[shape](said))


def _write_responses(said: Said) -> Iterator[Message]:
    for piece in _pieces(said.parts):
        if isinstance(piece, Call):
            yield {"type": "function_call", "call_id": piece.id, "name": piece.name, "arguments": piece.arguments}
        elif isinstance(piece, Result):
            yield {"type": "function_call_output", "call_id": piece.id, "output": plain_text(piece.parts)}
        elif said.role == "user" and (len(piece) > 1 or isinstance(piece[0], Image)):
            blocks = [
                {"type": "input_text", "text": part.text}
                if isinstance(part, Text)
                else {"type": "input_image", "image_url": part.url, "detail": "auto"}
                for part in piece
            ]
            yield {"role": "user", "content": blocks}
        else:
            yield {"role": said.role, "content": plain_text(piece)}


def _write_chat(said: Said) -> Iterator[Message]:
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
        for part in said.parts
        if isinstance(part, Call)
    ]
    for piece in _pieces(part for part in said.parts if not isinstance(part, Call)):
        if isinstance(piece, Result):
            yield {"role": "tool", "tool_call_id": piece.id, "content": plain_text(piece.parts)}
        elif isinstance(piece, list) and not (calls and said.role == "assistant"):
            yield {"role": said.role, "content": chat_content(piece) if said.role == "user" else plain_text(piece)}
    if calls:
        texts = tuple(part for part in said.parts if isinstance(part, Text | Image))
        yield {"role": "assistant", "content": plain_text(texts) if texts else None, "tool_calls": calls}


def chat_content(parts: Sequence[Text | Image]) -> str | list[Message]:
    """Return parts as the content of a chat message: one text, or a list of blocks."""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in parts
    ]


def _write_anthropic(said: Said) -> Iterator[Message]:
    if said.role == "system":
        yield {"role": "system", "content": plain_text([part for part in said.parts if isinstance(part, Text | Image)])}
    elif len(said.parts) == 1 and isinstance(said.parts[0], Text):
        yield {"role": said.role, "content": said.parts[0].text}
    else:
        yield {"role": said.role, "content": [_block(part) for part in said.parts]}


def _block(part: Part) -> Message:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Call):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments(part.arguments)}
    if isinstance(part, Result):
        content = [_block(inner) for inner in part.parts]
        text: Any = content[0]["text"] if len(part.parts) == 1 and isinstance(part.parts[0], Text) else content
        found = {"type": "tool_result", "tool_use_id": part.id, "content": text}
        return {**found, "is_error": True} if part.failed else found
    head, _, data = part.url.partition(";base64,")
    if head.startswith("data:") and data:
        media = head.removeprefix("data:")
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": part.url}}


_WRITE: Final[dict[str, Callable[[Said], Iterator[Message]]]] = {
    "responses": _write_responses,
    "chat": _write_chat,
    "anthropic": _write_anthropic,
}


def _pieces(parts: Iterable[Part]) -> Iterator[Call | Result | list[Text | Image]]:
    """Yield calls and results one by one, and the texts and images in between as a list."""
    between: list[Text | Image] = []
    for part in parts:
        if isinstance(part, Text | Image):
            between.append(part)
            continue
        if between:
            yield between
            between = []
        yield part
    if between:
        yield between


def plain_text(parts: Sequence[Text | Image]) -> str:
    """Return parts as one text; an image becomes its URL in brackets."""
    return "\n\n".join(part.text if isinstance(part, Text) else f"[image: {part.url[:100]}]" for part in parts)


def arguments(text: str) -> Any:
    """Return the arguments of a call as a dict; any other value becomes `{"input": value}`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"input": found}


def as_json(given: Any) -> str:
    """Return the arguments of a call as JSON; values that JSON cannot hold become their repr."""
    return json.dumps(given, ensure_ascii=False, default=repr)


# -- whole conversations ---------------------------------------------------------------------------------------


class ForAnthropic(NamedTuple):
    """A conversation for Anthropic's API."""

    system: str
    """The instructions; empty if there are none."""
    messages: list[Message]


def as_responses(messages: Iterable[Message]) -> list[Message]:
    """Return a thread's messages as items of OpenAI's responses API."""
    return [item for message in messages for item in shown("responses", message)]


def as_chat(messages: Iterable[Message]) -> list[Message]:
    """Return a thread's messages as OpenAI's chat messages."""
    return [item for message in messages for item in shown("chat", message)]


def as_anthropic(messages: Iterable[Message]) -> ForAnthropic:
    """Return a thread's messages for Anthropic's API: instructions separate, consecutive messages of a role merged.

    Parallel tool calls are then in one message and all their results in the next, as the API requires. Empty texts and
    messages without content, which models do return, are left out, because the API rejects them.
    """
    system: list[str] = []
    found: list[Message] = []
    for message in (_with_content(item) for one in messages for item in shown("anthropic", one)):
        if message["role"] == "system":
            system.append(str(message["content"]))
        elif not message["content"]:
            continue
        elif found and found[-1]["role"] == message["role"]:
            together = [*_blocks(found[-1]), *_blocks(message)]
            together.sort(key=lambda block: block.get("type") != "tool_result")
            found[-1] = {"role": message["role"], "content": together}
        else:
            found.append(message)
    return ForAnthropic("\n\n".join(system), found)


def _with_content(message: Message) -> Message:
    """Return a message without empty texts."""
    content = message["content"]
    if isinstance(content, str):
        return message if content.strip() else {**message, "content": []}
    return (
        {**message, "content": [one for one in content if not _is_empty(one)]}
        if any(map(_is_empty, content))
        else message
    )


def _is_empty(block: Message) -> bool:
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _blocks(message: Message) -> list[Message]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
