"""`tenuto schema`: print the JSON Schema of a command's --json output."""

from __future__ import annotations

import json
from typing import Any

import click

from tenuto.cli.shared import Failure, guarded
from tenuto.errors import NotFound
from tenuto.operations import OPERATIONS
from tenuto.operations.jsonable import schema


def printed() -> dict[str, Any]:
    """Return the type of each command's --json output (of one line, for a stream), and of "error" on stderr."""
    from tenuto.cli.backup import Copied  # noqa: PLC0415 - each imports its dependencies
    from tenuto.cli.bench import Measured  # noqa: PLC0415
    from tenuto.cli.bench_recall import Quality  # noqa: PLC0415
    from tenuto.cli.examinations import Diagnosis  # noqa: PLC0415
    from tenuto.cli.import_conversations import Conversation  # noqa: PLC0415
    from tenuto.cli.imports import Imported  # noqa: PLC0415
    from tenuto.cli.init import Prepared  # noqa: PLC0415
    from tenuto.cli.keys import AnswerLink  # noqa: PLC0415
    from tenuto.cli.migrate import Lacking, Statements  # noqa: PLC0415
    from tenuto.cli.worker import Became  # noqa: PLC0415
    from tenuto.servers.auth import ApiKey, NewKey  # noqa: PLC0415

    table = {name: one.item if one.streams else one.returns for name, one in OPERATIONS.items()}
    own = {
        "backup": Copied,
        "bench": list[Measured],
        "bench recall": list[Quality],
        "doctor": list[Diagnosis],
        "import json": Conversation,
        "import langgraph": Imported,
        "import openai-sessions": Conversation,
        "init": Prepared,
        "keys create": NewKey,
        "keys link": AnswerLink,
        "keys list": list[ApiKey],
        "keys revoke": ApiKey,
        "keys rotate": NewKey,
        "migrate": Lacking | Statements,
        "runs recover": list[Became],
        "error": Failure,
    }
    return dict(sorted({**table, **own}.items()))


@click.command("schema")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@guarded
def command(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of a command's --json output; without a command, of all commands.

    For a command that streams it is the schema of each line. "error" is the schema of errors, which go to stderr.
    """
    kinds = printed()
    name = " ".join(words)
    if name and name not in kinds:
        raise NotFound(f"The command {name!r} has no schema. These have one: {', '.join(kinds)}.")
    found: Any = schema(kinds[name]) if name else {one: schema(kind) for one, kind in kinds.items()}
    click.echo(json.dumps(found, indent=2))
