"""`tenuto schema`: what programs may rely on in the JSON of a command."""

from __future__ import annotations

import json

import click

from tenuto.cli.shared import guarded
from tenuto.errors import NotFound
from tenuto.servers.jsonable import schema
from tenuto.servers.operations import OPERATIONS


@click.command("schema")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@guarded
def command(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of what a command prints with --json; without a command, of all of them.

    For one that streams it is the schema of each line.
    """
    names = [" ".join(words)] if words else list(OPERATIONS)
    if names[0] not in OPERATIONS:
        raise NotFound(f"There is no command {names[0]!r} with a schema. These have one: {', '.join(OPERATIONS)}.")
    found = {
        name: schema(OPERATIONS[name].item if OPERATIONS[name].streams else OPERATIONS[name].returns) for name in names
    }
    click.echo(json.dumps(found if not words else found[names[0]], indent=2))
