"""Tools for models: plain functions with schemas from their signatures, or any function with a schema of its own."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from tenuto.capabilities.runs import Effect, Retry, Verify, to_stored
from tenuto.errors import InvalidInput, NotStorable
from tenuto.kernel.durations import Duration

Schema = dict[str, Any]
_TEXT = 100_000
"""The most characters of the text of a result that is no plain data."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call; its options are those of `Run.step`.

    Its name, description and parameters are those of the function's signature, unless they are given: then the function
    gets the arguments as the model sent them, as keyword arguments.
    """

    fn: Callable[..., Any]
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    approve: str | None = None
    """Who has to approve each call, through the inbox; None: no approval is needed."""
    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """A JSON schema of the arguments."""
    changing: bool = False
    """Whether equal calls may return something else, as a test run does: for the guard, a repeated call is no sign."""

    def __post_init__(self) -> None:
        """Take the name and the description from the function where they are not given."""
        if not callable(self.fn):
            raise InvalidInput(f"A tool must be a function or a Tool, not {type(self.fn).__name__}.")
        name = self.name or getattr(self.fn, "__name__", "")
        if not name:
            raise InvalidInput(f"A {type(self.fn).__name__} has no name. Pass Tool(fn, name=…).")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "description", self.description or inspect.getdoc(self.fn) or name)

    def schema(self) -> Schema:
        """Return the JSON schema of the arguments."""
        if self.parameters is not None:
            return dict(self.parameters)
        hints, properties, required = self._hints(), {}, []
        for name, one in inspect.signature(self.fn).parameters.items():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                raise InvalidInput(
                    f"The tool {self.name!r} must have named parameters only; {name!r} is not one. Or pass "
                    "Tool(fn, parameters=…) with a JSON schema."
                )
            try:
                properties[name] = msgspec.json.schema(hints[name], schema_hook=_schema_of_model)
            except TypeError as error:
                raise InvalidInput(
                    f"The parameter {name!r} of the tool {self.name!r} has no schema: {error}"
                ) from error
            if one.default is one.empty:
                required.append(name)
        shared: Schema = {}
        properties = {name: _without_definitions(one, shared) for name, one in properties.items()}
        made = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return {**made, "$defs": shared} if shared else made

    def arguments(self, text: str) -> dict[str, Any]:
        """Return the arguments of a call, converted to the annotated types; `InvalidInput` says what is wrong."""
        try:
            given = json.loads(text or "{}")
            if not isinstance(given, dict):
                raise InvalidInput(f"{self.name} takes an object of arguments, not {given!r:.80}.")
            if self.parameters is not None:
                missing = [name for name in self.parameters.get("required", ()) if name not in given]
                if missing:
                    raise InvalidInput(f"it needs the argument {missing[0]!r}.")
                return given
            hints = self._hints()
            unknown = [name for name in given if name not in hints]
            if unknown:
                raise InvalidInput(f"{self.name} has no argument {unknown[0]!r}; it has {', '.join(hints)}.")
            inspect.signature(self.fn).bind(**given)
            return {
                name: msgspec.convert(value, hints[name], strict=False, dec_hook=_made_model)
                for name, value in given.items()
            }
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise InvalidInput(f"{self.name} was not called: {error}") from error

    def _hints(self) -> dict[str, Any]:
        """Return the types of the parameters, by name."""
        try:
            found = get_type_hints(_function_of(self.fn))
        except NameError as error:
            raise InvalidInput(f"The annotations of the tool {self.name!r} name what is not there: {error}.") from error
        return {name: found.get(name, Any) for name in inspect.signature(self.fn).parameters}


def _function_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that is called like one, is a coroutine function."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - its kind


def tools_of(given: Iterable[Any]) -> dict[str, Tool]:
    """Return tools by name, from functions, `Tool`s, and pairs of a provider's schema and a function.

    Raise `InvalidInput` if two have the same name, or if one cannot have a schema.
    """
    found: dict[str, Tool] = {}
    for one in given:
        tool = one if isinstance(one, Tool) else _paired(*one) if _is_pair(one) else Tool(one)
        if tool.name in found:
            raise InvalidInput(f"Two tools are named {tool.name!r}. Rename one of them.")
        found[tool.name] = tool
    return found


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], Mapping)


def _paired(schema: Mapping[str, Any], fn: Callable[..., Any]) -> Tool:
    """Return the tool of a schema in OpenAI's, Anthropic's or MCP's form, such as `agent.memory.tool()` returns."""
    body = schema.get("function", schema)
    name = body.get("name")
    parameters = body.get("parameters", body.get("input_schema", body.get("inputSchema")))
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise InvalidInput(f"The schema of a tool needs a name and parameters; this one is {dict(schema)!r:.200}.")
    return Tool(fn, name=name, description=body.get("description") or "", parameters=parameters)


def schema_of(tool: Tool, shape: str) -> Schema:
    """Return the schema of a tool as OpenAI's (chat or responses) or Anthropic's API expects it."""
    if shape == "anthropic":
        return {"name": tool.name, "description": tool.description, "input_schema": tool.schema()}
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema()}
    return {"type": "function", **function} if shape == "responses" else {"type": "function", "function": function}


def storable(value: Any) -> Any:
    """Return what a tool returned, or its text if it cannot be stored."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    try:
        to_stored(value)
    except NotStorable:
        return str(value)[:_TEXT].encode("utf-8", "replace").decode()
    return value


def text_of(value: Any) -> str:
    """Return the text for the model of what a tool returned."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return str(value)


def _without_definitions(schema: Any, shared: Schema) -> Any:
    """Return a schema whose definitions are moved to `shared`: references begin at the root of the whole schema."""
    if isinstance(schema, list):
        return [_without_definitions(one, shared) for one in schema]
    if not isinstance(schema, dict):
        return schema
    for name, one in schema.get("$defs", {}).items():
        shared[name] = _without_definitions(one, shared)
    return {name: _without_definitions(one, shared) for name, one in schema.items() if name != "$defs"}


def _schema_of_model(kind: type) -> Schema:
    if hasattr(kind, "model_json_schema"):  # pydantic's
        return dict(kind.model_json_schema())
    raise NotImplementedError


def _made_model(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__name__} cannot be made of JSON")
