"""Agents and tools as an MCP server for programs of others: over standard input and output, or as an ASGI app."""
