"""An MCP server for the tests that offers resources and prompts, and asks its client questions: `python mcp_library.py`
uses its pipes, `build()` returns it for HTTP. With `OLDER` in the environment it speaks only the protocol of 2025, in
which questions are requests of their own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import Annotated, Any, Literal

import mcp_types as types
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Guests(BaseModel):
    number: int = Field(ge=1, le=8)
    table: Literal["window", "garden"] = "window"


async def ask_guests() -> Elicit[Guests]:
    return Elicit("How many guests, and which table?", Guests)


async def ask_model() -> Sample:
    said = types.SamplingMessage(role="user", content=types.TextContent(text="A word for tea?"))
    return Sample([said], max_tokens=20, system_prompt="One word.")


def build() -> MCPServer[Any]:
    server = MCPServer("library", log_level="CRITICAL")
    _add_questions(server)
    notes = {"tea": "Buy tea."}

    @server.resource("notes://tea", mime_type="text/plain")
    def tea() -> str:
        """What to buy."""
        return notes["tea"]

    @server.resource("notes://{name}")
    def note(name: str) -> str:
        """Any note."""
        return f"A note about {name}."

    @server.resource("pictures://pixel", mime_type="image/png")
    def pixel() -> bytes:
        return base64.b64decode(PIXEL)

    @server.prompt()
    def review(file: str, tone: str = "friendly") -> list[Any]:
        """Review a file."""
        return [
            {"role": "user", "content": {"type": "text", "text": f"Review {file}, and be {tone}."}},
            {"role": "assistant", "content": {"type": "text", "text": "Show it to me."}},
            {"role": "user", "content": {"type": "text", "text": "print(1)"}},
            {"role": "user", "content": {"type": "image", "data": PIXEL, "mimeType": "image/png"}},
        ]

    @server.tool()
    async def change(context: Context) -> str:
        """Change a note, and add a resource and a prompt."""
        notes["tea"] = "Buy coffee."
        await context.notify_resource_updated("notes://tea")
        await context.notify_resources_changed()
        await context.notify_prompts_changed()
        return "changed"

    return server


def _add_questions(server: MCPServer[Any]) -> None:
    @server.tool()
    async def book(day: str, guests: Annotated[ElicitationResult[Guests], Resolve(ask_guests)]) -> str:
        """Book a table."""
        return f"{day}: {guests.action} {getattr(guests, 'data', None)!r}"

    @server.tool()
    async def name_it(word: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
        """Let the client's model find a word."""
        return f"{word.content.text} ({word.model})"  # type: ignore[union-attr]

    @server.tool()
    async def pay(context: Context) -> Any:
        """Let the user pay on a page."""
        page = "https://pay.example/1"
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if not context.input_responses:
                params = types.ElicitRequestURLParams(message="Please pay.", url=page)
                return types.InputRequiredResult(input_requests={"page": types.ElicitRequest(params=params)})
            return f"pay: {context.input_responses['page'].action}"  # type: ignore[union-attr]
        return f"pay: {(await context.elicit_url('Please pay.', page, 'e1')).action}"

    @server.tool()
    async def rest(seconds: float) -> str:
        """Take a while, without a question."""
        await asyncio.sleep(seconds)
        return "rested"


def without_newer_protocols(app: ASGIApp) -> ASGIApp:
    """Over HTTP: a server that does not know how to be discovered."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        asked = json.loads(await request.body())
        if asked.get("method") == "server/discover":
            error = {"code": types.METHOD_NOT_FOUND, "message": "Method not found"}
            answer = JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            await answer(scope, receive, send)
            return
        body = iter([{"type": "http.request", "body": await request.body()}])

        async def again() -> Message:
            return next(body, None) or await receive()

        await app(scope, again, send)

    return serve


async def _serve_older(server: MCPServer[Any]) -> None:
    inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - the only way to it
    async with stdio_server() as (reading, writing), inner.lifespan(inner) as state:
        await serve_loop(inner, reading, writing, lifespan_state=state)


if __name__ == "__main__":
    if "OLDER" in os.environ:
        asyncio.run(_serve_older(build()))
    else:
        build().run()
