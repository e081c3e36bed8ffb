"""The `tenuto` command: what can be done from outside, for people and for programs.

Most commands are the table of `servers.operations`, rendered. Each has `--json`; data goes to stdout and all else to
stderr; nothing is asked off a terminal. Commands are imported when they are called, so that `--version` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from tenuto import __version__

_OWN = {
    "bench": "Measure this machine: what people use beside tenuto, in one interleaved run.",
    "backup": "Copy the store into a file, while it is in use.",
    "demo": "See an agent be killed and carry on.",
    "doctor": "Find what is wrong with the set-up, and say what to do about it.",
    "import": "Bring in what other libraries have stored.",
    "init": "Create the store and tell git to leave it out.",
    "migrate": "Create or upgrade the schema of a Postgres store.",
    "schema": "Print the JSON Schema of what a command prints with --json.",
    "worker": "Go on with durable runs, until told to stop.",
}
"""Commands with a module of their own."""
_NAMED = {"import": "imports"}
"""Modules that cannot have the name of their command."""
_TABLE = {
    "check": "Verify everything that is stored.",
    "checkpoint": "Snapshots: list, show, diff, fork, restore, prune.",
    "inbox": "Questions of agents to people: list, show, answer.",
    "runs": "Durable runs: list, show, watch, fork, retry, cancel, recover.",
    "state": "Named values with versions.",
    "stats": "What the store is, and how large.",
    "tasks": "Queues of tasks: list, show, enqueue, complete, retry, cancel.",
    "thread": "Conversations.",
    "workflows": "Documented procedures: list, show, and what is done, step by step.",
}
"""Commands of the table."""


class _Lazy(click.Group):
    """A group whose commands are imported when they are wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted({**_OWN, **_TABLE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name in _OWN:
            command: click.Command = importlib.import_module(f"tenuto.cli.{_NAMED.get(cmd_name, cmd_name)}").command
            return command
        if cmd_name in _TABLE:
            from tenuto.cli.commands import command_of  # noqa: PLC0415 - only when it is called

            return command_of(cmd_name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches  # noqa: PLC0415 - only where somebody mistyped

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near:
                raise click.UsageError(f"There is no command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from None
            raise

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        """Run; where JSON is wanted, a wrong use is told as JSON too."""
        words = sys.argv[1:] if args is None else list(args)
        if "--json" not in words or extra.get("standalone_mode") is False:
            return super().main(args, *rest, **extra)
        code: Any = None
        try:
            code = super().main(args, *rest, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            from tenuto.cli.shared import refuse  # noqa: PLC0415 - only when it is needed

            refuse(error)
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**_OWN, **_TABLE}.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tenuto")
@click.option("--url", help="The store, as behind any command.")
@click.pass_context
def group(ctx: click.Context, url: str | None) -> None:
    """Durable state for AI agents: killed at any line, they carry on from there.

    The store is --url, else $TENUTO_URL, else .tenuto/tenuto.db in this folder. Exit codes: 0 ok, 1 failure or
    finding, 2 usage, 3 not found, 4 conflict, 5 waiting on a person, 6 storage unavailable, 7 newer format.
    """
    if url is not None:
        before = os.environ.get("TENUTO_URL")
        os.environ["TENUTO_URL"] = url
        ctx.call_on_close(lambda: os.environ.update(TENUTO_URL=before) if before else os.environ.pop("TENUTO_URL"))
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


def main(*args: Any, **kwargs: Any) -> Any:
    """Run the command."""
    return group(*args, **kwargs)
