"""Tools that the provider runs, on every screen of a run: text, the viewer, OpenTelemetry, the UI message stream."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from unbroken import Agent, OpenTelemetry, ScriptedModel
from unbroken.agent.ui_messages import ui_messages
from unbroken.events import Event
from unbroken.trajectory.recording import read_recording
from unbroken_cli.plain import PlainScreen
from unbroken_testing import ProviderCall
from unbroken_viewer.picture import draw
from unbroken_wires.server_tools import WebSearch

QUERY = {"query": "tides"}


def played(**options: Any) -> list[Event]:
    events: list[Event] = []
    steps = [
        ProviderCall("web_search", QUERY, "High tide at noon"),
        ProviderCall("web_search", QUERY, error="max_uses_exceeded"),
        "At noon.",
    ]
    model = ScriptedModel(steps, wire="anthropic-messages")
    Agent(model, [WebSearch()], sinks=[events.append], **options).run_sync("When is high tide?")
    return events


def test_the_plain_screen_has_a_line_for_each() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = PlainScreen(out, err)
    for event in played():
        screen.show(event)
    lines = [line for line in err.getvalue().splitlines() if line.startswith("provider:")]
    assert len(lines) == 2
    assert "tides" in lines[0]
    assert lines[0].endswith("done")
    assert lines[1].endswith("failed: max_uses_exceeded")


def test_opentelemetry_has_a_span_for_each() -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    played(middleware=[OpenTelemetry(tracers)])
    spans = [span for span in exporter.get_finished_spans() if span.name == "execute_tool web_search"]
    assert [span.status.is_ok for span in spans] == [True, False]
    assert all((span.attributes or {})["unbroken.tool.by_provider"] for span in spans)


def test_the_viewer_shows_them_at_their_turn(tmp_path: Path) -> None:
    played(record=tmp_path)
    picture = draw(read_recording(next(tmp_path.glob("*.jsonl"))))
    assert picture.turns[0].provider_calls == ["web_search(tides) done", "web_search(tides) max_uses_exceeded"]


def test_a_ui_message_stream_has_them_as_data_and_not_as_calls_of_the_client() -> None:
    async def chunks() -> list[str]:
        model = ScriptedModel([ProviderCall("web_search", QUERY, "Noon"), "At noon."], wire="anthropic-messages")
        return [chunk async for chunk in ui_messages(Agent(model, [WebSearch()]).stream("When?"))]

    sent = "".join(map(str, asyncio.run(chunks())))
    assert sent.count("data-server-call") == 2
    assert "tool-input" not in sent
