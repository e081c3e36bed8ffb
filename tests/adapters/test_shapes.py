"""What each shape says in the others, one by one."""

from typing import Any

import pytest

from tenuto.shapes import as_anthropic, as_chat, as_responses, fits, said_in, shape_of, shown, stored

IMAGE = "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ({"role": "user", "content": "hi"}, "any"),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, "any"),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, "responses"),
        ({"type": "message", "role": "user", "content": "hi"}, "responses"),
        ({"type": "reasoning", "summary": []}, "responses"),
        ({"anything": 1}, "responses"),
        ({"role": "tool", "tool_call_id": "c", "content": "x"}, "chat"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "chat"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}, "chat"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "n", "input": {}}]}, "anthropic"),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": "x"}],
                "stop_reason": "end_turn",
            },
            "anthropic",
        ),
    ],
)
def test_whose_shape_a_message_has(message: Any, shape: str) -> None:
    assert shape_of(message) == shape


def test_results_stand_before_words_for_anthropic() -> None:
    both = {
        "role": "user",
        "content": [{"type": "text", "text": "so?"}, {"type": "tool_result", "tool_use_id": "c", "content": "r"}],
    }
    wrapped = {**both, "kept": {"by": "claude", "entry": {}, "message": {}}}
    assert shown("anthropic", wrapped) == [both], "Anthropic's own is given as it is"
    chat = as_chat([both])
    assert [m["role"] for m in chat] == ["user", "tool"]
    assert as_anthropic(chat).messages[0]["content"][0]["type"] == "tool_result"


def test_an_answer_of_anthropics_api_is_sent_again_without_what_may_not_be_sent() -> None:
    thinking = {"type": "thinking", "thinking": "…", "signature": "s"}
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "usage": {"input_tokens": 1}, "content": [thinking, {"type": "text", "text": "hi"}],
    }  # fmt: skip
    assert as_anthropic([answer]).messages == [{"role": "assistant", "content": answer["content"]}]
    assert as_responses([answer]) == [{"role": "assistant", "content": "hi"}]


def test_images_go_everywhere_and_a_tool_that_answers_with_one_is_told_in_words() -> None:
    message = {
        "role": "user",
        "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": IMAGE}],
    }
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert as_anthropic([message]).messages[0]["content"][1] == {"type": "image", "source": source}
    assert as_chat([message])[0]["content"][1] == {"type": "image_url", "image_url": {"url": IMAGE}}
    result = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": "https://x/y.png"}],
    }
    assert as_chat([result]) == [{"role": "tool", "tool_call_id": "c", "content": "[image: https://x/y.png]"}]
    assert as_anthropic([result]).messages[0]["content"][0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    ]


def test_a_failed_result_says_so_where_there_is_a_word_for_it() -> None:
    message = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}],
    }
    assert as_responses([message]) == [{"type": "function_call_output", "call_id": "c", "output": "no"}]
    assert as_anthropic([message]).messages == [message]


def test_arguments_that_are_no_object_are_not_lost() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"}
    broken = {"type": "function_call", "call_id": "d", "name": "sh", "arguments": "{not json"}
    (message,) = as_anthropic([call, broken]).messages
    assert [block["input"] for block in message["content"]] == [{"input": "ls"}, {"input": "{not json"}]


def test_what_only_its_writer_understands_is_found_again_by_its_writer_alone() -> None:
    odd: Any = {"role": "tool", "tool_call_id": "c", "content": "x", "kept": {"by": "me"}}
    assert shown("responses", stored("responses", odd)) == [odd]
    assert shown("chat", stored("responses", odd)) == [{"role": "tool", "tool_call_id": "c", "content": "x"}]
    assert said_in({"type": "reasoning", "summary": []}) is None
    assert shown("chat", {"type": "reasoning", "summary": []}) == []
    assert not fits("anthropic", {"role": "system", "content": "x"})
