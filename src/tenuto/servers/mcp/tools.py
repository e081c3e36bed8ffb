"""The tools, rendered from the table of operations: schemas, arguments, calls and small results.

A tool names one operation or a few, and which of their parameters a model may set. What it needs besides has a
default, so that no schema has more than a model must know. Any other operation is a tool too if it is asked for by name.

This module knows no SDK: it turns arguments into text, and errors into sentences that name tools instead of commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.operations import OPERATIONS, Operation, Parameter, called
from tenuto.operations.jsonable import jsonable, schema
from tenuto.servers.http.routes import plain, scopes_of

Given = Mapping[str, Any]
DIGEST: Final = 2_000
"""Bytes of what `resume` returns, at most."""
LONGEST: Final = 20_000
"""Characters of a result; a longer one is cut, for it fills the model's context."""
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
_NOTHING: Final = (
    "Nothing is stored yet. Record a goal and items with the tool progress, and what you learn with remember."
)


@dataclass(frozen=True)
class Tool:
    """A tool: which operations it calls, and what a model may say."""

    name: str
    says: str
    """What it does and when to call it."""
    operations: tuple[str, ...]
    takes: tuple[str, ...]
    chooses: Callable[[Given], str] | None = None
    """Returns the operation for these arguments; by default the first one."""
    helps: Mapping[str, str] = field(default_factory=dict)
    """Shorter descriptions of parameters."""
    defaults: Given = field(default_factory=dict)
    """Values of parameters that a model may leave out though the operation requires them."""
    fixed: Given = field(default_factory=dict)
    needs: tuple[str, ...] | None = None
    """What a model must say; by default what the operation requires."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Parameters of an operation that have another name in the tool."""
    shows: tuple[str, ...] = ()
    """The fields of the result that are returned; by default all that are not empty."""
    text: Callable[[Any], str] | None = None
    destroys: bool = False
    repeats: bool = False
    """Whether repeating a call with the same arguments changes nothing more."""

    @property
    def writes(self) -> bool:
        """Return whether it may change something."""
        return any(OPERATIONS[one].writes for one in self.operations)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the scopes with which an API key may call it: those of its first operation."""
        return scopes_of(OPERATIONS[self.operations[0]])

    def parameters(self) -> dict[str, Parameter]:
        """Return what a model may set, by name."""
        known = {one.name: one for name in reversed(self.operations) for one in OPERATIONS[name].parameters}
        return {name: known[name] for name in self.takes}

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments, as small as it can be."""
        properties, required = {}, []
        for name, one in self.parameters().items():
            shape = _plain(schema(one.kind))
            shape["description"] = self.helps.get(name, one.help)
            default = self.defaults.get(name, one.default)
            needed = one.required and name not in self.defaults if self.needs is None else name in self.needs
            if needed:
                required.append(name)
            elif default not in (None, False, ""):
                shape["default"] = default
            properties[name] = {key: value for key, value in shape.items() if value != ""}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def call(self, agent: Tenuto, given: Given) -> str:
        """Call the operation with these arguments; return its result as text."""
        given = self._valid(given)
        operation = OPERATIONS[self.chooses(given) if self.chooses is not None else self.operations[0]]
        found = called(operation, agent, self._arguments(operation, given))
        return _cut(self.text(found) if self.text is not None else self._shown(operation, found))

    def _valid(self, given: Given) -> dict[str, Any]:
        known = self.parameters()
        strange = sorted(set(given) - set(known))
        if strange:
            has = ", ".join(known) or "none"
            raise InvalidInput(f"{self.name} has no argument {strange[0][:80]!r}; it has {has}. Nothing was done.")
        needed = self.schema().get("required", ())
        missing = [one for one in needed if one not in given or (given[one] is None and known[one].kind is not Any)]
        if missing:
            raise InvalidInput(f"{self.name} needs the argument {missing[0]!r}. Nothing was done.")
        found = {}
        for name, value in given.items():
            if value is None and known[name].kind is not Any:
                continue
            if plain(known[name].kind) is str and type(value) in (int, float):
                value = str(value)  # noqa: PLW2901 - a model that names an item by its number
            try:
                found[name] = msgspec.convert(value, known[name].kind, strict=False)
            except (msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
                raise InvalidInput(f"The argument {name!r} is not valid: {error}. Nothing was done.") from None
        return found

    def _arguments(self, operation: Operation, given: Given) -> dict[str, Any]:
        found = {}
        for one in operation.parameters:
            name = self.renames.get(one.name, one.name)
            chosen = (self.fixed, given, self.defaults)
            found[one.name] = next((each[name] for each in chosen if name in each), one.default)
        return found

    def _shown(self, operation: Operation, found: Any) -> str:
        rows = found if operation.rows else [found]
        lines = [_line(one, self.shows) for one in rows]
        if more := getattr(found, "more", 0):
            lines.append(f"… {more:,} more")
        return "\n".join(lines) if lines else "none"


def _plain(shape: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the alternative null: a parameter that may be null is one that may be left out."""
    if "anyOf" in shape:
        return dict(next(one for one in shape["anyOf"] if one != {"type": "null"}))
    return {"type": "string", **shape} if "enum" in shape else shape


def _line(one: Any, fields: Sequence[str]) -> str:
    """Return a record as one line of JSON, without what is empty."""
    data = jsonable(one)
    if not isinstance(data, dict):
        return json.dumps(data, ensure_ascii=False)
    names = [name for name in (fields or data) if name in data]
    kept = {name: data[name] for name in names if name == "value" or not (data[name] is False or data[name] in _EMPTY)}
    return json.dumps(kept, ensure_ascii=False, separators=(", ", ": "))


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return (
        f"{text[:LONGEST]}\n… cut: the result has {len(text):,} characters. Ask for a part, or read it as a resource."
    )


_CHECKPOINT: Final = ("id", "created_at", "size", "meta", "writer")
_QUESTION: Final = ("id", "status", "answer", "by", "text", "to", "deadline", "due")
_NAME: Final = "Task; one document each"
TOOLS: Final = {
    one.name: one
    for one in (
        Tool(
            "resume",
            "Call this first in every session. Returns what earlier sessions reached: goal, open items, next action, open "
            "work, pending questions, memories. At most 2 KB.",
            ("resume",),
            ("name",),
            helps={"name": "Only this task"},
            fixed={"limit": DIGEST},
            text=lambda found: found.text or _NOTHING,
        ),
        Tool(
            "progress",
            "Record progress durably: call it after each item that works, and before you stop. An item is done only with "
            "evidence. Repeating a call changes nothing.",
            ("progress update",),
            ("goal", "add", "done", "evidence", "next", "blocker", "decided", "ruled_out", "name"),
            helps={"add": "Items to add", "name": _NAME},
            repeats=True,
        ),
        Tool(
            "remember",
            "Store a fact, preference or decision that later sessions need. One statement per memory. The same text again "
            "is stored once.",
            ("memory add",),
            ("text", "kind", "about", "valid_until", "ttl"),
            helps={"about": "Subject"},
            fixed={"trust": "model"},
            shows=("id", "text", "kind", "about", "duplicate", "near"),
            repeats=True,
        ),
        Tool(
            "recall",
            "Find memories by a question or a few words, best first.",
            ("memory search",),
            ("query", "k", "kind", "about"),
            helps={"k": "Most results", "about": "Only this subject"},
            shows=("id", "text", "kind", "why", "learned_at", "trust"),
        ),
        Tool(
            "forget",
            "Forget a memory for good, by its id from recall.",
            ("memory forget",),
            ("id", "reason"),
            helps={"id": "Id of the memory"},
            needs=("id", "reason"),
            shows=("ids", "records", "derived", "restored", "reason"),
            destroys=True,
        ),
        Tool(
            "state_get",
            "Read a named value with its version; without a key, all values of the scope.",
            ("state list", "state get"),
            ("key", "scope"),
            chooses=lambda given: "state get" if given.get("key") is not None else "state list",
            helps={"key": "Without it: all", "scope": "Group of values"},
            defaults={"scope": "project"},
            fixed={"limit": 100},
            needs=(),
            shows=("key", "value", "version", "updated_at", "writer"),
        ),
        Tool(
            "state_set",
            "Set a named value durably. With expect it fails if another agent has changed it since you read it.",
            ("state set",),
            ("key", "value", "expect", "ttl", "scope"),
            helps={
                "value": "Any JSON",
                "expect": "Version that you read; 0: only if absent",
                "scope": "Group of values",
            },
            defaults={"scope": "project"},
            repeats=True,
        ),
        Tool(
            "checkpoint",
            "Save all values of a scope before something risky; restore brings them back. Files are not part of it: use git.",
            ("checkpoint create",),
            ("label", "note", "scope"),
            helps={"scope": "Group of values"},
            defaults={"scope": "project"},
            shows=_CHECKPOINT,
        ),
        Tool(
            "history",
            "With a key: its earlier values. Without: the checkpoints of the scope. Newest first.",
            ("checkpoint list", "state history"),
            ("key", "limit", "scope"),
            chooses=lambda given: "state history" if given.get("key") is not None else "checkpoint list",
            helps={"key": "Without it: checkpoints", "limit": "Most results", "scope": "Group of values"},
            defaults={"scope": "project", "limit": 10},
            needs=(),
            renames={"name": "scope"},
            shows=("id", "value", "version", "updated_at", "writer", "deleted", "created_at", "size", "meta"),
        ),
        Tool(
            "restore",
            "Write the values of a checkpoint to a new scope (a fork), which is returned; with replace over the current "
            "values of a scope.",
            ("checkpoint apply",),
            ("checkpoint", "replace", "scope"),
            helps={"checkpoint": "Id from history", "replace": "Overwrite the scope", "scope": "Default: a new one"},
            destroys=True,
            repeats=True,
        ),
        Tool(
            "ask_human",
            "Ask a person. Returns an id at once; continue with other work, and read the answer later with answer_status.",
            ("inbox ask",),
            ("question", "choices", "to", "deadline", "on_timeout", "key"),
            helps={"choices": "The only possible answers", "key": "The same key is asked once"},
            shows=_QUESTION,
        ),
        Tool(
            "answer_status",
            "Read whether a question has been answered, and how.",
            ("inbox show",),
            ("question",),
            helps={"question": "Id from ask_human"},
            shows=_QUESTION,
        ),
    )
}
"""The twelve tools, in the order in which a model should think of them."""
CORE: Final = ("resume", "progress", "remember", "recall", "state_get", "state_set")


def chosen(words: str | None, task: str) -> list[Tool]:
    """Return the tools that `TENUTO_MCP_TOOLS` names: "all", "core", or names separated by commas.

    A name may also be that of an operation, such as runs_list; `task` is the progress document by default.
    """
    wanted = [one.strip() for one in (words or "all").split(",") if one.strip()]
    found: dict[str, Tool] = {}
    for word in wanted:
        names: Iterable[str] = TOOLS if word == "all" else CORE if word == "core" else (word,)
        for name in names:
            found[name] = _for_task(TOOLS[name], task) if name in TOOLS else _of_operation(name)
    return list(found.values())


def _for_task(tool: Tool, task: str) -> Tool:
    if tool.name != "progress":
        return tool
    return Tool(**{**tool.__dict__, "defaults": {"name": task}})


def _of_operation(name: str) -> Tool:
    operation = next((one for one in OPERATIONS.values() if one.name.replace(" ", "_") == name), None)
    if operation is None or operation.local or operation.streams:
        usable = sorted(one.name.replace(" ", "_") for one in OPERATIONS.values() if not one.local and not one.streams)
        raise InvalidInput(
            f"TENUTO_MCP_TOOLS names {name!r}, which is no tool. Use all, core, or some of: {', '.join([*TOOLS, *usable])}."
        )
    takes = tuple(one.name for one in operation.parameters)
    return Tool(name, operation.help, (operation.name,), takes, destroys=operation.asks is not None)


_IN_TOOLS: Final = (
    (re.compile(r"List the scope with: tenuto state list .*"), "See all with state_get without a key."),
    (re.compile(r"List checkpoints with: tenuto checkpoint list"), "See all with history."),
    (re.compile(r"List them with: tenuto progress list"), "See all with resume."),
    (re.compile(r"See all with agent\.memory\.list\([^)]*\)"), "Find it with recall"),
    (re.compile(r"List the open ones with agent\.inbox\.list\(\)"), "See the open ones with resume"),
    (re.compile(r"agent\.\w+(?:\.\w+)*\(([^)]*)\)"), r"the matching tool"),
)


def in_tools(error: BaseException) -> str:
    """Return the message of an error, with advised commands replaced by tools."""
    text = str(error)
    for pattern, instead in _IN_TOOLS:
        text = pattern.sub(instead, text)
    return text
