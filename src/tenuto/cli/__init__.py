"""The `tenuto` command, for people and for programs.

Most commands are rendered from the table of `operations`. Data goes to stdout, everything else to stderr. Without a
terminal no command prompts. Commands are imported on first use, so that `--version` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from tenuto import __version__

_OWN = {
    "archive": "Move old threads, runs and checkpoints to a folder or an S3 bucket.",
    "audit": "Test whether the state of an agent survives production.",
    "explain": "Explain a rule of the audit.",
    "bench": "Measure tenuto and common alternatives on this machine.",
    "backup": "Copy the store to a file while it is in use.",
    "compact": "Give free space in a SQLite store back to the disk.",
    "copy": "Copy a tenant to another store, and compare them.",
    "demo": "Kill an agent and watch it resume.",
    "doctor": "Diagnose the setup and suggest fixes.",
    "export": "Write a tenant to a JSONL file.",
    "forget": "Forget a user: everything of theirs, everywhere.",
    "import": "Import an export, or data of other libraries.",
    "encryption": "Encryption keys: make one, rotate, destroy a user's.",
    "init": "Create the store and add it to .gitignore.",
    "hook": "Run a session hook of a coding agent.",
    "keys": "API keys of a server: create, list, revoke, rotate.",
    "mcp": "Serve coding agents as an MCP server.",
    "load": "Drive a store with many agents and measure it.",
    "migrate": "Create or upgrade the schema of a Postgres store.",
    "prune": "Prune what is older than its retention.",
    "restore": "Restore a backup into a new store.",
    "spool": "Commits kept while the store was away: show, replay, discard.",
    "schema": "Print the JSON Schema of a command's --json output.",
    "verify": "Verify all stored data; compare with another store.",
    "setup": "Add the MCP server and session hooks to a coding agent.",
    "worker": "Execute runs and tasks, escalate questions and notify people, until stopped.",
    "serve": "Serve the store over HTTP.",
}
"""Commands that have their own module."""
_NAMED = {"import": "imports"}
"""Commands whose name is a keyword, with the name of their module."""
_TABLE = {
    "alerts": "Conditions on figures, and who is notified.",
    "check": "Verify all stored data.",
    "checkpoint": "Checkpoints: list, show, diff, fork, restore, prune.",
    "growth": "How the store grows, and when it reaches a size.",
    "handoff": "Handoffs between agents: list, show, accept, reject.",
    "inbox": "Questions from agents to people: list, show, answer.",
    "memory": "What agents know: add, search, list, show, forget, load.",
    "progress": "Progress documents: list, show, write, next, done.",
    "resume": "Print what a new session needs to know.",
    "notify": "Channels of people, and notifications that wait for delivery.",
    "playbooks": "Procedures that worked: save, start, finish, suggest.",
    "milestones": "Due dates with evidence: list, set, meet.",
    "groups": "Groups of people, and who is in them.",
    "routes": "Who is asked about what.",
    "runs": "Durable runs: overview, list, show, history, fork, retry, cancel, recover.",
    "state": "Named values with versions.",
    "costs": "What runs spent on models, and what was saved.",
    "stats": "Backend, durability and size of the store.",
    "tasks": "Queues of tasks: list, show, enqueue, complete, retry, cancel.",
    "thread": "Conversations: list, show, append, timeline, fork.",
    "watch": "Print the runs and questions that change.",
    "workers": "Which process executes what now.",
    "workflows": "Documented procedures: list, show, mark steps as done.",
}
"""Commands that are rendered from the table of operations."""


class _Lazy(click.Group):
    """A group that imports its commands on first use."""

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
            from difflib import get_close_matches  # noqa: PLC0415 - only after a typing error

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near:
                raise click.UsageError(f"There is no command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from None
            raise

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        """Run a command; with --json, usage errors are JSON too."""
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
@click.option("--url", help="Store path or URL.")
@click.pass_context
def group(ctx: click.Context, url: str | None) -> None:
    """Durable state for AI agents: killed at any line, they resume from there.

    The store is --url, else $TENUTO_URL, else .tenuto/tenuto.db in this folder or above. Exit codes: 0 ok, 1 failure
    or finding, 2 usage, 3 not found, 4 conflict, 5 waiting on a person, 6 storage unavailable, 7 newer format.
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
