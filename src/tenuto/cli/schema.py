"""`tenuto schema`: what programs may rely on in the JSON of a command."""

from __future__ import annotations

import json
from typing import Any

import click

from tenuto.cli.shared import Failure, guarded
from tenuto.errors import NotFound
from tenuto.servers.jsonable import schema
from tenuto.servers.operations import OPERATIONS


def printed() -> dict[str, Any]:
    """Return the type of what each command prints with --json, of a stream that of one line; "error" on stderr."""
    from tenuto.cli.backup import Copied  # noqa: PLC0415 - each imports what it works with
    from tenuto.cli.bench import Measured  # noqa: PLC0415
    from tenuto.cli.examinations import Diagnosis  # noqa: PLC0415
    from tenuto.cli.import_conversations import Conversation  # noqa: PLC0415
    from tenuto.cli.imports import Imported  # noqa: PLC0415
    from tenuto.cli.init import Prepared  # noqa: PLC0415
    from tenuto.cli.migrate import Lacking, Statements  # noqa: PLC0415
    from tenuto.cli.worker import Became  # noqa: PLC0415

    table = {name: one.item if one.streams else one.returns for name, one in OPERATIONS.items()}
    own = {
        "backup": Copied,
        "bench": list[Measured],
        "doctor": list[Diagnosis],
        "import json": Conversation,
        "import langgraph": Imported,
        "import openai-sessions": Conversation,
        "init": Prepared,
        "migrate": Lacking | Statements,
        "runs recover": list[Became],
        "error": Failure,
    }
    return dict(sorted({**table, **own}.items()))


@click.command("schema")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@guarded
def command(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of what a command prints with --json; without a command, of all of them.

    For one that streams it is the schema of each line. "error" is what a command with --json prints on stderr when it
    fails.
    """
    kinds = printed()
    name = " ".join(words)
    if name and name not in kinds:
        raise NotFound(f"There is no command {name!r} with a schema. These have one: {', '.join(kinds)}.")
    found: Any = schema(kinds[name]) if name else {one: schema(kind) for one, kind in kinds.items()}
    click.echo(json.dumps(found, indent=2))
