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
    from tenuto.adapters._notes import Graph  # noqa: PLC0415 - each imports its dependencies
    from tenuto.audit.load import LoadReport  # noqa: PLC0415
    from tenuto.audit.report import ReportShown  # noqa: PLC0415
    from tenuto.audit.rules import Rule  # noqa: PLC0415
    from tenuto.capabilities.memory import Loaded as Notes  # noqa: PLC0415
    from tenuto.capabilities.store import Archived, ArchiveReport, Exported, Pruned, Summary  # noqa: PLC0415 - each imports its dependencies
    from tenuto.capabilities.store import Imported as Loaded  # noqa: PLC0415
    from tenuto.capabilities.upkeep import Forgotten  # noqa: PLC0415
    from tenuto.cli import copy, encryption, spool, verify  # noqa: PLC0415
    from tenuto.cli.backup import Copied  # noqa: PLC0415 - each imports its dependencies
    from tenuto.cli.bench import Measured  # noqa: PLC0415
    from tenuto.cli.bench_recall import Quality  # noqa: PLC0415
    from tenuto.cli.examinations import Diagnosis  # noqa: PLC0415
    from tenuto.cli.import_conversations import Conversation  # noqa: PLC0415
    from tenuto.cli.import_notes import Document  # noqa: PLC0415
    from tenuto.cli.imports import Imported  # noqa: PLC0415
    from tenuto.cli.init import Prepared  # noqa: PLC0415
    from tenuto.cli.keys import AnswerLink  # noqa: PLC0415
    from tenuto.cli.migrate import Lacking, Statements  # noqa: PLC0415
    from tenuto.cli.setup.command import SetUp  # noqa: PLC0415
    from tenuto.cli.worker import Became  # noqa: PLC0415
    from tenuto.kernel.contract import Rotation  # noqa: PLC0415
    from tenuto.servers.auth import ApiKey, NewKey  # noqa: PLC0415
    from tenuto.wrappers.spool import Replayed  # noqa: PLC0415

    table = {name: one.item if one.streams else one.returns for name, one in OPERATIONS.items()}
    own = {
        "archive": ArchiveReport | list[Archived],
        "backup": Copied,
        "bench": list[Measured],
        "bench recall": list[Quality],
        "copy": copy.Copied,
        "export": Exported,
        "audit": ReportShown,
        "load": LoadReport,
        "explain": Rule | list[Rule],
        "doctor": list[Diagnosis],
        "import export": Loaded,
        "import claude-progress": Document,
        "import json": Conversation,
        "import langgraph": Imported,
        "import mcp-memory": Graph,
        "import notes": Notes,
        "import openai-sessions": Conversation,
        "init": Prepared,
        "keys create": NewKey,
        "keys link": AnswerLink,
        "keys list": list[ApiKey],
        "keys revoke": ApiKey,
        "keys rotate": NewKey,
        "migrate": Lacking | Statements,
        "forget": Forgotten,
        "prune": Pruned,
        "restore": Summary,
        "runs recover": list[Became],
        "verify": verify.Verified,
        "setup": SetUp,
        "encryption destroy-user-key": encryption.Destroyed,
        "encryption new": encryption.NewKey,
        "encryption rotate": Rotation,
        "spool discard": spool.Discarded,
        "spool replay": Replayed,
        "spool show": spool.Kept,
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
