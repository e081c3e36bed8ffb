"""The `tenuto` command. So far it tells its version."""

from __future__ import annotations

import click

from tenuto import __version__


@click.group()
@click.version_option(__version__, prog_name="tenuto")
def main() -> None:
    """Durable state for AI agents."""
