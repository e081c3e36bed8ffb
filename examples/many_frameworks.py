"""One conversation in three frameworks and plain Python, with a kill -9 after each, and a table of what survives each hop.

    python examples/many_frameworks.py

It starts in a LangGraph graph on `TenutoSaver`, continues in the OpenAI Agents SDK, which calls a tool, and in Pydantic AI,
and ends in plain Python: a loop in Anthropic's style, which calls another tool. Each part is a separate process, killed after
its last message. The models are fakes, so that it runs offline; each checks that it sees all earlier messages. The table is measured: what each
part has written is looked for in what the next one reads, and at the end again in what its writer reads. It needs
`pip install "tenuto[langgraph,openai-agents,pydantic-ai]"`.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tenuto import Tenuto
from tenuto.shapes import as_anthropic, as_chat, plain_text, words

THREAD = "trip-42"
BUDGET = "at most 250 EUR"
"""A value of the graph's state that is no message."""


def find_flights(city: str) -> str:
    return f"TP 201 to {city} for 190, LH 1790 to {city} for 240"


def book(flight: str) -> str:
    return f"{flight} is booked, reference QX7"


# -- LangGraph ---------------------------------------------------------------------------------------------------


def in_langgraph(agent: Tenuto) -> None:
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.messages import HumanMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    from tenuto.adapters.langgraph import TenutoSaver

    class Trip(MessagesState):
        budget: str

    model = FakeListChatModel(responses=["Lisbon is lovely in May. Shall I look for flights?"])
    builder = StateGraph(Trip)
    builder.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])], "budget": BUDGET})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=TenutoSaver(agent))
    said = HumanMessage("I want to go to Lisbon in May.", id="human-1")
    graph.invoke({"messages": [said]}, {"configurable": {"thread_id": THREAD}})


# -- the OpenAI Agents SDK ---------------------------------------------------------------------------------------


def in_openai_agents(agent: Tenuto) -> None:
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.testing import ScriptedModel
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from tenuto.adapters.langgraph import TenutoSaver
    from tenuto.adapters.openai_agents import TenutoSession

    TenutoSaver(agent)  # lets this agent read the checkpoints of graphs; the session continues from them
    set_tracing_disabled(disabled=True)
    model = ScriptedModel()
    model.enqueue(
        [
            ResponseFunctionToolCall(
                type="function_call", call_id="call_1", name="find_flights", arguments='{"city": "Lisbon"}'
            )
        ]
    )
    text = ResponseOutputText(type="output_text", text="TP 201 is the cheapest, 190. Book it?", annotations=[])
    model.enqueue(
        [ResponseOutputMessage(id="msg_1", type="message", role="assistant", status="completed", content=[text])]
    )
    traveller = Agent(name="traveller", model=model, tools=[function_tool(find_flights)])
    asyncio.run(Runner.run(traveller, "Yes, the cheapest.", session=TenutoSession(THREAD, agent)))
    shown = str(model.first_call.input)
    assert "Lisbon in May" in shown, "what was said in LangGraph"
    assert "Shall I look for flights?" in shown, "and answered there"


# -- Pydantic AI ---------------------------------------------------------------------------------------------------


def in_pydantic_ai(agent: Tenuto) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    from tenuto.adapters.pydantic_ai import TenutoHistory

    def model(messages: list[Any], _: Any) -> ModelResponse:
        shown = str(messages)
        assert "Lisbon in May" in shown, "what was said in LangGraph"
        assert "TP 201 to Lisbon for 190" in shown, "what the tool answered in the OpenAI Agents SDK"
        text = TextPart("It leaves at 09:40 and has a stop in Porto. Book it?")
        return ModelResponse(parts=[text], model_name="fake-pilot")

    history = TenutoHistory(THREAD, agent)
    pilot = Agent(FunctionModel(model, model_name="fake-pilot"))
    result = asyncio.run(pilot.run("When does it leave?", message_history=history.messages, run_id="turn-3"))
    history.add(result.new_messages())


# -- plain Python: a loop in Anthropic's style -----------------------------------------------------------------------------------


def in_anthropic(agent: Tenuto) -> None:
    thread = agent.thread(THREAD)
    thread.append({"role": "user", "content": "Book it."})
    while True:
        said = as_anthropic(thread.messages())
        answer = made_up_claude(said.messages)
        thread.append(answer)
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        if not calls:
            return
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": book(**call["input"])} for call in calls
        ]
        thread.append({"role": "user", "content": results})


def made_up_claude(messages: list[dict[str, Any]]) -> dict[str, Any]:
    shown = str(messages)
    assert "Lisbon in May" in shown, "what was said in LangGraph"
    blocks = [block for message in messages for block in message["content"] if isinstance(message["content"], list)]
    results = {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}
    assert "stop in Porto" in shown, "what was said in Pydantic AI"
    assert "TP 201" in str(results["call_1"]), "what the tool answered in the OpenAI Agents SDK"
    if "toolu_1" not in results:
        call = {"type": "tool_use", "id": "toolu_1", "name": "book", "input": {"flight": "TP 201"}}
        return {"role": "assistant", "content": [{"type": "text", "text": "I book it."}, call]}
    return {"role": "assistant", "content": [{"type": "text", "text": f"Done: {results['toolu_1']}."}]}


# -- what survives -------------------------------------------------------------------------------------------------


def read_langgraph(agent: Tenuto) -> list[Any]:
    from tenuto.adapters.langchain import TenutoChatHistory
    from tenuto.adapters.langgraph import TenutoSaver

    found = TenutoSaver(agent).get_tuple({"configurable": {"thread_id": THREAD}})
    state = {} if found is None else found.checkpoint["channel_values"]
    channels = {key: value for key, value in state.items() if key != "messages"}
    return [channels, *(message.model_dump() for message in TenutoChatHistory(THREAD, agent).messages)]


def read_openai_agents(agent: Tenuto) -> list[Any]:
    from tenuto.adapters.openai_agents import TenutoSession

    return list(asyncio.run(TenutoSession(THREAD, agent).get_items()))


def read_pydantic_ai(agent: Tenuto) -> list[Any]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    from tenuto.adapters.pydantic_ai import TenutoHistory

    return list(ModelMessagesTypeAdapter.dump_python(TenutoHistory(THREAD, agent).messages, mode="json"))


def read_anthropic(agent: Tenuto) -> list[Any]:
    return list(as_anthropic(agent.thread(THREAD).messages()).messages)


WRITTEN: list[dict[str, list[str]]] = [
    {
        "texts": ["I want to go to Lisbon in May.", "Shall I look for flights?"],
        "message ids": ["human-1"],
        "other state": [BUDGET],
    },
    {
        "texts": ["Yes, the cheapest.", "TP 201 is the cheapest, 190."],
        "tool calls": ["call_1", "find_flights"],
        "tool results": ["TP 201 to Lisbon for 190, LH 1790"],
        "message ids": ["msg_1"],
    },
    {
        "texts": ["When does it leave?", "It leaves at 09:40"],
        "message ids": ["turn-3"],
        "model, times, usage": ["fake-pilot"],
    },
]
"""Something of each kind that a part writes."""
KINDS = ["texts", "tool calls", "tool results", "message ids", "model, times, usage", "other state"]
READERS = [read_langgraph, read_openai_agents, read_pydantic_ai, read_anthropic]


def survivors(agent: Tenuto, writer: int, reader: int) -> list[str]:
    """Return of each kind whether what one part has written is in what another one reads."""
    seen = repr(READERS[reader](agent))
    return [
        "" if not some else "yes" if all(one in seen for one in some) else "no"
        for some in map(WRITTEN[writer].get, KINDS)
    ]


def table(agent: Tenuto) -> list[str]:
    """Return the table of what survives each hop, and of what its writer still reads at the end."""
    names = list(PARTS)
    rows = [["written in", "read in", *KINDS], ["---"] * (len(KINDS) + 2)]
    hops = [(writer, reader) for writer in range(len(WRITTEN)) for reader in (writer + 1, writer)]
    rows += [[names[writer], names[reader], *survivors(agent, writer, reader)] for writer, reader in hops]
    return ["| " + " | ".join(row) + " |" for row in rows]


# -- each part in a separate process, and a kill after each ----------------------------------------------------------

PARTS = {
    "LangGraph": in_langgraph,
    "the OpenAI Agents SDK": in_openai_agents,
    "Pydantic AI": in_pydantic_ai,
    "plain Python": in_anthropic,
}


def one_part(name: str, url: str) -> None:
    PARTS[name](Tenuto(name, url))
    print("said", flush=True)
    time.sleep(600)  # nothing is closed: the kill comes first


def everything(url: str) -> None:
    for name in PARTS:
        command = [sys.executable, __file__, "--url", url, "--part", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "said\n":
                sys.exit(f"{name} did not come to its end")
            os.kill(process.pid, signal.SIGKILL)
        print(f"-- {name} was killed, exit {process.wait()}")
    with Tenuto("reader", url) as agent:
        for event in agent.thread(THREAD).timeline():
            for message in as_chat(event.what) if event.kind == "messages" else ():
                for call in message.get("tool_calls", ()):
                    print(f"{event.writer:>22}  calls {call['function']['name']} {call['function']['arguments']}")
                if text := plain_text(words(message["content"])):
                    print(f"{event.writer:>22}  {message['role']}: {text}")
        print("", *table(agent), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--part", choices=PARTS)
    given = parser.parse_args()
    if given.part:
        one_part(given.part, given.url)
    elif given.url:
        everything(given.url)
    else:
        with tempfile.TemporaryDirectory() as folder:
            everything(str(Path(folder) / "store.db"))
