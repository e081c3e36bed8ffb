"""What all adapters share: a framework that is not used is never imported, and a missing one is named."""

import asyncio
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tenuto import AsyncTenuto, Tenuto

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = {
    "openai_agents": ("agents", "openai-agents"),
    "claude_agent": ("claude_agent_sdk", "claude-agent"),
    "anthropic_memory": ("anthropic", "anthropic"),
    "langchain": ("langchain_core", "langchain"),
    "langgraph": ("langgraph", "langgraph"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "strands": ("strands", "strands"),
    "llama_index": ("llama_index", "llama-index"),
    "llama_workflows": ("llama_agents", "llama-workflows"),
    "agent_framework": ("agent_framework", "agent-framework"),
    "adk": ("google.adk", "adk"),
    "crewai": ("crewai", "crewai"),
}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tenuto_imports_no_framework() -> None:
    packages = [package for package, _ in FRAMEWORKS.values()]
    assert python(f"""
        import sys, tenuto, tenuto.aio, tenuto.cli, tenuto.shapes, tenuto.adapters.conversation
        import tenuto.adapters.calls, tenuto.adapters.forms, tenuto.adapters.records, tenuto.operations.resume
        print([name for name in {packages} if name in sys.modules])
        """) == "[]\n"  # fmt: skip


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_framework_that_is_missing_is_named_with_its_extra(module: str) -> None:
    package, extra = FRAMEWORKS[module]
    told = python(f"""
        import sys
        sys.modules[{package!r}] = None
        from tenuto import MissingDriver
        try:
            import tenuto.adapters.{module}
        except MissingDriver as error:
            print(error)
        """)
    assert f'pip install "tenuto[{extra}]"' in told
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras


def test_every_adapter_on_every_store(stores: Any) -> None:
    from langchain_core.messages import AIMessage, HumanMessage

    from tenuto.adapters.anthropic_memory import AsyncTenutoMemoryTool, TenutoMemoryTool
    from tenuto.adapters.langchain import TenutoByteStore, TenutoChatHistory
    from tenuto.adapters.openai_agents import TenutoSession

    url = stores.new()

    async def work() -> None:
        async with AsyncTenuto("tester", url) as agent:
            session = TenutoSession("s", agent, user="ann")
            await session.add_items([{"role": "user", "content": str(n)} for n in range(3)])
            assert (await session.pop_item())["content"] == "2"  # type: ignore[index]
            await TenutoChatHistory("s", agent).aadd_messages([AIMessage("hello", id="1")])
            assert [item["content"] for item in await session.get_items()] == ["0", "1", "hello"]
            await session.clear_session()
            assert await session.get_items() == []
            tool = AsyncTenutoMemoryTool(agent)
            await tool.call({"command": "create", "path": "/memories/a/b.txt", "file_text": "x"})
            await tool.call({"command": "rename", "old_path": "/memories/a", "new_path": "/memories/c"})

    asyncio.run(work())
    with Tenuto("reader", url) as agent:
        tool = TenutoMemoryTool(agent)
        assert str(tool.call({"command": "view", "path": "/memories/c/b.txt"})).endswith("     1\tx")
        assert tool.undo("/memories/c/b.txt") is None
        store = TenutoByteStore(agent)
        store.mset([(f"doc/{n}", bytes([n])) for n in range(5)] + [("dog", b"")])
        assert list(store.yield_keys(prefix="doc/")) == [f"doc/{n}" for n in range(5)]
        store.mdelete(["doc/0", "dog"])
        assert store.mget(["doc/0", "doc/1", "dog"]) == [None, b"\x01", None]
        TenutoChatHistory("t", agent).add_messages([HumanMessage("hi", id="2")])
        assert TenutoChatHistory("t", agent).messages == [HumanMessage("hi", id="2")]
