"""What an MCP tool answered, as the parts that a model reads. Only images and PDF stay media, because no provider takes
other files in a tool's result; they are named instead."""

from __future__ import annotations

from collections.abc import Iterable

import mcp_types as types

from unbroken.messages import Media, Part, Text
from unbroken.tools.results import ToolFailed, to_parts


def read_result(result: types.CallToolResult) -> tuple[Part, ...]:
    """`ToolFailed` if the server says that the tool failed."""
    parts = _joined(_read_content(one) for one in result.content)
    # The structured form repeats the content, and the content is what the server meant for a model.
    if not parts and result.structured_content is not None:
        parts = to_parts(result.structured_content)
    if result.is_error:
        text = "\n".join(part.text for part in parts if isinstance(part, Text)).strip()
        raise ToolFailed(text or "the server says that it failed, and not why")
    return parts


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Texts beside each other as one, a line each: not every wire keeps them apart."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and joined and isinstance(last := joined[-1], Text):
            joined[-1] = Text(f"{last.text}\n{part.text}")
        else:
            joined.append(part)
    return tuple(joined)


def _read_content(content: types.ContentBlock) -> Part:
    match content:
        case types.TextContent():
            return Text(content.text)
        case types.ImageContent() | types.AudioContent():
            return _read_file(content.data, content.mime_type, "")
        case types.ResourceLink():
            described = f": {content.description}" if content.description else ""
            return Text(f"[resource {content.name} at {content.uri}{described}]")
        case types.EmbeddedResource():
            inside = content.resource
            if isinstance(inside, types.TextResourceContents):
                return Text(f"[resource {inside.uri}]\n{inside.text}")
            return _read_file(inside.blob, inside.mime_type or "", inside.uri)


def _read_file(data: str, mime: str, uri: str) -> Part:
    if data and (mime.startswith("image/") or mime == "application/pdf"):
        return Media(mime=mime, data=data)
    return Text(f"[{mime or 'a file'}{f' at {uri}' if uri else ''}, {len(data) * 3 // 4:,} bytes, not shown]")
