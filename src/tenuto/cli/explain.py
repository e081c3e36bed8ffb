"""`tenuto explain`: print what a rule of the audit tests, what a finding means, and the fix."""

from __future__ import annotations

import textwrap

import click

from tenuto.audit.rules import RULES, rule
from tenuto.cli.render import table, width
from tenuto.cli.shared import guarded, show_json


@click.command("explain")
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def command(code: str | None, *, as_json: bool) -> None:
    """Explain a rule of the audit, for example T012: what is tested, what a finding means, and the fix.

    Without a code, list all rules.
    """
    if code is None:
        if as_json:
            show_json(list(RULES.values()))
        else:
            click.echo("\n".join(table(list(RULES.values()), ("code", "area", "severity", "title"))))
        return
    found = rule(code)
    if as_json:
        show_json(found)
        return
    click.echo(click.style(f"{found.code} {found.title}", bold=True) + f"  {found.area}, {found.severity}")
    for head, text in (("Tested", found.tested), ("Means", found.meaning), ("Fix", found.fix)):
        click.echo("")
        prefix = f"{head + ':':8} "
        click.echo(textwrap.fill(text, min(width(), 100), initial_indent=prefix, subsequent_indent=" " * len(prefix)))
