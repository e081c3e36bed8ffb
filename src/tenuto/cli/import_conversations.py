"""`tenuto import openai-sessions` and `tenuto import json`: conversations, brought into a store as threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, store_options
from tenuto.errors import NotFound

if TYPE_CHECKING:
    from tenuto.adapters._imports import Found


class Conversation(NamedTuple):
    """What --json says of a conversation, in a line."""

    thread: str
    messages: int
    new: int


@click.command("openai-sessions")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--session", "wanted", multiple=True, help="Only this session; may be given several times.")
@click.option("--sessions-table", default="agent_sessions", show_default=True, help="As SQLiteSession was given it.")
@click.option("--messages-table", default="agent_messages", show_default=True, help="As SQLiteSession was given it.")
@store_options
@guarded
def openai_sessions(
    source: Path,
    wanted: tuple[str, ...],
    sessions_table: str,
    messages_table: str,
    url: str | None,
    tenant: str,
    *,
    as_json: bool,
) -> None:
    """Bring in the sessions of SOURCE, the file of an OpenAI Agents SDK's SQLiteSession; each becomes a thread.

    Every thread is compared with the source at the end. An import that was cut off is done again and goes on.
    The source is only read.
    """
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    _bring(_imports.openai_sessions(source, sessions_table, messages_table), wanted, url, tenant, as_json=as_json)


@click.command("json")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--thread", help="The thread that a list of messages becomes; else the name of the file.")
@store_options
@guarded
def json_file(source: Path, thread: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Bring in the conversations of SOURCE, a file of JSON or JSON lines.

    It holds a list of messages, {"messages": [...]}, lists of messages by the id of their thread, or a line of JSON for
    each message, or for each {"thread": "...", "messages": [...]}. The source is only read.
    """
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    _bring(_imports.json_file(source, thread), (), url, tenant, as_json=as_json)


def _bring(found: Iterator[Found], wanted: tuple[str, ...], url: str | None, tenant: str, *, as_json: bool) -> None:
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    every = [one for one in found if not wanted or one.thread in wanted]
    missing = sorted(set(wanted) - {one.thread for one in every})
    if missing:
        raise NotFound(f"The source has no session {missing[0]!r}.")
    with opened(url, tenant, create=True) as agent:
        for one in every:
            with Progress(f"bringing in {one.thread}"):
                done = _imports.bring(agent, one)
            if as_json:
                click.echo(json.dumps(Conversation(**done._asdict())._asdict(), ensure_ascii=False))
            else:
                click.echo(f"{done.thread}: {done.messages} messages ({done.new} new), as in the source")
