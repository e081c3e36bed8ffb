"""`tenuto import`: what people have stored elsewhere, brought into a store. What is there already is left as it is."""

from __future__ import annotations

import click

from tenuto.cli.import_conversations import json_file, openai_sessions


@click.group("import")
def command() -> None:
    """Bring in what other libraries have stored."""


command.add_command(json_file)
command.add_command(openai_sessions)
