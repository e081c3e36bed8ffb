"""Whether messages have changed: every edit is found, wherever it is made, and nothing else is taken for one."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from graphs import chat, config, say
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tenuto.adapters.langgraph import TenutoSaver
from tenuto.adapters.langgraph.fingerprints import Fingerprints
from tenuto.kernel.tree import RUN

COUNT = 3 * RUN + 10
AT = RUN + 4
"""An AI message of the second run, with all that there is."""


def message(number: int) -> Any:
    """Texts alone, calls with numbers in them, or what a provider has sent along."""
    if number % 4 == 0:
        return AIMessage(
            f"answer {number}",
            id=f"m-{number}",
            response_metadata={"model": "m", "logprobs": {"mean": 0.5, "best": [1, 2]}},
            usage_metadata={"input_tokens": number, "output_tokens": 1, "total_tokens": number + 1},
            tool_calls=[{"name": "look", "args": {"page": 1}, "id": f"c-{number}", "type": "tool_call"}],
        )
    if number % 4 == 1:
        return ToolMessage(f"page {number}", tool_call_id=f"c-{number - 1}", id=f"m-{number}")
    return HumanMessage(f"text {number}", id=f"m-{number}")


def conversation() -> list[Any]:
    return [message(number) for number in range(COUNT)]


def renamed(one: Any) -> None:
    one.__dict__["nickname"] = one.__dict__.pop("name")


EDITS: dict[str, Callable[[Any], Any]] = {
    "its text": lambda one: setattr(one, "content", "another"),
    "its text in parts": lambda one: setattr(one, "content", [one.content]),
    "its id": lambda one: setattr(one, "id", None),
    "an empty dict filled": lambda one: one.additional_kwargs.update(read=True),
    "an empty list filled": lambda one: one.invalid_tool_calls.append({"name": "x"}),
    "an empty dict that became a list": lambda one: one.__dict__.update(additional_kwargs=[]),
    "a nested value": lambda one: one.response_metadata["logprobs"]["best"].append(3),
    "a nested value taken away": lambda one: one.response_metadata.clear(),
    "the arguments of a call": lambda one: one.tool_calls[0]["args"].update(page=2),
    "a number that became a bool": lambda one: one.tool_calls[0]["args"].update(page=True),
    "a number that became a float": lambda one: one.tool_calls[0]["args"].update(page=1.0),
    "a number that became a bool, in a new dict": lambda one: setattr(
        one, "usage_metadata", {**one.usage_metadata, "output_tokens": True}
    ),
    "something beyond its fields": lambda one: setattr(one, "mood", "good"),
    "a field by another name": renamed,
    "a value that cannot be stored": lambda one: one.response_metadata.update(what=object()),
    "its class": lambda one: setattr(one, "__class__", HumanMessage),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_place_is_found_in_its_run_and_in_no_other(edit: str) -> None:
    messages = conversation()
    marks = Fingerprints(messages)
    assert marks.fits(messages)
    EDITS[edit](messages[AT])
    assert not marks.fits(messages)
    assert marks.fitting(messages) == [True, False, True, True]


def test_other_messages_of_the_same_content_fit() -> None:
    marks = Fingerprints(conversation())
    assert marks.fits(conversation())
    assert marks.fitting([*conversation(), HumanMessage("more")]) == [True] * 4


@pytest.mark.parametrize(
    ("change", "fitting"),
    [
        (lambda messages: messages.pop(), [True, True, True, False]),
        (lambda messages: messages.pop(0), [False] * 4),
        (lambda messages: messages.insert(RUN, HumanMessage("in between")), [True, False, False, False]),
        (lambda messages: messages.__setitem__(slice(2, 4), messages[3:1:-1]), [False, True, True, True]),
        (lambda messages: messages.__setitem__(AT, "no message"), [True, False, True, True]),
        (lambda messages: messages.clear(), [False] * 4),
    ],
)
def test_a_list_that_is_not_the_same_is_known_by_its_runs(change: Any, fitting: list[bool]) -> None:
    messages = conversation()
    marks = Fingerprints(messages)
    change(messages)
    assert not marks.fits(messages)
    assert marks.fitting(messages) == fitting


def test_something_beyond_its_fields_may_be_edited_too() -> None:
    messages = conversation()
    messages[AT] = AIMessage("extra", mood={"level": 1})
    marks = Fingerprints(messages)
    assert marks.fits(messages)
    messages[AT].__pydantic_extra__["mood"]["level"] = True
    assert marks.fitting(messages) == [True, False, True, True]


def test_a_comparison_that_raises_is_a_difference() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None

    messages = conversation()
    marks = Fingerprints(messages)
    messages[AT].response_metadata = Array()
    assert marks.fitting(messages) == [True, False, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_marks_that_have_grown_know_what_new_ones_would(seed: int) -> None:
    chance = random.Random(seed)
    messages = conversation()[: chance.randrange(1, COUNT)]
    marks = Fingerprints(messages)
    for _ in range(6):
        kept = marks.count
        messages = [*messages, *(message(chance.randrange(1_000)) for _ in range(chance.randrange(1, 90)))]
        if chance.random() < 0.5:
            at = chance.randrange(len(messages))
            messages[at] = message(5_000)
            kept = min(kept, at // RUN * RUN)
        marks = Fingerprints(messages, marks, kept)
        anew = Fingerprints(messages)
        assert (marks._fields, marks._types, marks._deep, marks._extra, marks.count) == (
            anew._fields,
            anew._types,
            anew._deep,
            anew._extra,
            anew.count,
        )
        assert marks.fits(messages)


def test_what_a_caller_puts_into_a_result_between_turns_hinders_nothing(path: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver)
        for turn in range(40):
            result = graph.invoke(say(f"turn {turn}"), config())
        result["messages"][0].additional_kwargs["what"] = object()
        assert graph.invoke(say("one more"), config())["messages"][0].additional_kwargs == {}
