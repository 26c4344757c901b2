"""Tools and results of ours in the form of MCP. Half a surrogate pair becomes U+FFFD: the package cannot write it, and
would end the connection."""

from __future__ import annotations

import mcp_types as types

from unbroken.tools.mcp_content import well_formed, well_formed_inside
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, Media, Part, Text, ToolResult


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
    return types.CallToolResult(content=[types.TextContent(text=well_formed(text))], is_error=True)


def typed(text: str, value: dict[str, Json]) -> types.CallToolResult:
    """A structured answer, and its JSON."""
    return types.CallToolResult(
        content=[types.TextContent(text=well_formed(text))], structured_content=well_formed_inside(value)
    )


def _block(part: Part) -> types.ContentBlock:
    match part:
        case Text():
            return types.TextContent(text=well_formed(part.text))
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
