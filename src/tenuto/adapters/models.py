"""Models for `agent.turn`: the clients of OpenAI and Anthropic as functions of messages and tools.

Pass the client that you have; nothing is imported from its package. Both the blocking and the async clients work: an
async client needs `AsyncTenuto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


class OpenAIModel:
    """Call a model through OpenAI's chat completions, or any API that is compatible with it."""

    shape = "openai"

    def __init__(self, client: Any, model: str, **options: Any) -> None:
        self._client = client
        self._model = model
        self._options = options

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message]) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given = {"tools": list(tools)} if tools else {}
        return self._client.chat.completions.create(
            model=self._model, messages=list(messages), **given, **self._options
        )


class AnthropicModel:
    """Call a model through Anthropic's messages API."""

    shape = "anthropic"

    def __init__(self, client: Any, model: str, *, max_tokens: int = 4_096, **options: Any) -> None:
        self._client = client
        self._model = model
        self._options = {"max_tokens": max_tokens, **options}

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message], system: str | None = None) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if system:
            given["system"] = system
        return self._client.messages.create(model=self._model, messages=list(messages), **given, **self._options)
