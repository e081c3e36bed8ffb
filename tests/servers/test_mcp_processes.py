"""MCP servers as hosts start them: several on one file, killed in the middle of a call, cold on a large store, and their hooks."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client, StdioServerParameters

from tenuto import Tenuto

ROOT = Path(__file__).parents[2]
LONG = bool(os.environ.get("TENUTO_LONG"))
pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1_200 if LONG else 180)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    return folder


def store(project: Path) -> Path:
    return project / ".tenuto" / "tenuto.db"


@asynccontextmanager
async def host(project: Path, name: str = "host", mode: str = "auto") -> AsyncIterator[Client]:
    env = {"HOME": str(project.parent), "PATH": os.environ["PATH"]}
    words = ["-m", "tenuto", "mcp", "--name", name]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=project, env=env)
    async with Client(server, mode=mode) as client:
        yield client


async def text(client: Client, tool: str, **given: Any) -> str:
    found = await client.call_tool(tool, given)
    assert not found.is_error, found.content[0].text
    return str(found.content[0].text)


def _server_of(project: Path) -> int:
    """Return the process id of the server that was started in a project."""
    servers = (one for one in psutil.Process().children(recursive=True) if "mcp" in one.cmdline())
    return next(one.pid for one in servers if one.cwd() == str(project))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_host_starts_a_server_in_each_era(project: Path, mode: str) -> None:
    async with host(project, mode=mode) as client:
        assert len((await client.list_tools()).tools) == 12
        await text(client, "progress", goal="Ship", add=["one"])
        assert "Goal: Ship" in await text(client, "resume")
    assert (store(project).parent / ".gitignore").read_text() == "*\n"
    with Tenuto("x", store(project)) as agent:
        assert agent.progress("shop").get().goal == "Ship", "the task is named by the folder"


async def test_four_servers_write_on_one_file_and_nothing_is_lost(project: Path, capsys: Any) -> None:
    each = 500 if LONG else 40
    slowest = [0.0]

    async def write(number: int) -> None:
        async with host(project, f"host-{number}") as client:
            for at in range(each):
                began = time.monotonic()
                if at % 10 == 9:
                    await text(client, "remember", text=f"host {number} learned fact {at}")
                elif at % 10 == 8:
                    await text(client, "progress", add=[f"item {number}-{at}"])
                else:
                    await text(client, "state_set", key=f"{number}-{at}", value={"n": at}, expect=0)
                slowest[0] = max(slowest[0], time.monotonic() - began)

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(write, number)
    seconds = time.monotonic() - began
    with Tenuto("x", store(project)) as agent:
        values = agent.state.items("project")
        assert values == {f"{n}-{at}": {"n": at} for n in range(4) for at in range(each) if at % 10 < 8}
        assert len(agent.progress("shop").get().items) == 4 * each // 10
        assert len(agent.memory.list(limit=1_000)) == 4 * each // 10
        assert agent.store.check().findings == []
    with capsys.disabled():
        sys.stderr.write(f"[4 servers x {each} writes in {seconds:.1f} s, slowest {1000 * slowest[0]:.0f} ms] ")


async def test_a_server_killed_in_the_middle_of_a_call_leaves_a_store_that_the_next_one_uses(project: Path) -> None:
    chance = random.Random(7)
    acknowledged: list[str] = []
    for turn in range(25 if LONG else 2):
        error: BaseException | None = None
        try:
            async with host(project) as client:
                await text(client, "resume")
                child = psutil.Process(_server_of(project))
                last = chance.randint(3, 30)
                for at in range(100_000):
                    key = f"{turn}-{at}"
                    if at == last:  # somewhere in one of the next calls
                        threading.Timer(chance.uniform(0.0, 0.02), child.kill).start()
                    with anyio.fail_after(20):
                        await text(client, "state_set", key=key, value=at)
                    acknowledged.append(key)
        except BaseException as raised:  # the client's own, in a group: its server has gone
            error = raised
        assert error is not None
        assert not isinstance(error, KeyboardInterrupt)
    assert len(acknowledged) > 6
    async with host(project) as client:
        assert json.loads(await text(client, "state_set", key="after", value=1)) == {"version": 1}
    with Tenuto("x", store(project)) as agent:
        assert set(acknowledged) <= set(agent.state.items("project")), "what was answered is there"
        assert agent.store.check().findings == []


async def test_resume_on_a_large_store_by_a_cold_server(project: Path, capsys: Any) -> None:
    memories, runs = (10_000, 500) if LONG else (1_000, 50)
    words = [
        "invoice",
        "payment",
        "gateway",
        "retry",
        "deploy",
        "cluster",
        "database",
        "schema",
        "index",
        "cache",
        "token",
        "lease",
        "fence",
        "journal",
    ]
    chance = random.Random(1)
    with Tenuto("x", store(project), durability="process") as agent:
        for at in range(memories):
            agent.memory.remember(f"fact {at}: {' '.join(chance.choices(words, k=12))}")
        agent.memory.remember("The payment gateway is deployed on Mondays only")
        for at in range(runs):
            with agent.run(f"run-{at}") as run:
                run.step("a", int)
        for at in range(12):
            agent.progress(f"task-{at}", goal="Deploy the payment gateway").plan(
                [f"item {n} of {at}: " + "x" * 80 for n in range(20)]
            )
            agent.ask(f"Question {at}?")
    began = time.monotonic()
    async with host(project) as client:
        server = psutil.Process(_server_of(project))
        before = server.cpu_times()
        connected = time.monotonic()
        found = await text(client, "resume")
        answered = time.monotonic()
        after = server.cpu_times()
        used = after.user + after.system - before.user - before.system
        again = time.monotonic()
        await text(client, "resume")
        again = time.monotonic() - again
    assert len(found.encode()) <= 2_000
    assert "Deploy the payment gateway" in found
    assert "Question 0?" in found
    with capsys.disabled():
        sys.stderr.write(
            f"[{memories:,} memories, {runs} runs: connected {connected - began:.2f} s, resume "
            f"{1000 * (answered - connected):.0f} ms ({1000 * used:.0f} of the processor), again {1000 * again:.0f} ms, {len(found.encode()):,} bytes] "
        )


def test_an_agent_that_is_killed_between_sessions_finishes_by_resume_alone(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import mcp_agent
    finally:
        sys.path.pop(0)
    sessions = mcp_agent.main(tmp_path)
    assert sessions > 2, "several sessions were killed"
    with Tenuto("x", store(tmp_path)) as agent:
        info = agent.progress(tmp_path.name).get()
        assert [one.text for one in info.items] == mcp_agent.ITEMS, "planned once"
        assert [one.evidence for one in info.items] == [f"{one}: logged" for one in mcp_agent.ITEMS]
        assert [
            one.text for one in agent.progress(tmp_path.name).history() if one.what == "completed"
        ] == mcp_agent.ITEMS
    log = (tmp_path / "work.log").read_text().splitlines()
    assert list(dict.fromkeys(log)) == mcp_agent.ITEMS, "in order; one that was cut off is done again"


# -- hooks -------------------------------------------------------------------------------------------------------------


def hook(project: Path, *words: str, given: Any = None, **env: str) -> tuple[str, str, float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tenuto", "hook", *words],
        check=False,
        input=given if isinstance(given, str) else json.dumps({"cwd": str(project), **(given or {})}),
        capture_output=True,
        text=True,
        cwd=project,
        env={"HOME": str(project.parent), "PATH": os.environ["PATH"], "TENUTO_HOOK_SECONDS": "60", **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, time.monotonic() - began


def test_a_hook_prints_nothing_when_there_is_nothing_and_creates_nothing(project: Path) -> None:
    for words in (("session-start",), ("pre-compact", "--host", "gemini"), ("stop", "--host", "cursor")):
        assert hook(project, *words)[0] == ""
    assert not store(project).exists()
    Tenuto("x", store(project)).open().close()
    for given in ("", "no json", "[1]", '{"cwd": 7, "transcript_path": 7}', '{"transcript_path": "/none"}'):
        assert hook(project, "stop", given=given)[0] == ""
    assert hook(project, "session-start")[0] == ""


@pytest.mark.parametrize("name", ["claude", "cursor"])
def test_the_next_session_starts_with_what_the_last_one_said(project: Path, name: str) -> None:
    with Tenuto("x", store(project)) as agent:
        agent.progress("shop", goal="Ship").plan(["write", "test"])
        agent.state.set("project", "branch", "cart")
    transcripts = {
        "claude": '{"type":"user","message":{"role":"user","content":"go"}}\n'
        '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"old"}]}}\n'
        '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"The cart works.\\nTests next."}]}}\n'
        '{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","name":"x"}]}}\n{"cut',
        "codex": '{"type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"The cart works. Tests next."}]}}\n',
        "gemini": '{\n"messages": [{"type": "user", "content": "go"}, {"type": "gemini", "content": "The cart works. Tests next."}]}',
    }
    for form, transcript in transcripts.items():
        with Tenuto("x", store(project)) as agent:
            agent.state.delete("session", "last")
        (project / "transcript").write_text(transcript)
        assert (
            hook(project, "pre-compact", "--host", form, given={"transcript_path": str(project / "transcript")})[0]
            == ""
        )
        with Tenuto("x", store(project)) as agent:
            assert agent.state.get("session", "last")["said"] == "The cart works. Tests next.", form
    hook(project, "stop", given={"last_assistant_message": "The cart works. Tests next."})
    with Tenuto("x", store(project)) as agent:
        assert len(agent.checkpoint.list()) == 1, "unchanged values are saved once"
        assert agent.checkpoint.restore("project") == {"branch": "cart"}
        assert agent.state.entry("session", "last").value["host"] == "gemini", "the same words are written once"
    out = json.loads(hook(project, "session-start", "--host", name)[0])
    said = out["additional_context"] if name == "cursor" else out["hookSpecificOutput"]["additionalContext"]
    assert "Goal: Ship" in said
    assert "The cart works. Tests next." in said
    assert len(said.encode()) <= 2_000


def test_a_hook_ends_in_time_and_quietly_whatever_happens(project: Path) -> None:
    with Tenuto("x", store(project)) as agent:
        agent.progress("shop", goal="Ship").plan(["write"])
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a server that never answers
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x"
        given = {"last_assistant_message": "x"}
        out, said, seconds = hook(project, "stop", given=given, TENUTO_URL=url, TENUTO_HOOK_SECONDS="")
    assert (out, "not done within" in said) == ("", True), said
    assert seconds < 15, "2 s, and what a machine under load adds; a connection would take minutes"
    store(project).write_bytes(b"not a database" * 500)
    out, said, _ = hook(project, "session-start")
    assert out == ""
    assert said.startswith("tenuto hook session-start: ")
    assert "Traceback" not in said
    reader, writer = os.pipe()  # a host that never closes stdin
    try:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tenuto", "hook", "stop"],
            check=False,
            stdin=reader,
            capture_output=True,
            cwd=project,
        )
        assert (done.returncode, done.stdout) == (0, b"")
        assert time.monotonic() - began < 15
        store(project).unlink()
        with Tenuto("x", store(project)) as agent:
            agent.progress("shop", goal="Ship").plan(["write"])
        os.write(writer, json.dumps({"cwd": str(project), "filler": "x" * 50_000}).encode())
        words = [sys.executable, "-m", "tenuto", "hook", "session-start"]
        env = {**os.environ, "TENUTO_HOOK_SECONDS": "60"}
        found = subprocess.run(words, check=True, stdin=reader, capture_output=True, cwd=project.parent, env=env)
        assert b"Goal: Ship" in found.stdout, "the JSON was complete"
    finally:
        os.close(reader)
        os.close(writer)
