"""What MCP sends (results, resources, prompts) as parts and messages of ours, and our tools and results in its form.

In a tool's result only images and PDF stay media, because no provider accepts other files there; those are described as
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import mcp_types as types

from unbroken.mcp.client.target import PromptTemplate, Resource
from unbroken.tools.results import ToolFailed, to_parts
from unbroken.tools.tool import Tool
from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Part,
    Request,
    Sampling,
    System,
    Text,
    ToolResult,
    User,
)

IN_RESULTS = ("image/", "application/pdf")
IN_PROMPTS = (*IN_RESULTS, "audio/", "video/")


def read_result(result: types.CallToolResult) -> tuple[Part, ...]:
    """Raises `ToolFailed` if the server reports that the tool failed."""
    parts = _joined(_read_content(one) for one in result.content)
    # The structured form repeats the content, and the content is what the server meant for a model.
    if not parts and result.structured_content is not None:
        parts = to_parts(result.structured_content)
    if result.is_error:
        text = "\n".join(part.text for part in parts if isinstance(part, Text)).strip()
        raise ToolFailed(text or "the server reports a failure without a reason")
    return parts


def read_contents(contents: Sequence[types.ResourceContents], kept: Sequence[str] = IN_PROMPTS) -> tuple[Part, ...]:
    """The contents of one resource, for a prompt or a tool's result."""
    return _joined(_read_resource(one, kept) for one in contents)


def read_messages(messages: Iterable[types.PromptMessage]) -> tuple[Message, ...]:
    """The messages of a prompt. Those of one role that follow each other become one message."""
    joined: list[tuple[str, list[Part]]] = []
    for message in messages:
        if not joined or joined[-1][0] != message.role:
            joined.append((message.role, []))
        joined[-1][1].append(_read_content(message.content, IN_PROMPTS))
    return tuple(_message(role, _joined(parts)) for role, parts in joined)


def read_resource(found: types.Resource) -> Resource:
    return Resource(found.uri, found.name, found.description or found.title or "", found.mime_type or "", found.size)


def read_template(found: types.ResourceTemplate) -> Resource:
    described = found.description or found.title or ""
    return Resource(found.uri_template, found.name, described, found.mime_type or "", template=True)


def read_prompt(found: types.Prompt) -> PromptTemplate:
    arguments = found.arguments or []
    return PromptTemplate(
        found.name,
        found.description or found.title or "",
        {one.name: one.description or "" for one in arguments},
        tuple(one.name for one in arguments if one.required),
    )


def sampling_request(params: types.CreateMessageRequestParams) -> Request:
    """What a server asks of our model."""
    messages: list[Message] = [System.of(params.system_prompt)] if params.system_prompt else []
    for message in params.messages:
        parts = _joined(_read_sampling(one) for one in message.content_as_list)
        messages.append(_message(message.role, parts))
    sampling = Sampling(params.max_tokens, params.temperature, stop=tuple(params.stop_sequences or ()))
    return Request(tuple(messages), sampling=sampling, pieces=False)


def sampling_result(answer: Assistant, model: str) -> types.CreateMessageResult:
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(text=well_formed(answer.text)), model=model, stop_reason="endTurn"
    )


def _message(role: str, parts: tuple[Part, ...]) -> Message:
    if role == "assistant":
        return Assistant("\n".join(part.text for part in parts if isinstance(part, Text)))
    return User(parts)


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Joins adjacent texts, one per line: not every wire keeps them separate."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and joined and isinstance(last := joined[-1], Text):
            joined[-1] = Text(f"{last.text}\n{part.text}")
        else:
            joined.append(part)
    return tuple(joined)


def _read_content(content: types.ContentBlock, kept: Sequence[str] = IN_RESULTS) -> Part:
    match content:
        case types.TextContent():
            return Text(content.text)
        case types.ImageContent() | types.AudioContent():
            return _read_file(content.data, content.mime_type, "", kept)
        case types.ResourceLink():
            described = f": {content.description}" if content.description else ""
            return Text(f"[resource {content.name} at {content.uri}{described}]")
        case types.EmbeddedResource():
            inside = content.resource
            if isinstance(inside, types.TextResourceContents):
                return Text(f"[resource {inside.uri}]\n{inside.text}")
            return _read_file(inside.blob, inside.mime_type or "", inside.uri, kept)


def _read_sampling(content: types.SamplingMessageContentBlock) -> Part:
    if isinstance(content, types.TextContent | types.ImageContent | types.AudioContent):
        return _read_content(content, IN_PROMPTS)
    raise ToolFailed("a request with tools, which this client does not offer to servers")


def _read_resource(contents: types.ResourceContents, kept: Sequence[str]) -> Part:
    if isinstance(contents, types.BlobResourceContents):
        return _read_file(contents.blob, contents.mime_type or "", contents.uri, kept)
    return Text(contents.text if isinstance(contents, types.TextResourceContents) else "")


def _read_file(data: str, mime: str, uri: str, kept: Sequence[str]) -> Part:
    if data and mime.startswith(tuple(kept)):
        return Media(mime=mime, data=data)
    return Text(f"[{mime or 'a file'}{f' at {uri}' if uri else ''}, {len(data) * 3 // 4:,} bytes, not shown]")


def write_tool(tool: Tool) -> types.Tool:
    reads = tool.effect == "read"
    return types.Tool(
        name=tool.name,
        description=tool.spec.description,
        input_schema={"type": "object", "properties": {}, **tool.spec.parameters},
        annotations=types.ToolAnnotations(read_only_hint=reads, idempotent_hint=True if reads else None),
    )


def write_result(result: ToolResult) -> types.CallToolResult:
    return types.CallToolResult(content=[_write_part(part) for part in result.content], is_error=result.error)


def write_failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=well_formed(text))], is_error=True)


def write_typed(text: str, value: dict[str, Json]) -> types.CallToolResult:
    """A structured answer, and its JSON."""
    return types.CallToolResult(
        content=[types.TextContent(text=well_formed(text))], structured_content=well_formed_inside(value)
    )


def _write_part(part: Part) -> types.ContentBlock:
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


# The package cannot write half a surrogate pair: it would end the connection, for all calls. It becomes U+FFFD.


def well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_inside(value: Json) -> Any:
    """The value with all of its texts well-formed."""
    match value:
        case str():
            return well_formed(value)
        case list():
            return [well_formed_inside(each) for each in cast("list[Json]", value)]
        case dict():
            given = cast("dict[str, Json]", value)
            return {well_formed(name): well_formed_inside(each) for name, each in given.items()}
        case _:
            return value


def own_version() -> str:
    """What both sides of MCP tell each other about themselves: this is ours."""
    try:
        return version("unbroken")
    except PackageNotFoundError:
        return "0"
