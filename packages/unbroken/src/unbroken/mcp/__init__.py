"""Agents and tools as an MCP server, for programs of others: over standard input and output, or as an ASGI application.
`unbroken.MCPServer` is the other direction: it uses the tools of a server. Needs the extra `mcp`."""

from unbroken.mcp.serving import asgi_app, serve_stdio

__all__ = ["asgi_app", "serve_stdio"]
