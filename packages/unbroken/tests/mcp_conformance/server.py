"""Tools by the names that the conformance runner calls, served as anybody would serve theirs. Prints the address."""

from __future__ import annotations

import base64
import socket
import sys
from dataclasses import replace
from typing import Any

import uvicorn

from unbroken import CallContext, tool
from unbroken.mcp import asgi_app
from unbroken.tools.results import ToolFailed
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, Media, Text

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = base64.b64encode(
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"
).decode()


@tool(effect="read")
def test_simple_text() -> str:
    """Text."""
    return "This is a simple text response for testing."


@tool(effect="read")
def test_image_content() -> Media:
    """An image."""
    return Media("image/png", PIXEL)


@tool(effect="read")
def test_audio_content() -> Media:
    """A sound."""
    return Media("audio/wav", SILENCE)


@tool(effect="read")
def test_embedded_resource() -> Media:
    """A file."""
    return Media("text/plain", base64.b64encode(b"This is an embedded resource content.").decode(), name="a.txt")


@tool(effect="read")
def test_multiple_content_types() -> list[Any]:
    """Text, an image and a file."""
    return [Text("Multiple content types test:"), Media("image/png", PIXEL), test_embedded_resource()]


@tool(effect="read")
def test_error_handling() -> str:
    """Fails."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool(effect="read")
def test_tool_with_progress(context: CallContext[Any]) -> str:
    """Reports how far it is."""
    for done in (0, 50, 100):
        context.report(f"{done} %", done / 100)
    return "done"


def asking(name: str) -> Tool:
    """Its user has to approve it: the question of our server."""

    @tool(name=name, approve=True)
    def paid(message: str = "") -> str:
        """Pays."""
        return f"paid: {message}"

    return paid


def with_schema(name: str, schema: dict[str, Json]) -> Tool:
    """A tool whose schema is written by hand."""

    @tool(name=name, effect="read")
    def taking(region: str = "") -> str:
        """Takes a region."""
        return region

    return replace(taking, spec=replace(taking.spec, parameters=schema))


SCHEMA: dict[str, Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
REGION: dict[str, Json] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
TOOLS = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    with_schema("json_schema_2020_12_tool", SCHEMA),
    with_schema("test_headers", REGION),
    *(
        asking(f"test_{name}")
        for name in (
            "elicitation",
            "missing_capability",
            "streaming_elicitation",
            "logging_tool",
            "input_required_result_elicitation",
            "input_required_result_request_state",
            "input_required_result_tampered_state",
            "input_required_result_multi_round",
            "input_required_result_multiple_inputs",
            "input_required_result_capabilities",
        )
    ),
]


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(asgi_app(TOOLS), log_level="critical")).run([listening])


if __name__ == "__main__":
    main()
