"""A small MCP server for the tests: `python mcp_server.py` speaks over its pipes, `build()` gives it for HTTP.

`python mcp_server.py by-hand` is one without any package behind it, of the older protocol, that says in pages what it
has and notes which requests were cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
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

    @server.tool()
    def picture() -> list[Any]:
        """A picture with words."""
        return ["one pixel:", Image(data=base64.b64decode(PIXEL), format="png")]

    @server.tool()
    def refuse() -> str:
        """Fail."""
        raise ValueError("the moon is in the wrong phase")

    @server.tool()
    def die() -> str:
        """End the server in the middle of the call."""
        print(f"fatal: out of cheese, key {os.environ.get('SECRET', '')}", file=sys.stderr, flush=True)
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


def by_hand() -> None:
    cancelled: list[Any] = []
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    pages = {None: (["one", "two"], "second"), "second": (["three"], "third"), "third": (["cancelled"], None)}
    for line in sys.stdin:
        message = json.loads(line)
        match message:
            case {"method": "initialize", "id": number}:
                result: Any = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "by hand", "version": "1"},
                }
            case {"method": "tools/list", "id": number, **more}:
                names, after = pages[(more.get("params") or {}).get("cursor")]
                result = {"tools": [{"name": name, "inputSchema": schema} for name in names]}
                result |= {"nextCursor": after} if after else {}
            case {"method": "tools/call", "id": number, "params": {"name": "cancelled"}}:
                result = {"content": [], "structuredContent": {"cancelled": len(cancelled)}}
            case {"method": "tools/call", "id": number, "params": {"name": "one"}}:
                continue  # never answered
            case {"method": "tools/call", "id": number, "params": {"name": "two"}}:
                pages["third"] = (["cancelled", "four"], None)
                print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
                link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
                inside = {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}}
                sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
                result = {"content": [link, inside, sound]}
            case {"method": "notifications/cancelled"}:
                cancelled.append(message)
                continue
            case {"id": number}:
                error = {"code": -32601, "message": "Method not found"}
                print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)
                continue
            case _:
                continue
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["by-hand"]:
        by_hand()
    else:
        build().run()
