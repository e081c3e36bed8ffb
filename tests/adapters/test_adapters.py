"""What all adapters share: nobody pays for a framework that is not used, and a missing one is named."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = {
    "openai_agents": ("agents", "openai-agents"),
    "claude_agent": ("claude_agent_sdk", "claude-agent"),
    "anthropic_memory": ("anthropic", "anthropic"),
    "langchain": ("langchain_core", "langchain"),
}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tenuto_imports_no_framework() -> None:
    packages = [package for package, _ in FRAMEWORKS.values()]
    assert python(f"""
        import sys, tenuto, tenuto.aio, tenuto.cli, tenuto.adapters.shapes, tenuto.adapters.conversation
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
