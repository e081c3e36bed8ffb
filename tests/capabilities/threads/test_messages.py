"""What is stored of a provider's objects: the dict they give."""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import NotStorable, Tenuto, register


class Model:
    """Gives a dict as pydantic models do."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> dict[str, Any]:
        return {name: value.model_dump() if isinstance(value, Model) else value for name, value in self.fields.items()}


class WireModel(Model):
    """Has a wire form beside the full one, as the models of the OpenAI and Anthropic SDKs do."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Struct:
    """Has the attributes of a msgspec struct with a tag and a renamed field."""

    __struct_fields__ = ("tool_name", "input")
    __struct_encode_fields__ = ("toolName", "input")
    __struct_config__ = SimpleNamespace(tag_field="type", tag="call")

    def __init__(self, tool_name: str, given: Any) -> None:
        self.tool_name, self.input = tool_name, given


class Role(StrEnum):
    USER = "user"


@dataclass
class Block:
    type: str
    text: str


@dataclass
class Turn:
    role: Role
    content: list[Any] = field(default_factory=list)


@register
@dataclass
class Price:
    cents: int


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (Model(role="user", content="a"), {"role": "user", "content": "a"}),
        (WireModel(role="assistant", content="a", refusal=None), {"role": "assistant", "content": "a"}),
        (Turn(Role.USER, [Block("text", "a")]), {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        (Struct("search", Model(q=1)), {"type": "call", "toolName": "search", "input": {"q": 1}}),
        (OrderedDict(role="user", content="a"), {"role": "user", "content": "a"}),
        (
            {"role": "assistant", "content": [Model(type="text", text="a"), WireModel(type="tool_use", id="1")]},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1"}]},
        ),
        ({"content": ({"deep": [Block("a", "b")]},)}, {"content": ({"deep": [{"type": "a", "text": "b"}]},)}),
        (
            {"price": Price(5), "blocks": [Block("a", "b")], "at": datetime(2026, 1, 1, tzinfo=UTC)},
            {"price": Price(5), "blocks": [{"type": "a", "text": "b"}], "at": datetime(2026, 1, 1, tzinfo=UTC)},
        ),
        (Price(5), {"cents": 5}),
    ],
)
def test_an_object_is_stored_as_the_dict_it_gives(given: Any, stored: Any) -> None:
    agent = Tenuto("a", "volatile:")
    t = agent.thread("t")
    t.append({"first": 1}, given, key="k")
    assert t.messages(after=1) == [stored]
    assert t.append({"first": 1}, given, key="k") == 2
    t.tool_call("tool", given, [given])
    (call,) = t.tool_calls()
    assert call.args == (given if isinstance(given, Price) else stored)


class Broken:
    def to_dict(self) -> Any:
        raise RuntimeError("no")


class Endless:
    def to_dict(self) -> Any:
        return {"again": self}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("text", "messages[0]"),
        (None, "messages[0]"),
        ([{"role": "user"}], "messages[0]"),
        (object(), "messages[0]"),
        (Model, "messages[0]"),
        (Broken(), "messages[0]"),
        (Endless(), "messages[0]" + ".again" * 126),
        ({"content": [{"a-b": {5: object()}}]}, "messages[0].content[0]['a-b'][5]"),
        (Model(content=[1, object()]), "messages[0].content[1]"),
    ],
)
def test_what_gives_no_dict_is_refused_with_its_path(given: Any, path: str) -> None:
    agent = Tenuto("a", "volatile:")
    with pytest.raises(NotStorable) as error:
        agent.thread("t").append(given)
    assert error.value.path == path
    assert agent.thread("t").messages() == []
