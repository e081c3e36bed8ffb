"""`tenuto hook`: what a coding agent runs when a session starts, before its context is compacted, and when it stops.

A hook never breaks its host. It prints nothing if there is nothing, ends within two seconds, whatever the store or the
machine does, and exits with 0; an error is one line on stderr. A write that is under way when the time is up is either
committed or not, as after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

_LIMIT: Final = 1.5
"""Seconds from the import of this module until the process ends; $TENUTO_HOOK_SECONDS sets another limit."""
_BEGAN: Final = time.monotonic()
_TAIL: Final = 512 * 1024
"""Bytes at the end of a transcript in which the last message is looked for."""
_SILENT: Final = 0.4
"""Seconds to wait for more of the host's JSON."""
_SAID: Final = 2_000
_HEAD: Final = "From earlier sessions, kept by tenuto:\n\n"
_ASSISTANT: Final = ("assistant", "gemini", "model")


@click.command("hook")
@click.argument("moment", type=click.Choice(["session-start", "pre-compact", "stop"]))
@click.option("--host", default="claude", show_default=True, help="The coding agent, for the form of the output.")
@click.option("--url", help="Store path or URL; default: $TENUTO_URL, else the project's store.")
def command(moment: str, host: str, url: str | None) -> None:
    """Run a session hook of a coding agent; it reads the host's JSON on stdin. tenuto setup HOST --hooks installs it.

    session-start prints the digest of tenuto resume for the host. pre-compact and stop store what the agent said last, for the
    next session. Prints nothing if there is nothing, ends within 2 s, exits with 0.
    """
    said: list[str] = []  # the last one counts: a digest without memories comes first

    def work() -> None:
        try:
            said.extend(_run(moment, host, url))
        except Exception as error:  # noqa: BLE001 - a hook never breaks its host
            sys.stderr.write(f"tenuto hook {moment}: {type(error).__name__}: {error}\n")

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    limit = _seconds()
    worker.join(max(0.1, limit - (time.monotonic() - _BEGAN)))
    if said and said[-1]:
        sys.stdout.write(said[-1] + "\n")
    elif worker.is_alive():
        sys.stderr.write(f"tenuto hook {moment}: not done within {limit:g} s; the session starts without it\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not held up by a thread that waits for the store


def _seconds() -> float:
    try:
        return float(os.environ.get("TENUTO_HOOK_SECONDS") or _LIMIT)
    except ValueError:
        return _LIMIT


def _run(moment: str, host: str, url: str | None) -> Iterator[str]:
    """Do the work of a hook; yield what it prints, each time more complete."""
    given = _given()
    from tenuto.backends import connect  # noqa: PLC0415 - within the time limit
    from tenuto.servers.mcp.place import place_of  # noqa: PLC0415

    folders = [given.get("cwd"), *(given.get("workspace_roots") or [])]
    folder = next((one for one in folders if isinstance(one, str) and Path(one).is_dir()), None)
    place = place_of(url, folder)
    backend = connect(place.url)
    path: Path | None = getattr(backend, "path", None)
    if path is not None and not path.exists():
        return  # a project without a store: nothing is created
    from tenuto.client import Tenuto  # noqa: PLC0415

    with Tenuto(host, backend) as agent:
        if moment == "session-start":
            yield _shown(host, _digest(agent, brief=True))
            yield _shown(host, _digest(agent, brief=False))
        else:
            _note(agent, host, moment, _last_words(given))


def _digest(agent: Any, *, brief: bool) -> str:
    from tenuto.operations.resume import resume  # noqa: PLC0415 - within the time limit

    return str(resume(agent, limit=2_000 - len(_HEAD), brief=brief).text)


def _shown(host: str, text: str) -> str:
    """Return the digest as the host reads it; empty if there is none."""
    if not text:
        return ""
    if host == "cursor":
        return json.dumps({"additional_context": _HEAD + text}, ensure_ascii=False)
    found = {"hookEventName": "SessionStart", "additionalContext": _HEAD + text}
    return json.dumps({"hookSpecificOutput": found}, ensure_ascii=False)


def _note(agent: Any, host: str, moment: str, said: str) -> None:
    """Store what the agent said last, and before a compaction the values of the project, each if it is new."""
    from tenuto.operations.resume import LAST_SESSION  # noqa: PLC0415 - within the time limit

    known = agent.state.get(*LAST_SESSION, {})
    if said and (not isinstance(known, dict) or known.get("said") != said):
        agent.state.set(*LAST_SESSION, {"host": host, "moment": moment, "said": said})
    if moment == "pre-compact" and (values := agent.state.items("project")):
        last = agent.checkpoint.restore("project", default=None)
        if last is None or dict(last) != values:
            agent.checkpoint.create("project", values, meta={"scope": "project", "label": "before compaction"})


# -- what the host says ------------------------------------------------------------------------------------------------


def _given() -> Mapping[str, Any]:
    """Return the host's JSON; empty if there is none. Not every host closes stdin after it."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    raw = b""
    for part in _arriving():
        raw += part
        if raw.rstrip().endswith(b"}"):
            with contextlib.suppress(ValueError):
                found = json.loads(raw)
                return found if isinstance(found, dict) else {}
    return {}


def _arriving() -> Iterator[bytes]:
    """Yield what arrives on stdin, until it is closed or silent for too long."""
    wire = sys.stdin.fileno()
    while sys.platform == "win32" or select.select([wire], [], [], _SILENT)[0]:
        part = os.read(wire, 1 << 20)
        if not part:
            return
        yield part


def _last_words(given: Mapping[str, Any]) -> str:
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
