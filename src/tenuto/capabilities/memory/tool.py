"""Recall as a tool for a model: a schema in a provider's shape, and the function that answers the call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from tenuto.capabilities.memory.recall import Recalled
from tenuto.errors import InvalidInput, TenutoError

Shape = Literal["openai", "anthropic"]
NAME: Final = "recall_memory"
_DESCRIPTION: Final = (
    "Search what is known about the user and the organisation: facts, preferences, decisions, policies, past cases. "
    "Ask with a short question or a few words. Returns the best matches with their date and source."
)
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "A short question or a few words."},
        "k": {
            "type": "integer",
            "minimum": 1,
            "maximum": 20,
            "description": "How many matches to return; 5 if left out.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}


def schema_for(shape: Shape) -> dict[str, Any]:
    """Return the tool's schema as a provider expects it."""
    if shape == "openai":
        return {
            "type": "function",
            "function": {"name": NAME, "description": _DESCRIPTION, "parameters": _PARAMETERS},
        }
    if shape == "anthropic":
        return {"name": NAME, "description": _DESCRIPTION, "input_schema": _PARAMETERS}
    raise InvalidInput(f'shape must be "openai" or "anthropic", not {shape!r}.')


def answering(recall: Callable[[str, int], list[Recalled]]) -> Callable[..., str]:
    """Return the function of the tool: it takes the arguments of a call and returns text for the model."""

    def recall_memory(arguments: str | Mapping[str, Any] | None = None, /, **named: Any) -> str:
        """Answer a call of the tool; `arguments` may be the JSON text of a provider. Errors are text, too."""
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
            given = {**given, **named}
            found = recall(given["query"], int(given.get("k") or 0))
        except KeyError:
            return 'error: pass what to search for, as {"query": "…"}'
        except (TypeError, ValueError, TenutoError) as error:
            return f"error: {error}"
        return "\n".join(_line(one) for one in found) or "nothing found"

    return recall_memory


def _line(one: Recalled) -> str:
    memory = one.memory
    when = memory.valid_from or memory.learned_at
    source = memory.source
    place = ""
    if source is not None and source.file is not None:
        place = f", {source.file}" + (f" § {source.heading}" if source.heading else "")
    return f"- {memory.text} ({memory.kind}, {when:%Y-%m-%d}, from {memory.trust}{place})"
