"""What the last session of a coding agent said: from its host's hook or its transcript, stored for the next session.

Keys: the value `last` of the scope `session` ({"host", "moment", "said"}), or `last NAME` for sessions on the progress
document NAME, one commit if it is new; `tenuto resume` shows it. Before a compaction the values of the project are also
saved as the checkpoint `project`, if they changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tenuto.capabilities.state import Entry
from tenuto.client import Tenuto

_SCOPE: Final = "session"
WORKING: Final = "tools"
"""The moment of a session that was noted in the middle: it may have been killed."""
_TAIL: Final = 512 * 1024
"""Bytes at the end of a transcript in which the last message is looked for."""
_SAID: Final = 2_000
_ASSISTANT: Final = ("assistant", "gemini", "model")


def note(agent: Tenuto, host: str, moment: str, said: str, progress: str | None = None) -> None:
    """Store what the agent said last, and before a compaction the values of the project, each if it is new."""
    key = _key(progress)
    known = agent.state.get(_SCOPE, key, {})
    if said and (not isinstance(known, dict) or known.get("said") != said):
        agent.state.set(_SCOPE, key, {"host": host, "moment": moment, "said": said})
    if moment == "pre-compact" and (values := agent.state.items("project")):
        last = agent.checkpoint.restore("project", default=None)
        if last is None or dict(last) != values:
            agent.checkpoint.create("project", values, meta={"scope": "project", "label": "before compaction"})


def noted(agent: Tenuto, progress: str | None = None) -> Entry | None:
    """Return what the last session said, with its time, or None."""
    entry = agent.state.entry(_SCOPE, _key(progress))
    said = entry is not None and isinstance(entry.value, dict) and entry.value.get("said")
    return entry if said else None


def _key(progress: str | None) -> str:
    return "last" if progress is None else f"last {progress}"


def last_words(given: Mapping[str, Any]) -> str:
    """Return the last message of the agent, as the host gives it or as its transcript has it."""
    said = given.get("last_assistant_message")
    if not isinstance(said, str) or not said.strip():
        place = given.get("transcript_path")
        said = _from_transcript(Path(place)) if isinstance(place, str) and place else ""
    said = " ".join(said.split())
    return said if len(said) <= _SAID else said[: _SAID - 1] + "…"


def _from_transcript(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    last = ""
    for value in _values(text):
        for message in _messages(value):
            last = _text_of(message) or last
    return last


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a transcript: of the whole text, or of each line that is one."""
    for part in (text,) if text.lstrip().startswith(("{\n", "{\r", "[")) else text.splitlines():
        try:
            yield json.loads(part)
        except ValueError:
            continue  # the cut line at the beginning, or one that is being written


def _messages(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of the agent in a value of a transcript, in their order."""
    if isinstance(value, list):
        for one in value:
            yield from _messages(one)
    elif isinstance(value, dict):
        inner = value.get("message")
        if value.get("role") in _ASSISTANT or (value.get("type") in _ASSISTANT and "content" in value):
            yield value
        elif value.get("type") in _ASSISTANT and isinstance(inner, dict):
            yield inner
        else:
            for key in ("payload", "message", "messages", "history"):
                yield from _messages(value.get(key))


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    return "\n".join(one["text"] for one in parts if isinstance(one, dict) and isinstance(one.get("text"), str)).strip()
