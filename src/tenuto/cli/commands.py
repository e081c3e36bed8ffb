"""Commands rendered from the table of operations: arguments, options, help, tables, JSON and exit codes."""

from __future__ import annotations

import importlib.util
import json
import sys
import typing
from collections.abc import Callable
from contextlib import nullcontext
from types import UnionType
from typing import Any, Final, Literal, Union

import click

from tenuto.cli import render
from tenuto.cli.progress import Progress
from tenuto.cli.shared import FAILURE, confirm, guarded, imported, opened, show_json, store_exists, store_options, where
from tenuto.cli.waterfall import waterfall
from tenuto.client import Tenuto
from tenuto.errors import NotFound, UnknownType
from tenuto.kernel import unregistered
from tenuto.operations import OPERATIONS, Operation, Parameter, called, groups
from tenuto.operations.jsonable import jsonable

_LONG = {"check": "checking everything", "checkpoint prune": "pruning"}
"""Slow operations, and the text of their progress line."""


_LINES: dict[str, Callable[[Any], list[str]]] = {
    "audit last": render.audit,
    "checkpoint diff": render.differences,
    "progress next": lambda found: [found.next_action] if found.next_action else [],
    "progress show": lambda found: [found.markdown.rstrip()],
    "resume": lambda found: [found.text.rstrip()] if found.text else [],
    "runs show": waterfall,
    "thread show": render.messages,
    "workflows show": render.procedure,
}
"""Results that are printed in a form of their own."""


_NONE: Final = {"check": "no damage found", "notify test": "every channel was reached"}
_FINDINGS: Final = ("check", "notify test")
"""Operations whose result is a list of problems."""


class _Value(click.ParamType):  # type: ignore[type-arg]
    """JSON, or plain text if the argument is not JSON."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            return value


def command_of(name: str) -> click.Command:
    """Return the command of an operation, or the group of the operations that begin with this word."""
    found = groups()
    for one in found[""]:
        if one.name == name:
            return _command(one, one.name)
    group = click.Group(name, help=f"Commands about {name}.", no_args_is_help=True)
    for one in found[name]:
        group.add_command(_command(one, one.name.partition(" ")[2]))
    if name == "runs":
        from tenuto.cli.worker import recover  # noqa: PLC0415 - it brings asyncio

        group.add_command(recover)
    return group


def rendered(name: str) -> click.Command:
    """Return the command of an operation for a group that has commands of its own."""
    return _command(OPERATIONS[name], name.rpartition(" ")[2])


def _command(operation: Operation, name: str) -> click.Command:
    @guarded
    def run(
        *, url: str | None, tenant: str, as_json: bool, modules: tuple[str, ...], yes: bool = False, **given: Any
    ) -> None:
        for module in modules:
            imported(module)
        if operation.asks is not None:
            confirm(operation.asks.format(**given), yes=yes)
        if operation.name == "resume" and not store_exists(url):
            return  # a hook of a project without a store prints nothing
        with opened(url, tenant, create=operation.writes and operation.asks is None) as agent:
            with Progress(_LONG[operation.name]) if operation.name in _LONG else nullcontext():
                found = _found(operation, agent, given)
            if operation.streams:
                with unregistered.allowed():  # the items are decoded as they arrive
                    _stream(operation, found, as_json=as_json)
            elif as_json:
                show_json(found)
            else:
                _show(operation, found)
        if operation.name in _FINDINGS and found:
            sys.exit(FAILURE)

    parameters = [_parameter(one) for one in operation.parameters]
    command = click.Command(name, callback=run, params=parameters, help=_help(operation))
    if operation.asks is not None:
        command.params.append(click.Option(["--yes"], is_flag=True, help="Do not ask."))
    return _with_store(command)


def _help(operation: Operation) -> str:
    """Return the help text of a command, with its positional arguments."""
    taken = [(one.name.upper(), one.help) for one in operation.parameters if one.positional and one.help]
    if not taken:
        return operation.help
    wide = max(len(name) for name, _ in taken)
    return operation.help + "\n\n\b\n" + "\n".join(f"{name.ljust(wide)}  {text}" for name, text in taken)


def _found(operation: Operation, agent: Tenuto, given: dict[str, Any]) -> Any:
    """Call an operation; a `NotFound` names the store, since the default one depends on the folder."""
    try:
        return _called(operation, agent, given)
    except NotFound as error:
        raise NotFound(f"{error} (store: {where(agent)})") from error


def _called(operation: Operation, agent: Tenuto, given: dict[str, Any]) -> Any:
    """Call an operation; if something is missing or of an unknown type, retry with LangGraph's types and threads.

    Types that are still unknown are shown by their names and data.
    """
    try:
        return called(operation, agent, given)
    except (NotFound, UnknownType) as error:
        if isinstance(error, NotFound) and (operation.writes or not importlib.util.find_spec("langgraph")):
            raise
        if importlib.util.find_spec("langgraph"):
            from tenuto.adapters.langgraph import TenutoSaver  # noqa: PLC0415 - slow import

            TenutoSaver(agent)
        with unregistered.allowed():
            return called(operation, agent, given)


def _with_store(command: click.Command) -> click.Command:
    @store_options
    @click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Module that registers your types; may be repeated.",
    )
    def none() -> None: ...

    command.params += reversed(none.__click_params__)  # type: ignore[attr-defined]
    return command


def _parameter(one: Parameter) -> click.Parameter:
    kind: Any = _kind(one.kind)
    default: Any = {} if one.required else {"default": one.default}  # click takes a given None for a value
    if one.positional:
        return click.Argument([one.name], type=kind, required=one.required, **default)
    name = "--" + one.name.replace("_", "-")
    shown = one.default not in (None, False)
    if one.kind is bool:
        return click.Option([name], is_flag=True, help=one.help)
    return click.Option([name], type=kind, required=one.required, help=one.help, show_default=shown, **default)


def _kind(kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, UnionType):
        return _kind(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return click.Choice(list(inner))
    return {str: str, int: int, float: float, bool: bool}.get(kind, _Value())


def _stream(operation: Operation, found: Any, *, as_json: bool) -> None:
    for one in found:
        if as_json:
            click.echo(json.dumps(jsonable(one), ensure_ascii=False))
        else:
            click.echo("  ".join(render.text(getattr(one, name)) for name in operation.columns))


def _show(operation: Operation, found: Any) -> None:
    if operation.writes:  # quiet on success, but for what it has made
        if operation.columns:
            click.echo(render.text(getattr(found, operation.columns[0])))
        if getattr(found, "changed", True) is False:
            click.echo("nothing to do", err=True)
        return
    if operation.name in _LINES:
        lines = _LINES[operation.name](found)
    elif operation.rows:
        lines = render.table(found, operation.columns)
    else:
        lines = render.one(found)
    if lines:
        click.echo("\n".join(lines))
        _left_out(operation, found)
    elif operation.rows:
        click.echo(_NONE.get(operation.name, "none"), err=True)


def _left_out(operation: Operation, found: Any) -> None:
    """Print how many rows a page left out, and how to see them."""
    if more := getattr(found, "more", 0):
        row, column = found[-1], operation.columns[0]
        last = row[column] if isinstance(row, dict) else getattr(row, column)
        click.echo(f"… {more:,} more: --after {last}, or a larger --limit", err=True)
