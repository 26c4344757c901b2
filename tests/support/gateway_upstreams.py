"""For the tests of the gateway: an upstream that sends exactly the given bytes and keeps exactly the bytes it was sent,
and answers of the four wires with what only their own wire knows."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from gateway_client import PROVIDERS

from unbroken_gateway.settings import UpstreamSettings

Object = dict[str, Any]

FIELDS = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic-messages": "messages",
    "gemini": "contents",
    "ollama": "messages",
    "cohere-v2": "messages",
    "bedrock-converse": "messages",
}
"""The field of the messages."""


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True, slots=True)
class Told:
    """One answer. Chunks are written separately; `cut` loses the connection instead of an end."""

    data: bytes | Sequence[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False


@dataclass(slots=True)
class Upstream:
    url: str = ""
    asked: list[Asked] = field(default_factory=list[Asked])
    answers: list[Told | Callable[[Asked], Told]] = field(default_factory=list[Told | Callable[[Asked], Told]])
    """The next answer for each request; the last is repeated."""

    def settings(self, wire: str, alias: str = "m", **more: Any) -> UpstreamSettings:
        base = f"{self.url}/v1" if wire.startswith("openai") else self.url
        options = {"attempts": 1, **more.pop("options", {})}
        return UpstreamSettings(
            alias, f"{PROVIDERS[wire]}:big-model", base_url=base, wire=wire, options=options, **more
        )


def events(*said: Object, named: bool = False, done: bool = False) -> bytes:
    """Server-sent events; `named` as in Anthropic's and the Responses API, `done` as at the end of Chat Completions."""
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in said]
    return "".join([*lines, "data: [DONE]\n\n" * done]).encode()


@asynccontextmanager
async def telling(*answers: Told | Callable[[Asked], Told]) -> AsyncGenerator[Upstream]:
    upstream = Upstream(answers=list(answers))

    async def answer(http: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in http.headers.items()}
        upstream.asked.append(Asked(http.method, http.path, http.rel_url.raw_query_string, headers, await http.read()))
        told = upstream.answers[min(len(upstream.asked), len(upstream.answers)) - 1]
        told = told(upstream.asked[-1]) if callable(told) else told
        chunks = [told.data] if isinstance(told.data, bytes) else told.data
        stream = chunks and chunks[0].startswith((b"data:", b"event:", b":"))
        kind = {"Content-Type": "text/event-stream" if stream else "application/json"}
        response = web.StreamResponse(status=told.status, headers={**kind, **told.headers})
        await response.prepare(http)
        for chunk in chunks:
            await response.write(chunk)
        if told.cut and http.transport is not None:
            http.transport.close()
        return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    upstream.url = f"http://{host}:{port}"
    try:
        yield upstream
    finally:
        await runner.cleanup()
