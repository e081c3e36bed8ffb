"""`examples/many_frameworks.py`: four parts, a kill after each, one conversation."""

import subprocess
import sys
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.shapes import as_chat

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "many_frameworks.py"


@pytest.mark.slow
def test_a_conversation_goes_through_four_parts_and_four_kills(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    command = [sys.executable, str(EXAMPLE), "--url", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rpartition(", ")[2] for line in lines[:4]] == ["exit -9"] * 4
    said, empty, table = "\n".join(lines).partition("\n\n")
    assert said.endswith("assistant: Done: TP 201 is booked, reference QX7.")
    guide = (EXAMPLE.parents[1] / "docs/guides/frameworks.md").read_text()
    assert table in guide, f"the guide shows another table than this one:{empty}{table}"
    with Tenuto("tester", store) as agent:
        thread = agent.thread("trip-42")
        assert as_chat(thread.messages())[0] == {"role": "user", "content": "I want to go to Lisbon in May."}
        assert TenutoChatHistory("trip-42", agent).messages[0].id, "as the graph has named it"
        assert thread.repair() == [], "every call has its result"
