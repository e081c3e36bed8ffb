"""The message in what a model returned: a text, a message, or a response of a provider. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenuto import shapes
from tenuto.capabilities.threads import Message
from tenuto.errors import InvalidInput

_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens"})


def message_of(response: Any) -> Message:
    """Return the message in what a model returned; `InvalidInput` if there is none."""
    if isinstance(response, str):
        return {"role": "assistant", "content": response}
    if isinstance(response, Mapping):
        choices = response.get("choices")
        if choices:
            return message_of(choices[0]["message"])
        if isinstance(response.get("output"), list):
            return _of_items(response["output"])
        if response.get("type") == "ai":
            return _of_langchain(response)
        if response.get("role") == "assistant" and "content" in response:
            kept = ("role", "content", "tool_calls", "refusal")
            found = {name: response[name] for name in kept if response.get(name) is not None or name == "content"}
            if isinstance(found["content"], list):  # a request must not have the empty fields of a response
                found["content"] = [_filled(block) for block in found["content"]]
            return found
    raise InvalidInput(
        f"The model returned {response!r:.200}; it must return a text, a message with the role assistant, or a response of "
        "OpenAI, Anthropic or LangChain. The call is recorded; fork its run to continue with another result."
    )


def is_cut(response: Any) -> bool:
    """Return whether a response reached its limit of tokens: its last tool call may be incomplete."""
    if not isinstance(response, Mapping):
        return False
    choices, details = response.get("choices"), response.get("incomplete_details")
    about = choices[0] if choices else response
    reasons = [about.get("finish_reason"), about.get("stop_reason"), details.get("reason") if details else None]
    return not _CUT.isdisjoint(one for one in reasons if isinstance(one, str))


def _filled(block: Any) -> Any:
    return {name: value for name, value in block.items() if value is not None} if isinstance(block, Mapping) else block


def _of_items(items: list[Any]) -> Message:
    """Return the message in the items of OpenAI's responses API; what it reasoned is left out."""
    texts, calls = [], []
    for item in items:
        if item.get("type") == "function_call":
            calls.append(_call(item["call_id"], item["name"], item["arguments"]))
        elif item.get("type") == "message":
            texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
    return _chat("\n\n".join(text for text in texts if text), calls)


def _of_langchain(message: Mapping[str, Any]) -> Message:
    """Return the message in an `AIMessage` of LangChain."""
    calls = [_call(one["id"], one["name"], shapes.as_json(one["args"])) for one in message.get("tool_calls") or ()]
    content = message.get("content")
    if isinstance(content, list):
        texts = [one if isinstance(one, str) else one.get("text") or "" for one in content]
        content = "".join(texts)
    return _chat(content or "", calls)


def _call(call: str, name: str, arguments: str) -> Message:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _chat(text: str, calls: list[Message]) -> Message:
    found: Message = {"role": "assistant", "content": text or None if calls else text}
    return {**found, "tool_calls": calls} if calls else found
