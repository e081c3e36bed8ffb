"""One thread, many frameworks: what goes in through one comes back equal, through another and back too."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from tenuto import Tenuto, shapes
from tenuto.adapters.claude_agent import TenutoSessionStore
from tenuto.adapters.conversation import Conversation
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.adapters.openai_agents import TenutoSession

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
rest = st.dictionaries(
    words, words | st.integers(-5, 5) | st.none() | st.booleans() | st.lists(words, max_size=2), max_size=2
)
args = st.dictionaries(words, words | st.integers(-5, 5) | st.floats(-1, 1) | st.lists(words, max_size=2), max_size=2)
png = "data:image/png;base64,iVBORw0KGgo="
numbers = itertools.count()
loop = asyncio.new_event_loop()
done = loop.run_until_complete


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    loop.close()


class Turn:
    """A part of a conversation: who says what, which tool is called and what came of it."""

    def __init__(self, kind: str, text: str, given: dict[str, Any], more: dict[str, Any], failed: bool) -> None:
        self.kind, self.text, self.given, self.more, self.failed = kind, text, given, more, failed
        self.id = f"call_{next(numbers)}"


KINDS = ["user", "assistant", "system", "call", "image", "unsaid"]
turns = st.lists(st.builds(Turn, st.sampled_from(KINDS), words, args, rest, st.booleans()), min_size=1, max_size=6)


def items(given: list[Turn]) -> Iterator[dict[str, Any]]:
    """As the OpenAI Agents SDK gives them."""
    for t in given:
        if t.kind == "call":
            yield {
                "type": "function_call",
                "call_id": t.id,
                "name": t.text,
                "arguments": json.dumps(t.given),
                "id": "fc_1",
            }
            yield {
                "type": "function_call_output",
                "call_id": t.id,
                "output": t.text,
                **({"status": "x"} if t.failed else {}),
            }
        elif t.kind == "assistant":
            part = {"type": "output_text", "text": t.text, "annotations": [], "logprobs": []}
            yield {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        elif t.kind == "image":
            parts = [{"type": "input_text", "text": t.text}, {"type": "input_image", "image_url": png, "detail": "low"}]
            yield {"role": "user", "content": parts}
        elif t.kind == "unsaid":
            yield {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": t.text, **t.more}
        else:
            yield {"role": t.kind, "content": t.text, **({"type": "message"} if t.failed else {})}


def chat(given: list[Turn]) -> Iterator[dict[str, Any]]:
    for t in given:
        if t.kind == "call":
            call = {"id": t.id, "type": "function", "function": {"name": t.text, "arguments": json.dumps(t.given)}}
            yield {"role": "assistant", "content": t.text if t.failed else None, "tool_calls": [call]}
            yield {"role": "tool", "tool_call_id": t.id, "content": t.text}
        elif t.kind == "image":
            parts = [{"type": "text", "text": t.text}, {"type": "image_url", "image_url": {"url": png}}]
            yield {"role": "user", "content": parts, "name": t.text}
        elif t.kind == "unsaid":
            yield {"role": "assistant", "content": None, "audio": t.more}
        else:
            yield {"role": t.kind, "content": t.text, **({"name": t.text} if t.failed else {})}


def blocks(given: list[Turn]) -> Iterator[dict[str, Any]]:
    """As Anthropic's API has them."""
    for t in given:
        if t.kind == "call":
            used = {"type": "tool_use", "id": t.id, "name": t.text, "input": t.given}
            yield {"role": "assistant", "content": [{"type": "thinking", "thinking": t.text, "signature": "s"}, used]}
            result = {"type": "tool_result", "tool_use_id": t.id, "content": [{"type": "text", "text": t.text}]}
            yield {"role": "user", "content": [{**result, "is_error": True} if t.failed else result]}
        elif t.kind == "image":
            source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
            yield {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": t.text}]}
        elif t.kind == "unsaid":
            yield {"role": "assistant", "content": [{"type": "redacted_thinking", "data": t.text}]}
        else:
            yield {"role": "assistant" if t.kind == "assistant" else "user", "content": t.text}


def objects(given: list[Turn]) -> Iterator[BaseMessage]:
    for t in given:
        if t.kind == "call":
            call = {"name": t.text, "args": t.given, "id": t.id, "type": "tool_call"}
            usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
            content: Any = [
                {"type": "text", "text": t.text},
                {"type": "tool_use", "id": t.id, "name": "n", "input": {}},
            ]
            yield AIMessage(content if t.failed else "", tool_calls=[call], usage_metadata=usage, id=t.text)
            status: Any = "error" if t.failed else "success"
            yield ToolMessage(t.text, tool_call_id=t.id, artifact=t.more, status=status, name=t.text)
        elif t.kind == "image":
            parts: Any = [
                {"type": "text", "text": t.text},
                {"type": "image_url", "image_url": {"url": png, "detail": "low"}},
            ]
            yield HumanMessage(parts)
        elif t.kind == "unsaid":
            yield ChatMessage(t.text, role="critic")
        else:
            kind = {"user": HumanMessage, "assistant": AIMessage, "system": SystemMessage}[t.kind]
            yield kind(t.text, additional_kwargs=t.more, response_metadata=t.given, id=t.text if t.failed else None)


def entries(given: list[Turn]) -> Iterator[dict[str, Any]]:
    """As the Claude Agent SDK mirrors them."""
    for t in given:
        said = [] if t.kind == "unsaid" else list(blocks([t]))
        if not said:
            yield {"type": "summary", "summary": t.text, **({"more": t.more} if t.failed else {})}
        for message in said:
            more = {"id": "m", "usage": {"input_tokens": 1}} if message["role"] == "assistant" else {}
            name = f"uuid-{next(numbers)}"
            yield {
                "type": message["role"],
                "uuid": name,
                "message": {**message, **more},
                "cwd": t.text,
                "parentUuid": None,
            }


class OpenAI:
    make = staticmethod(items)

    def __init__(self, agent: Tenuto, thread: str) -> None:
        self.session = TenutoSession(thread, agent)

    def write(self, given: list[Any]) -> None:
        done(self.session.add_items(given))

    def read(self) -> list[Any]:
        return done(self.session.get_items())

    def clear(self) -> None:
        done(self.session.clear_session())


class LangChain:
    make = staticmethod(objects)

    def __init__(self, agent: Tenuto, thread: str) -> None:
        self.history = TenutoChatHistory(thread, agent)

    def write(self, given: list[Any]) -> None:
        self.history.add_messages(given)

    def read(self) -> list[Any]:
        return self.history.messages

    def clear(self) -> None:
        self.history.clear()


class Claude:
    make = staticmethod(entries)

    def __init__(self, agent: Tenuto, thread: str) -> None:
        self.store = TenutoSessionStore(agent, thread=lambda key: thread)
        self.key: Any = {"project_key": "p", "session_id": "s"}

    def write(self, given: list[Any]) -> None:
        done(self.store.append(self.key, given))

    def read(self) -> list[Any]:
        return done(self.store.load(self.key)) or []

    def clear(self) -> None:
        done(self.store.delete(self.key))


class Chat:
    shape: Any = "chat"
    make = staticmethod(chat)

    def __init__(self, agent: Tenuto, thread: str) -> None:
        self.conversation = Conversation(agent, thread, self.shape)

    def write(self, given: list[Any]) -> None:
        self.conversation.add(given)

    def read(self) -> list[Any]:
        return self.conversation.read()

    def clear(self) -> None:
        self.conversation.clear()


class Anthropic(Chat):
    shape = "anthropic"
    make = staticmethod(blocks)


SIDES: list[Any] = [OpenAI, LangChain, Claude, Chat, Anthropic]
pairs = pytest.mark.parametrize(
    ("one", "other"), list(itertools.permutations(SIDES, 2)), ids=lambda side: side.__name__
)


@pairs
@settings(max_examples=15, deadline=None)
@given(given_turns=turns)
def test_what_goes_in_one_comes_back_equal_through_the_other_and_back(
    one: Any, other: Any, given_turns: list[Turn]
) -> None:
    with Tenuto("tester", "volatile:") as agent:
        mine, theirs = one(agent, "t"), other(agent, "t")
        written = list(one.make(given_turns))
        mine.write(written)
        assert mine.read() == written
        seen = theirs.read()
        if not seen:
            return  # the other has no word for any of it: there is nothing to write back
        theirs.clear()
        theirs.write(seen)
        assert [_apart(one) for one in theirs.read()] == [_apart(one) for one in seen]
        assert mine.read() == written


def _apart(message: Any) -> Any:
    """Return a message without what says which thread, of which day, an entry was made of."""
    own = isinstance(message, dict) and "tenuto" in message
    return {key: message[key] for key in ("type", "uuid", "parentUuid", "message")} if own else message


@pairs
@settings(max_examples=15, deadline=None)
@given(given_turns=turns)
def test_both_say_the_same(one: Any, other: Any, given_turns: list[Turn]) -> None:
    """Roles, texts, images, calls and results are alike, also where the other's messages are all that is left."""
    with Tenuto("tester", "volatile:") as agent:
        mine, theirs, copied = one(agent, "t"), other(agent, "t"), other(agent, "copy")
        mine.write(list(one.make(given_turns)))
        seen = theirs.read()
        for entry in seen if other is Claude else ():
            entry.pop("tenuto", None)
        if seen:
            copied.write(seen)
        known, again = (_told(agent.thread(name).messages(), other) for name in ("t", "copy"))
        assert again == known


def _told(messages: list[dict[str, Any]], other: Any) -> list[Any]:
    """Return what was said, part by part; Anthropic's shape has no instructions, and puts results first."""
    found = []
    for message in messages:
        body = {key: value for key, value in message.items() if key != "kept"}
        said = shapes.said_in(body)
        if said is None or (said.role == "system" and other in (Claude, Anthropic)):
            continue
        for part in said.parts:
            if isinstance(part, shapes.Call):
                found.append(("call", part.id, part.name, json.loads(part.arguments)))
            elif isinstance(part, shapes.Result):
                found.append(("result", part.id, shapes.plain_text(part.parts)))
            else:
                found.append((said.role, part))
    return found


def test_a_tool_call_reads_alike_everywhere() -> None:
    with Tenuto("tester", "volatile:") as agent:
        call = {"type": "function_call", "call_id": "c1", "name": "fly", "arguments": '{"to": "LIS"}'}
        OpenAI(agent, "t").write(
            [
                {"role": "user", "content": "go"},
                call,
                {"type": "function_call_output", "call_id": "c1", "output": "TP1"},
            ]
        )
        human, ai, tool = LangChain(agent, "t").read()
        assert (human.content, ai.tool_calls[0]["args"], tool.content, tool.tool_call_id) == (
            "go",
            {"to": "LIS"},
            "TP1",
            "c1",
        )
        assert shapes.as_anthropic(agent.thread("t").messages()).messages == [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "fly", "input": {"to": "LIS"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "TP1"}]},
        ]
        assert shapes.as_chat(agent.thread("t").messages())[1]["tool_calls"][0]["function"]["name"] == "fly"
        assert [e["message"]["role"] for e in Claude(agent, "t").read()] == ["user", "assistant", "user"]


def test_calls_made_at_once_stand_in_one_message_for_anthropic() -> None:
    calls = [{"type": "function_call", "call_id": c, "name": c, "arguments": "{}"} for c in "ab"]
    results = [{"type": "function_call_output", "call_id": c, "output": c} for c in "ab"]
    said = shapes.as_anthropic(
        [{"role": "system", "content": "be brief"}, *calls, *results, {"role": "user", "content": "so?"}]
    )
    assert said.system == "be brief"
    assert [(m["role"], [b["type"] for b in m["content"]]) for m in said.messages] == [
        ("assistant", ["tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result", "text"]),
    ]


def test_what_is_trimmed_and_written_back_keeps_what_only_its_writer_has() -> None:
    with Tenuto("tester", "volatile:") as agent:
        written = [HumanMessage("ok", id="first"), AIMessage("fine", id="second"), HumanMessage("ok", id="third")]
        LangChain(agent, "t").write(written)
        theirs = OpenAI(agent, "t")
        seen = theirs.read()
        theirs.clear()
        theirs.write([*seen[1:], {"role": "user", "content": "ok"}])
        assert [m.id for m in LangChain(agent, "t").read()] == ["second", "third", None]
        theirs.write([{"role": "user", "content": "ok"}])
        assert LangChain(agent, "t").read()[-1].id is None, "what is said anew is new"


def test_an_orphaned_call_of_any_framework_is_repaired_for_all() -> None:
    with Tenuto("tester", "volatile:") as agent:
        call = {"name": "pay", "args": {}, "id": "c1", "type": "tool_call"}
        LangChain(agent, "t").write([HumanMessage("go"), AIMessage("", tool_calls=[call])])
        assert [note.name for note in agent.thread("t").repair()] == ["pay"]
        assert [item.get("type") for item in OpenAI(agent, "t").read()] == [
            None,
            "function_call",
            "function_call_output",
        ]
        assert isinstance(LangChain(agent, "t").read()[-1], ToolMessage)


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.__name__)
@settings(max_examples=10, deadline=None)
@given(given_turns=turns)
def test_what_a_graph_has_said_reads_as_if_it_had_been_written_to_the_thread(
    side: Any, given_turns: list[Turn]
) -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    from tenuto.adapters.langgraph import TenutoSaver

    with Tenuto("tester", "volatile:") as agent:
        builder = StateGraph(MessagesState)
        builder.add_node("say", lambda state: {"messages": [m.model_copy() for m in objects(given_turns)]})
        builder.add_edge(START, "say")
        builder.add_edge("say", END)
        graph = builder.compile(checkpointer=TenutoSaver(agent))
        config: Any = {"configurable": {"thread_id": "graph"}}
        said = graph.invoke({"messages": []}, config)["messages"]
        LangChain(agent, "thread").write(said)
        seen = side(agent, "graph").read()
        assert _messages(seen) == _messages(side(agent, "thread").read())
        more = list(side.make([Turn("user", "and now?", {}, {}, failed=False)]))
        side(agent, "graph").write(more)  # the first who goes on takes it over
        assert _messages(side(agent, "graph").read()) == [*_messages(seen), *_messages(more)]
        assert LangChain(agent, "graph").read()[: len(said)] == said


def _messages(found: list[Any]) -> list[Any]:
    """Return what is said in entries of a transcript, whose other fields name their thread and day; others as they are."""
    return [one["message"] if isinstance(one, dict) and "message" in one else one for one in found]


def test_what_a_graph_has_said_goes_on_elsewhere_and_is_taken_over_whole() -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    from tenuto.adapters.langgraph import TenutoSaver

    with Tenuto("tester", "volatile:") as agent:
        builder = StateGraph(MessagesState)
        builder.add_node("answer", lambda state: {"messages": [AIMessage("hello")]})
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        graph = builder.compile(checkpointer=TenutoSaver(agent))
        for thread in ("t", "u"):
            graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": thread}})
        said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        assert OpenAI(agent, "t").read() == agent.thread("t").messages() == said
        more = {"role": "user", "content": "and now?"}
        OpenAI(agent, "t").write([more])
        assert OpenAI(agent, "t").read() == shapes.as_responses(agent.thread("t").messages()) == [*said, more]
        OpenAI(agent, "t").clear()
        OpenAI(agent, "t").write([more])
        assert OpenAI(agent, "t").read() == [more], "what was cleared does not come back from the graph"
        loaded = Claude(agent, "u").read()
        Claude(agent, "u").write([*loaded, {"type": "user", "uuid": "x", "message": more}])
        assert OpenAI(agent, "u").read() == [*said, more]
