"""`tenuto import openai-sessions` and `tenuto import json`: import conversations as threads."""

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
    """The --json output: one line per conversation."""

    thread: str
    messages: int
    new: int


@click.command("openai-sessions")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--session", "wanted", multiple=True, help="Only this session; may be repeated.")
@click.option("--sessions-table", default="agent_sessions", show_default=True, help="Table name of the sessions.")
@click.option("--messages-table", default="agent_messages", show_default=True, help="Table name of the messages.")
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
    """Import the sessions of SOURCE, the file of an OpenAI Agents SDK's SQLiteSession; each becomes a thread.

    At the end every thread is compared with the source. An interrupted import resumes when it is run again.
    The source is only read.
    """
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    _bring(_imports.openai_sessions(source, sessions_table, messages_table), wanted, url, tenant, as_json=as_json)


@click.command("json")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--thread", help="Thread for a single list of messages; default: the file name.")
@store_options
@guarded
def json_file(source: Path, thread: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Import the conversations of SOURCE, a file of JSON or JSON lines.

    JSON: a list of messages, {"messages": [...]}, or an object of lists by thread id. JSON lines: a message a line, or
    {"thread": "...", "messages": [...]} a line. The source is only read.
    """
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    _bring(_imports.json_file(source, thread), (), url, tenant, as_json=as_json)


def _bring(found: Iterator[Found], wanted: tuple[str, ...], url: str | None, tenant: str, *, as_json: bool) -> None:
    from tenuto.adapters import _imports  # noqa: PLC0415 - only when it is called

    every = [one for one in found if not wanted or one.thread in wanted]
    missing = sorted(set(wanted) - {one.thread for one in every})
    if missing:
        raise NotFound(f"The source has no session {missing[0]!r}. Nothing was imported.")
    with opened(url, tenant, create=True) as agent:
        for one in every:
            with Progress(f"importing {one.thread}"):
                done = _imports.bring(agent, one)
            if as_json:
                click.echo(json.dumps(Conversation(**done._asdict())._asdict(), ensure_ascii=False))
            else:
                click.echo(f"{done.thread}: {done.messages} messages ({done.new} new), equal to the source")
