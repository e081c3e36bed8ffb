"""Bringing in conversations that people have elsewhere: files of the OpenAI Agents SDK's sessions, and JSON.

The source is only read. Each conversation becomes the thread of the same id, its messages as they were. What is there
already must be the beginning of it: then the import goes on behind that, so that one that was cut off is simply done
again; anything else is a `Conflict`, and nothing of that thread is touched. At the end every thread is compared with
the source. Messages go in by the hundred, each hundred in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from tenuto.adapters import shapes
from tenuto.adapters.shapes import Message
from tenuto.client import Tenuto
from tenuto.errors import Conflict, Damaged, InvalidInput, NotFound
from tenuto.kernel import codec

_SOME: Final = 100


class Brought(NamedTuple):
    """What an import has done to one thread."""

    thread: str
    messages: int
    """How many the source has; all of them are in the store now, and equal."""
    new: int
    """How many of them were not there before."""


class Found(NamedTuple):
    """A conversation as the source has it."""

    thread: str
    messages: list[Message]


def bring(agent: Tenuto, found: Found) -> Brought:
    """Bring in one conversation, as far as it is not there yet, and prove that all of it is as in the source."""
    thread = agent.thread(found.thread)
    there = thread.messages(original=True)
    if [*map(codec.pack, there)] != [*map(codec.pack, found.messages[: len(there)])]:
        raise Conflict(
            f"The thread {found.thread!r} has {len(there)} messages that are not the beginning of the source; nothing of "
            "it was written. Import into another tenant, or into a thread of another name."
        )
    for at in range(len(there), len(found.messages), _SOME):
        thread.append(*found.messages[at : at + _SOME], expect=at)
    if [*map(codec.pack, thread.messages(original=True))] != [*map(codec.pack, found.messages)]:
        raise Damaged(
            f"The thread {found.thread!r} is not in the store as it is in the source. The source was not touched; if "
            "somebody writes to either, stop that and import again."
        )
    return Brought(found.thread, len(found.messages), len(found.messages) - len(there))


def openai_sessions(path: Path, sessions: str, messages: str) -> Iterator[Found]:
    """Yield the sessions in a file of the SDK's `SQLiteSession`, whose tables have these names."""
    if not path.exists():
        raise NotFound(f"There is no file {str(path)!r}.")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        missing = sorted({sessions, messages} - tables)
        if missing:
            raise InvalidInput(
                f"{path} has no table {missing[0]!r}; it has {', '.join(sorted(tables)) or 'none'}. "
                "If the tables were given other names, say which with --sessions-table and --messages-table."
            )
        quoted = '"' + messages.replace('"', '""') + '"'
        ids = connection.execute(f"SELECT session_id, min(id) FROM {quoted} GROUP BY session_id ORDER BY 2").fetchall()  # noqa: S608 - an identifier, quoted
        for session in (str(row[0]) for row in ids):
            rows = connection.execute(
                f"SELECT id, message_data FROM {quoted} WHERE session_id = ? ORDER BY id",  # noqa: S608
                (session,),
            )
            yield Found(session, [_item(session, row[0], str(row[1])) for row in rows])
    except apsw.Error as error:
        raise InvalidInput(f"{path} cannot be read as a SQLite database: {error}.") from error
    finally:
        connection.close()


def _item(session: str, number: Any, text: str) -> Message:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Damaged(
            f"Item {number} of the session {session!r} is no JSON ({error}); nothing of it was brought in."
        ) from error
    if not isinstance(found, dict):
        raise Damaged(f"Item {number} of the session {session!r} is no object; nothing of it was brought in.")
    return shapes.stored("responses", found)


def json_file(path: Path, thread: str | None) -> Iterator[Found]:
    """Yield the conversations of a JSON file.

    It holds a list of messages, `{"messages": [...]}`, several of these by the id of their thread, or JSON lines: a
    message each, or `{"thread": "...", "messages": [...]}` each.
    """
    if not path.exists():
        raise NotFound(f"There is no file {str(path)!r}.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as text: {error}.") from error
    found = _parsed(path, text)
    name = thread or path.stem
    if isinstance(found, dict) and set(found) == {"messages"}:
        found = found["messages"]
    if isinstance(found, dict):
        if thread is not None:
            raise InvalidInput(f"{path} names its threads itself, so --thread does not fit; leave it out.")
        for one, messages in found.items():
            inner = messages["messages"] if isinstance(messages, dict) and set(messages) == {"messages"} else messages
            yield Found(one, _messages(path, one, inner))
    elif (
        isinstance(found, list)
        and found
        and all(isinstance(one, dict) and set(one) == {"thread", "messages"} for one in found)
    ):
        if thread is not None:
            raise InvalidInput(f"{path} names its threads itself, so --thread does not fit; leave it out.")
        for one in found:
            yield Found(one["thread"], _messages(path, one["thread"], one["messages"]))
    else:
        yield Found(name, _messages(path, name, found))


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        whole = error
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        raise InvalidInput(f"{path} is neither JSON ({whole}) nor JSON lines.") from whole


def _messages(path: Path, thread: str, found: Any) -> list[Message]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidInput(
            f"{path} has no list of messages for the thread {thread!r}. A message is an object such as "
            '{"role": "user", "content": "…"}.'
        )
    return found
