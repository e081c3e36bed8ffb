"""`tenuto setup`: add the MCP server and session hooks to coding agents, and take them out again."""

from tenuto.cli.setup.command import command

__all__ = ["command"]
