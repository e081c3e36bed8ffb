"""The MCP server: the operations as tools for coding agents, over stdio and streamable HTTP."""
