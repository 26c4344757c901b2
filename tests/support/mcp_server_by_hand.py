"""A small MCP server of an older protocol, for the tests, without a package: it lists its tools in pages, and counts
cancelled requests. With `LISTS_ONCE` it lists them only once."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CONTENT = [
    {"type": "resource_link", "uri": "file:///a", "name": "a"},
    {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
]


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    cancelled = lists = 0
    schema = {"$schema": "x", "type": "object", "properties": {"text": {"type": "string"}}}
    pages: dict[str, list[str]] = {"": ["never_answers", "changes"], "1": ["process", "key"], "2": ["cancelled"]}
    after = {"": "1", "1": "2"}
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        params: dict[str, Any] = message.get("params") or {}
        result: Any = None
        match message.get("method"), params.get("name"):
            case "initialize", _:
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}}
                result["serverInfo"] = {"name": "by hand", "version": "1"}
            case "tools/list", _:
                page = params.get("cursor", "")
                lists += not page
                if lists > 1 and "LISTS_ONCE" in os.environ:
                    continue
                result = {"tools": [{"name": name, "inputSchema": schema} for name in pages[page]]}
                if page in after:
                    result["nextCursor"] = after[page]
            case "tools/call", "changes":
                pages["2"].append("new")
                say(method="notifications/tools/list_changed")
                result = {"content": CONTENT}
            case "tools/call", "process":
                result = {"content": [{"type": "text", "text": str(os.getpid())}]}
            case "tools/call", "key":
                marks: dict[str, str] = params.get("_meta") or {}
                key = marks.get("io.modelcontextprotocol/idempotencyKey", "none")
                result = {"content": [{"type": "text", "text": key}]}
            case "tools/call", "cancelled":
                result = {"content": [], "structuredContent": {"cancelled": cancelled}}
            case "notifications/cancelled", _:
                cancelled += 1
            case "tools/call", "never_answers":
                continue
            case _:
                if "id" in message:
                    say(id=message["id"], error={"code": -32601, "message": "Method not found"})
                continue
        if result is not None:
            say(id=message["id"], result=result)


main()
