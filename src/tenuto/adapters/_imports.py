"""Import conversations from files of the OpenAI Agents SDK's sessions and from JSON.

The source is only read. Each conversation becomes the thread of the same id, with unchanged messages. If the thread
exists, its messages must be a prefix of the source: the import then appends the rest, so that an interrupted import
is repeated safely. Anything else is a `Conflict`, and that thread is not changed. At the end every thread is compared
with the source. A commit holds up to 100 messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from tenuto import shapes
from tenuto.client import Tenuto
from tenuto.errors import Conflict, Damaged, InvalidInput, NotFound
from tenuto.kernel import codec
from tenuto.shapes import Message

_SOME: Final = 100


class Brought(NamedTuple):
    """The result of importing one thread."""

    thread: str
    messages: int
    """Number of messages in the source; all of them are in the store and equal."""
    new: int
    """Number of messages that this import added."""


class Found(NamedTuple):
    """A conversation in the source."""

    thread: str
    messages: list[Message]


def bring(agent: Tenuto, found: Found) -> Brought:
    """Import the missing messages of one conversation; verify that the thread equals the source."""
    thread = agent.thread(found.thread)
    there = thread.messages(original=True)
    if [*map(codec.pack, there)] != [*map(codec.pack, found.messages[: len(there)])]:
        raise Conflict(
            f"The thread {found.thread!r} has {len(there)} messages that differ from the source; it was not changed. "
            "Import into another tenant, or into a thread of another name."
        )
    for at in range(len(there), len(found.messages), _SOME):
        thread.append(*found.messages[at : at + _SOME], expect=at)
    if [*map(codec.pack, thread.messages(original=True))] != [*map(codec.pack, found.messages)]:
        raise Damaged(
            f"The imported thread {found.thread!r} differs from the source, which was not changed. If another process "
            "writes to either, stop it and import again."
        )
    return Brought(found.thread, len(found.messages), len(found.messages) - len(there))


def openai_sessions(path: Path, sessions: str, messages: str) -> Iterator[Found]:
    """Yield the sessions of a `SQLiteSession` file whose tables have these names."""
    if not path.exists():
        raise NotFound(f"There is no file {str(path)!r}. Nothing was imported.")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        missing = sorted({sessions, messages} - tables)
        if missing:
            raise InvalidInput(
                f"{path} has no table {missing[0]!r}; it has {', '.join(sorted(tables)) or 'none'}. "
                "Give the names of the tables with --sessions-table and --messages-table."
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
        raise InvalidInput(f"{path} is not a readable SQLite database: {error}. Check the path.") from error
    finally:
        connection.close()


def _item(session: str, number: Any, text: str) -> Message:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"Item {number} of the session {session!r} is not JSON ({error}). The session was not imported."
        ) from error
    if not isinstance(found, dict):
        raise Damaged(f"Item {number} of the session {session!r} is not an object. The session was not imported.")
    return shapes.stored("responses", found)


def json_file(path: Path, thread: str | None) -> Iterator[Found]:
    """Yield the conversations of a JSON file.

    JSON: a list of messages, `{"messages": [...]}`, or an object of these by thread id. JSON lines: a message a line,
    or `{"thread": "...", "messages": [...]}` a line.
    """
    if not path.exists():
        raise NotFound(f"There is no file {str(path)!r}. Nothing was imported.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a readable text file: {error}. Save it as UTF-8.") from error
    found = _parsed(path, text)
    name = thread or path.stem
    if isinstance(found, dict) and set(found) == {"messages"}:
        found = found["messages"]
    if isinstance(found, dict):
        if thread is not None:
            raise InvalidInput(f"{path} names its own threads. Leave out --thread.")
        for one, messages in found.items():
            inner = messages["messages"] if isinstance(messages, dict) and set(messages) == {"messages"} else messages
            yield Found(one, _messages(path, one, inner))
    elif (
        isinstance(found, list)
        and found
        and all(isinstance(one, dict) and set(one) == {"thread", "messages"} for one in found)
    ):
        if thread is not None:
            raise InvalidInput(f"{path} names its own threads. Leave out --thread.")
        for one in found:
            yield Found(one["thread"], _messages(path, one["thread"], one["messages"]))
    else:
        yield Found(name, _messages(path, name, found))


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidInput(f"{path} is nested too deeply for a conversation. Nothing was imported.") from None
    except ValueError as error:
        whole = error
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} is neither JSON ({whole}) nor JSON lines. Nothing was imported.") from whole


def _messages(path: Path, thread: str, found: Any) -> list[Message]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidInput(
            f"{path} has no list of messages for the thread {thread!r}. A message is an object such as "
            '{"role": "user", "content": "…"}.'
        )
    return found
