"""An MCP server with two tools that write files, over stdin and stdout."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("files")


@server.tool()
def write_file(path: str, content: str) -> str:
    """Writes a file."""
    with open(path, "a", encoding="utf-8") as file:  # appended, so that a call that ran twice is visible
        file.write(content)
    return f"{path} is written"


@server.tool()
def write_line(path: str, content: str) -> str:
    """Writes a file of one line."""
    return write_file(path, content)


server.run("stdio")
