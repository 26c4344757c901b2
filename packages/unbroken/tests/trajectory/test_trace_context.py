"""A trace is propagated with requests: as headers over HTTP, in `_meta` to an MCP server. And nowhere else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from yarl import URL

from unbroken import Agent, MCPServer, ScriptedModel, User, connect, tool
from unbroken.errors import Unavailable
from unbroken.models.model import CARRIED, Model
from unbroken.trajectory.otel import OpenTelemetry
from unbroken_testing import Break, Call, Fail, Say, ScriptedServer
from unbroken_wires.messages import Request

MCP_PROGRAM = """
import json, sys
schema = {"type": "object", "properties": {}}
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "meta", "version": "1"}
        case "tools/list":
            result = {"tools": [{"name": "meta", "inputSchema": schema}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": json.dumps(message["params"].get("_meta"))}]}
        case _:
            if "id" in message:
                error = {"code": -32601, "message": "Method not found"}
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
"""An MCP server whose one tool returns the `_meta` of its call."""


class Watched:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.sink = OpenTelemetry(self.tracers)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def parents_told(self, name: str) -> list[str]:
        """The trace context of each span with this name."""
        return [traceparent(span.context) for span in self.spans(name) if span.context is not None]


def traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def model_of(server: ScriptedServer) -> Model:
    return connect("openai:gpt-5", base_url=f"{server.url}/v1", api_key="sk-of-the-test")


def told(server: ScriptedServer) -> list[str | None]:
    return [headers.get("traceparent") for headers in server.headers]


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


def test_a_provider_gets_the_trace_of_its_request() -> None:
    watched = Watched()

    async def main() -> ScriptedServer:
        async with ScriptedServer([Call("look")], "Done.") as server:
            await Agent(model_of(server), [look], sinks=[watched.sink]).run("Go.")
            return server

    server = asyncio.run(main())
    assert told(server) == watched.parents_told("chat gpt-5")
    assert len(set(told(server))) == 2
    addresses = [(span.attributes or {})["server.address"] for span in watched.spans("chat gpt-5")]
    ports = [(span.attributes or {})["server.port"] for span in watched.spans("chat gpt-5")]
    assert (addresses, ports) == (["127.0.0.1"] * 2, [URL(server.url).port] * 2)


def test_every_attempt_at_an_answer_belongs_to_one_request() -> None:
    watched = Watched()

    async def main() -> ScriptedServer:
        refused = Fail(Unavailable("busy", status=503, retry_after=0))
        async with ScriptedServer(refused, [Say("Half an"), Break()], "Half an answer.") as server:
            await Agent(model_of(server), sinks=[watched.sink]).run("Go.")
            return server

    server = asyncio.run(main())
    (one,) = watched.parents_told("chat gpt-5")
    assert told(server) == [one] * 3
    (span,) = watched.spans("chat gpt-5")
    assert [event.name for event in span.events] == ["unbroken.request_retried"] * 2


def test_the_complete_context_is_propagated() -> None:
    watched = Watched()
    above = SpanContext(0xABC, 0xDEF, True, TraceFlags(1), TraceState([("vendor", "value")]))

    async def main() -> ScriptedServer:
        async with ScriptedServer("Done.") as server:
            outside = baggage.set_baggage("tenant", "7", trace.set_span_in_context(NonRecordingSpan(above)))
            token = context.attach(outside)
            try:
                await Agent(model_of(server), sinks=[watched.sink]).run("Go.")
            finally:
                context.detach(token)
            return server

    (headers,) = asyncio.run(main()).headers
    assert headers["traceparent"].split("-")[1] == f"{0xABC:032x}"
    assert (headers["tracestate"], headers["baggage"]) == ("vendor=value", "tenant=7")


def test_the_reader_of_an_answer_is_not_in_its_span() -> None:
    watched, seen = Watched(), list[object]()

    def outside(event: object) -> None:
        seen.append((CARRIED.get(), trace.get_current_span() is trace.INVALID_SPAN))

    asyncio.run(Agent(ScriptedModel([Call("look")], "Done."), [look], sinks=[watched.sink]).run("Go.", sinks=[outside]))
    assert len(seen) > 5
    assert set(seen) == {(None, True)}


def test_a_model_that_a_tool_uses_itself_gets_the_trace_of_the_call() -> None:
    watched = Watched()

    async def main() -> ScriptedServer:
        async with ScriptedServer("Inside.") as server:
            inner = model_of(server)

            @tool(effect="read")
            async def asks() -> str:
                """Ask a model."""
                async for _ in inner.stream(Request((User.of("Hello?"),))):
                    pass
                return "asked"

            await Agent(ScriptedModel([Call("asks")], "Done."), [asks], sinks=[watched.sink]).run("Go.")
            return server

    server = asyncio.run(main())
    assert told(server) == watched.parents_told("execute_tool asks")


def test_without_a_trace_nothing_is_propagated() -> None:
    async def main() -> ScriptedServer:
        async with ScriptedServer([Call("look")], "Done.") as server:
            await Agent(model_of(server), [look]).run("Go.")
            return server

    server = asyncio.run(main())
    assert [name for headers in server.headers for name in headers if name.startswith("trace")] == []
    assert told(server) == [None, None]


def meta_of(tmp_path: Path, *sinks: Any) -> dict[str, Any]:
    program = tmp_path / "server.py"
    program.write_text(MCP_PROGRAM, "utf-8")

    async def main() -> Any:
        server = MCPServer([sys.executable, str(program)])
        result = await Agent(ScriptedModel([Call("meta")], "Done."), [server], sinks=sinks).run("Go.")
        return json.loads(result.calls[0].result.text) or {}

    return asyncio.run(main())


def test_an_mcp_server_gets_the_trace_of_the_call(tmp_path: Path) -> None:
    watched = Watched()
    meta = meta_of(tmp_path, watched.sink)
    assert [meta["traceparent"]] == watched.parents_told("execute_tool meta")


def test_without_a_trace_an_mcp_server_gets_none(tmp_path: Path) -> None:
    assert "traceparent" not in meta_of(tmp_path)
