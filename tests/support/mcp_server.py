"""A small MCP server for the tests: `python mcp_server.py` uses its pipes, `build()` returns it for HTTP."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def build() -> MCPServer[Any]:
    server = MCPServer("tests", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def greet(name: str, excited: bool = False) -> str:
        """Say hello."""
        return f"Hello, {name}{'!' if excited else '.'}"

    @server.tool()
    async def slow(seconds: float, context: Context) -> str:
        """Take a while, and say how far it is."""
        await context.report_progress(1, 2, "half way")
        await asyncio.sleep(seconds)
        return "done"

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        """A picture with words."""
        return ["one pixel:", Image(data=base64.b64decode(PIXEL), format="png")]

    @server.tool()
    def refuse() -> str:
        """Fail."""
        raise ToolError("the moon is in the wrong phase")

    @server.tool()
    def die() -> str:
        """End the server in the middle of the call."""
        sys.stderr.write(f"fatal: out of cheese, key {os.environ.get('SECRET', '')}\n")
        sys.stderr.flush()
        os._exit(3)

    @server.tool()
    def process() -> int:
        """The number of the server's process."""
        return os.getpid()

    @server.tool(name="a.name/with:signs")
    def odd() -> str:
        """A name that providers do not take."""
        return "odd"

    @server.tool()
    async def grow(context: Context) -> str:
        """Get one tool more."""
        server.add_tool(lambda: "grown", name="grown", description="New.")
        await context.notify_tools_changed()
        return "ok"

    return server


if __name__ == "__main__":
    build().run()
