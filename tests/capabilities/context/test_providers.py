"""The clients of providers as models: their own objects are read, and what is sent is what their APIs accept."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.adapters.models import AnthropicModel, OpenAIModel, OpenAIResponsesModel

pytestmark = pytest.mark.parametrize("backend", ["volatile"], indirect=True)
Message = dict[str, Any]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class Client:
    """A client whose every endpoint answers with the next reply, and remembers the requests."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[Message] = []
        endpoint = SimpleNamespace(create=self.create)
        self.messages = self.responses = endpoint
        self.chat = SimpleNamespace(completions=endpoint)

    def create(self, **given: Any) -> Any:
        self.asked.append(json.loads(json.dumps(given)))
        reply = self.replies.pop(0)
        return iter(reply) if isinstance(reply, list) else reply


def anthropic(*content: Message, stop: str = "end_turn") -> Any:
    types = pytest.importorskip("anthropic.types")
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 0}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": stop, "usage": usage}
    return types.Message.model_validate({**body, "content": list(content)})


def chat(message: Message) -> Any:
    types = pytest.importorskip("openai.types.chat")
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt", "usage": usage, "choices": [choice]}
    return types.ChatCompletion.model_validate(body)


def response(*output: Message, **more: Any) -> Any:
    types = pytest.importorskip("openai.types.responses")
    usage = {
        "input_tokens": 100, "output_tokens": 5, "total_tokens": 105,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    body = {"id": "r", "object": "response", "created_at": 1, "model": "gpt", "parallel_tool_calls": True, "tools": []}
    return types.Response.model_construct(
        **body, tool_choice="auto", status="completed", output=[_item(types, one) for one in output],
        usage=types.ResponseUsage.model_validate(usage), **more,
    )  # fmt: skip


def _item(types: Any, one: Message) -> Any:
    kinds = {
        "function_call": types.ResponseFunctionToolCall,
        "message": types.ResponseOutputMessage,
        "reasoning": types.ResponseReasoningItem,
    }
    return kinds[one["type"]].model_validate(one)


CALL = {"id": "x", "type": "tool_use", "name": "add", "input": {"a": 2}}


def test_objects_of_openai_are_read(agent: Tenuto) -> None:
    function = {"name": "add", "arguments": '{"a": 2}'}
    client = Client(
        chat({"content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}),
        chat({"content": "It is 3."}),
    )
    reply = agent.turn("t", "2 + 1?", OpenAIModel(client, "gpt"), tools=[add], key="k")
    assert (reply.text, reply.calls[0].result) == ("It is 3.", "3")
    assert agent.turn("t", "2 + 1?", OpenAIModel(client, "gpt"), tools=[add], key="k") == reply
    assert [one["role"] for one in client.asked[1]["messages"]] == ["user", "assistant", "tool"]
    assert [(one.key, one.calls, one.tokens) for one in agent.costs.report()] == [("gpt", 2, 210)]


def test_objects_of_the_responses_api_are_read(agent: Tenuto) -> None:
    text = {"type": "output_text", "text": "It is 3.", "annotations": []}
    client = Client(
        response(
            {"type": "reasoning", "id": "rs", "summary": []},
            {"type": "function_call", "call_id": "x", "name": "add", "arguments": '{"a": 2}'},
        ),
        response({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}),
    )
    reply = agent.turn("t", "2 + 1?", OpenAIResponsesModel(client, "gpt"), tools=[add], instructions="Count.")
    assert (reply.text, reply.calls[0].result) == ("It is 3.", "3")
    assert client.asked[0]["tools"][0]["name"] == "add"
    kinds = [one.get("type") or one["role"] for one in client.asked[1]["input"]]
    assert kinds == ["system", "user", "function_call", "function_call_output"]
    assert [(one.calls, one.tokens, one.cached_tokens) for one in agent.costs.report()] == [(2, 210, 120)]


def test_the_responses_api_streams(agent: Tenuto) -> None:
    text = {"type": "output_text", "text": "Hello.", "annotations": []}
    whole = response({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]})
    deltas = [{"type": "response.output_text.delta", "delta": one} for one in ("Hel", "lo.")]
    client = Client([*deltas, SimpleNamespace(type="response.completed", response=whole)], deltas)
    model = OpenAIResponsesModel(client, "gpt", stream=True)
    assert agent.turn("t", "Hi", model, key="k").text == "Hello."
    assert [one.value for one in agent.runs.watch("turn:t:k")] == ["Hello."]
    with pytest.raises(ConnectionError, match="ended before"):
        agent.turn("t", "Hi again", model)


def test_objects_of_anthropic_are_read_and_sent_back(agent: Tenuto) -> None:
    thinking = {"type": "thinking", "thinking": "Add them.", "signature": "s1"}
    client = Client(
        anthropic(thinking, CALL, stop="tool_use"),
        anthropic(),
        anthropic({"type": "text", "text": "Anything else?"}),
    )
    model = AnthropicModel(client, "claude", cache=False)
    first = agent.turn("t", "2 + 1?", model, tools=[add], instructions="Count.")
    assert (first.text, first.calls[0].result) == ("", "3"), "a reply without content is no error"
    assert client.asked[1]["messages"][1]["content"] == [thinking, CALL], "as the API gave it, without empty fields"
    assert agent.turn("t", "And?", model).text == "Anything else?"
    sent = client.asked[2]["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"], "empty messages are rejected by the API"
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "text"]
    assert [(one.tokens, one.cached_tokens) for one in agent.costs.report()] == [(315, 270)]


def events(*blocks: tuple[Message, list[Message]], stop: str) -> list[Message]:
    found: list[Message] = [{"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}}]
    for at, (block, deltas) in enumerate(blocks):
        found.append({"type": "content_block_start", "index": at, "content_block": dict(block)})
        found += [{"type": "content_block_delta", "index": at, "delta": one} for one in deltas]
    return [*found, {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}}]


def test_streamed_thoughts_keep_their_signature(agent: Tenuto) -> None:
    thought = [
        {"type": "thinking_delta", "thinking": "Add "},
        {"type": "thinking_delta", "thinking": "them."},
        {"type": "signature_delta", "signature": "s1"},
    ]
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    given = [{"type": "input_json_delta", "partial_json": one} for one in ('{"a"', ": 2}")]
    said = [{"type": "text_delta", "text": "It is 3."}]
    client = Client(
        events((empty, thought), ({**CALL, "input": {}}, given), stop="tool_use"),
        events(({"type": "text", "text": ""}, said), stop="end_turn"),
    )
    reply = agent.turn("t", "2 + 1?", AnthropicModel(client, "m", stream=True, cache=False), tools=[add])
    assert reply.text == "It is 3."
    assert client.asked[1]["messages"][1]["content"] == [{**empty, "thinking": "Add them.", "signature": "s1"}, CALL]


def test_a_streamed_call_that_was_cut_is_not_made(agent: Tenuto) -> None:
    cut = [{"type": "input_json_delta", "partial_json": '{"a": 2'}]
    said = [{"type": "text_delta", "text": "Sorry."}]
    client = Client(
        events(({**CALL, "input": {}}, cut), stop="max_tokens"),
        events(({"type": "text", "text": ""}, said), stop="end_turn"),
    )
    reply = agent.turn("t", "2 + 1?", AnthropicModel(client, "m", stream=True), tools=[add])
    assert reply.calls[0].result.startswith("error: your reply reached its limit")
    assert reply.text == "Sorry."


def test_streamed_calls_without_an_index_are_kept_apart(agent: Tenuto) -> None:
    parts = [{"id": f"c{one}", "function": {"name": "add", "arguments": f'{{"a": {one}}}'}} for one in (1, 2)]
    first = [{"model": "m", "choices": [{"delta": {"tool_calls": [one]}}]} for one in parts]
    client = Client(first, [{"model": "m", "choices": [{"delta": {"content": "Done."}}]}])
    reply = agent.turn("t", "Add", OpenAIModel(client, "m", stream=True), tools=[add])
    assert [one.result for one in reply.calls] == ["2", "3"]


def marks(request: Message) -> list[str]:
    """Return the texts that are marked to be cached."""
    blocks = [block for one in request["messages"] if isinstance(one["content"], list) for block in one["content"]]
    found = [*(request.get("system") or request.get("tools") or []), *blocks]
    return [one.get("text") or one.get("content") or one["name"] for one in found if "cache_control" in one]


def test_what_the_next_request_repeats_is_marked_for_anthropics_cache(agent: Tenuto) -> None:
    agent.user("ann").set("seat", "aisle")
    text = {"type": "text", "text": "Hello."}
    client = Client(anthropic(text), anthropic(CALL, stop="tool_use"), anthropic(text))
    model = AnthropicModel(client, "claude")
    agent.turn("t", "Hi", model, user="ann", instructions="Count.", tools=[add])
    agent.turn("t", "2 + 1?", model, user="ann", instructions="Count.", tools=[add])
    assert marks(client.asked[0]) == ["Count.", "Hi"]
    assert marks(client.asked[1]) == ["Count.", "Hello.", "2 + 1?"], "not the notes, which change from turn to turn"
    assert marks(client.asked[2]) == ["Count.", "Hello.", "3"]
    agent.turn("u", "Hi", AnthropicModel(again := Client(anthropic(text)), "claude"), tools=[add])
    assert marks(again.asked[0]) == ["add", "Hi"]


def test_a_message_of_langchain_is_read_whether_its_type_is_registered_or_not(agent: Tenuto) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    call = {"name": "add", "args": {"a": 2}, "id": "x", "type": "tool_call"}
    used = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}

    def asked(thread: str) -> None:
        replies = [
            messages.AIMessage(content="", tool_calls=[call], usage_metadata=used),
            messages.AIMessage(content=[{"type": "text", "text": "It is 3."}], usage_metadata=used),
        ]
        reply = agent.turn(thread, "2 + 1?", lambda given, tools: replies.pop(0), tools=[add])
        assert (reply.text, reply.calls[0].result) == ("It is 3.", "3")

    asked("as data")
    pytest.importorskip("tenuto.adapters.langgraph")  # it registers the types
    asked("as objects")
    assert [(one.calls, one.tokens) for one in agent.costs.report()] == [(4, 44)]
