"""Tools for models: plain functions, with schemas from their signatures and options for dangerous ones. Pure functions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from tenuto.capabilities.runs import Effect, Retry, Verify
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import Duration

Schema = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function that a model may call; its options are those of `Run.step`."""

    fn: Callable[..., Any]
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    approve: str | None = None
    """Who has to approve each call, through the inbox; None: no approval is needed."""

    @property
    def name(self) -> str:
        """Return the name under which the model calls it."""
        return self.fn.__name__

    def hints(self) -> dict[str, Any]:
        """Return the types of the parameters, by name."""
        found = get_type_hints(self.fn)
        return {name: found.get(name, Any) for name in inspect.signature(self.fn).parameters}

    def arguments(self, text: str) -> dict[str, Any]:
        """Return the arguments of a call, converted to the annotated types; `InvalidInput` says what is wrong."""
        hints = self.hints()
        try:
            given = json.loads(text or "{}")
            if not isinstance(given, dict):
                raise InvalidInput(f"{self.name} takes an object of arguments, not {given!r:.80}.")
            unknown = [name for name in given if name not in hints]
            if unknown:
                raise InvalidInput(f"{self.name} has no argument {unknown[0]!r}; it has {', '.join(hints)}.")
            inspect.signature(self.fn).bind(**given)
            return {name: msgspec.convert(value, hints[name], strict=False) for name, value in given.items()}
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise InvalidInput(f"{self.name} was not called: {error}") from error


def tools_of(given: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Return tools by name; `InvalidInput` if two have the same, or if one cannot have a schema."""
    found: dict[str, Tool] = {}
    for one in given:
        tool = one if isinstance(one, Tool) else Tool(one)
        if not callable(tool.fn) or not hasattr(tool.fn, "__name__"):
            raise InvalidInput(f"A tool must be a function or a Tool, not {type(tool.fn).__name__}.")
        if tool.name in found:
            raise InvalidInput(f"Two tools are named {tool.name!r}. Rename one of the functions.")
        found[tool.name] = tool
    return found


def schema_of(tool: Tool, shape: str) -> Schema:
    """Return the schema of a tool as OpenAI's or Anthropic's API expects it."""
    hints, properties, required = tool.hints(), {}, []
    for name, one in inspect.signature(tool.fn).parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise InvalidInput(f"The tool {tool.name!r} must have named parameters only; {name!r} is not one.")
        try:
            properties[name] = msgspec.json.schema(hints[name])
        except TypeError as error:
            raise InvalidInput(f"The parameter {name!r} of the tool {tool.name!r} has no schema: {error}") from error
        if one.default is one.empty:
            required.append(name)
    body = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    about = inspect.getdoc(tool.fn) or tool.name
    if shape == "anthropic":
        return {"name": tool.name, "description": about, "input_schema": body}
    function = {"name": tool.name, "description": about, "parameters": body}
    return {"type": "function", "function": function}
