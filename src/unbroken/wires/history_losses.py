"""What messages and tools of a client's request say that the wire of the model has no place for.

`crossing` does the same for settings. Named as the client calls it, without numbers: `messages.name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken.messages import Assistant, Json, Media, Request, ToolMessage, User
from unbroken.wires.values import Object, as_dict, as_text, dicts

_ERRORS = {
    "anthropic-messages": "messages.tool_result.is_error",
    "bedrock-converse": "messages.toolResult.status",
    "gemini": "contents.functionResponse.response.error",
}
"""Wires whose results can be errors, and how they say so."""
_ARGUMENTS = {
    "openai-chat": "messages.tool_calls.function.arguments",
    "openai-responses": "input.arguments",
    "cohere-v2": "messages.tool_calls.function.arguments",
}
"""Wires whose arguments are a text, which need not be a JSON object."""
_DETAILS = {"openai-chat": "messages.image_url.detail", "openai-responses": "input.input_image.detail"}
_TOOLS: Mapping[str, tuple[str, str, frozenset[str]]] = {
    "openai-chat": ("function", "tools.function", frozenset({"name", "description", "parameters", "strict"})),
    "openai-responses": ("", "tools", frozenset({"type", "name", "description", "parameters", "strict"})),
    "anthropic-messages": (
        "",
        "tools",
        frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"}),
    ),
    "gemini": (
        "",
        "tools.functionDeclarations",
        frozenset({"name", "description", "parameters", "parametersJsonSchema"}),
    ),
}
"""The object that describes a function, its place, and the fields that every wire has."""


def lost_from_history(body: Mapping[str, Json], request: Request, model: str) -> list[str]:
    """What a model of the wire `model` is not told of a request. `body`: as its client sent it."""
    if request.wire == model:
        return []
    return list(dict.fromkeys([*_names(body, request.wire), *_from_messages(request, model), *_tool_fields(request)]))


_BLOCKS = {"anthropic-messages": "content", "bedrock-converse": "content", "gemini": "parts"}
"""Wires whose messages have texts and calls in any order: on others the text comes first."""


def has_text_after_call(messages: Json, client: str) -> bool:
    """Does a message of the model have text after a call? On another wire it is moved before it."""
    if client not in _BLOCKS:
        return False
    for message in dicts(messages):
        if message.get("role") in ("assistant", "model"):
            called = False
            for block in dicts(message.get(_BLOCKS[client])):
                called = called or block.get("type") == "tool_use" or "toolUse" in block or "functionCall" in block
                if called and not block.get("thought") and as_text(block.get("text")).strip():
                    return True
    return False


def _names(body: Mapping[str, Json], client: str) -> Iterator[str]:
    if client == "openai-chat":
        for message in dicts(body.get("messages")):
            if message.get("role") != "tool" and as_text(message.get("name")):
                yield "messages.name"


def _from_messages(request: Request, model: str) -> Iterator[str]:
    client = request.wire
    for message in request.messages:
        if isinstance(message, ToolMessage):
            if client in _ERRORS and model not in _ERRORS and any(result.error for result in message.results):
                yield _ERRORS[client]
        elif isinstance(message, Assistant):
            if client in _ARGUMENTS and model not in _ARGUMENTS:
                for call in message.calls:
                    if call.kind == "function" and call.arguments is None and call.raw.strip():
                        yield _ARGUMENTS[client]
        elif isinstance(message, User) and client in _DETAILS and model not in _DETAILS:
            for part in message.parts:
                if isinstance(part, Media) and image_detail(part):
                    yield _DETAILS[client]


def _tool_fields(request: Request) -> Iterator[str]:
    if request.wire not in _TOOLS:
        return
    group, place, known = _TOOLS[request.wire]
    for tool in request.tools:
        if tool.kind != "function" or tool.native is None or tool.native.wire != request.wire:
            continue
        said: Object = as_dict(tool.native.value)
        said = as_dict(said.get(group)) if group else said
        yield from (f"{place}.{key}" for key, value in said.items() if key not in known and value not in (None, [], {}))


def image_detail(media: Media) -> str:
    """How closely OpenAI is to look at an image; empty if that is not said, or left to the model."""
    value = as_dict(media.native.value) if media.native is not None else {}
    detail = as_text(value.get("detail")) or as_text(as_dict(value.get("image_url")).get("detail"))
    return "" if detail == "auto" else detail
