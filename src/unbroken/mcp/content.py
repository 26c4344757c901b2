"""Tools and results of ours in the form of MCP."""

from __future__ import annotations

import mcp_types as types

from unbroken.messages import Media, Part, Text, ToolResult
from unbroken.tools.tool import Tool


def described(tool: Tool) -> types.Tool:
    reads = tool.effect == "read"
    return types.Tool(
        name=tool.name,
        description=tool.spec.description,
        input_schema={"type": "object", "properties": {}, **tool.spec.parameters},
        annotations=types.ToolAnnotations(read_only_hint=reads, idempotent_hint=True if reads else None),
    )


def read_result(result: ToolResult) -> types.CallToolResult:
    return types.CallToolResult(content=[_block(part) for part in result.content], is_error=result.error)


def failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _block(part: Part) -> types.ContentBlock:
    match part:
        case Text():
            return types.TextContent(text=part.text)
        case Media(url=url) if url:
            return types.ResourceLink(name=part.name or "file", uri=url, mime_type=part.mime or None)
        case Media(mime=mime) if mime.startswith("image/"):
            return types.ImageContent(data=part.data, mime_type=mime)
        case Media(mime=mime) if mime.startswith("audio/"):
            return types.AudioContent(data=part.data, mime_type=mime)
        case Media():
            uri = f"file:///{part.name or 'file'}"
            inside = types.BlobResourceContents(uri=uri, blob=part.data, mime_type=part.mime or None)
            return types.EmbeddedResource(resource=inside)
