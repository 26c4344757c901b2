"""Spans and metrics of runs, with a real SDK: every span, parent, time and attribute; no content."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from hidden_packages import run_without
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from unbroken import Agent, Allow, ChainBroken, Limits, RetryingModel, ScriptedModel, Wait, tool
from unbroken.errors import RateLimited, Unauthorized
from unbroken.trajectory.metrics import Metrics
from unbroken.trajectory.otel import OpenTelemetry
from unbroken.trajectory.otel.names import json_text
from unbroken_testing import Break, Call, Fail, Pause, Say, Uses, run_virtual

START = int(a_long_run.START) * 10**9


class Watched:
    """A separate telemetry, and what it received."""

    def __init__(self, content: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self.sink = OpenTelemetry(self.tracers, MeterProvider([self._reader]), content)

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def parents(self) -> dict[str, str]:
        """For each span name, the name of its parent."""
        names = {id_of(span): span.name for span in self.spans()}
        return {span.name: names.get(span.parent.span_id, "elsewhere") if span.parent else "" for span in self.spans()}

    def numbers(self) -> dict[tuple[str, ...], Any]:
        """For each metric and its attributes, the count, or (for a histogram) how many and their sum."""
        found: dict[tuple[str, ...], Any] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for metric in [metric for scope in resource.scope_metrics for metric in scope.metrics]:
                for point in metric.data.data_points:
                    about = [str(value) for _, value in sorted((point.attributes or {}).items())]
                    number: Any = point
                    value = number.value if hasattr(number, "value") else (number.count, round(number.sum, 6))
                    found[(metric.name, *about)] = value
        return found


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def times(span: ReadableSpan) -> tuple[float, float]:
    """In seconds of the virtual clock: it has whole microseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - START) / 1e9, (span.end_time - START) / 1e9


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def noted(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    def named(event: Event) -> dict[str, Any]:
        return {name.removeprefix("unbroken."): value for name, value in (event.attributes or {}).items()}

    return [(event.name.removeprefix("unbroken."), named(event)) for event in span.events]


def play(agent: Agent, prompt: str = "Go.", **options: Any) -> Any:
    return run_virtual(lambda: agent.run(prompt, run_id="r", **options), a_long_run.START)


# The long run


def test_every_span_of_the_long_run_has_its_place_time_and_attributes() -> None:
    watched = Watched()
    a_long_run.play(sinks=[watched.sink])
    whose = {"unbroken.run.id": "the-long-run", "gen_ai.agent.name": "main"}
    asked = {"gen_ai.provider.name": "scripted", "gen_ai.request.model": "demo"}
    docs = {each.name: each.spec.description for each in a_long_run.TOOLS}

    def chat(turn: int, start: float, end: float, finish: str, used: tuple[int, int]) -> Any:
        numbers = {"gen_ai.usage.input_tokens": used[0], "gen_ai.usage.output_tokens": used[1]}
        told = {"gen_ai.response.finish_reasons": (finish,), "gen_ai.response.time_to_first_chunk": 0.0}
        ours = {"gen_ai.operation.name": "chat", "unbroken.turn": turn}
        return "chat demo", SpanKind.CLIENT, start, end, whose | asked | numbers | told | ours

    def call(
        number: int, start: float, end: float, name: str, id: str, seconds: float, outcome: str = "done", **more: Any
    ) -> Any:
        turn = int(id[len("call_r")])
        told = {"gen_ai.tool.name": name, "gen_ai.tool.call.id": id, "gen_ai.tool.type": "function"}
        told |= {"gen_ai.tool.description": docs[name], "gen_ai.operation.name": "execute_tool", "unbroken.turn": turn}
        told |= {"unbroken.call.seconds": seconds, "unbroken.call.outcome": outcome, "unbroken.call.number": number}
        told |= {("error.type" if key == "error" else f"unbroken.call.{key}"): value for key, value in more.items()}
        return f"execute_tool {name}", SpanKind.INTERNAL, start, end, whose | told

    ended = {
        "gen_ai.operation.name": "invoke_agent",
        "unbroken.run.stop_reason": "answered",
        "unbroken.run.rounds": 3,
        "unbroken.run.requests": 4,
        "unbroken.run.attempts": 5,
        "unbroken.run.calls": 8,
        "unbroken.run.complete": True,
        "unbroken.run.cut_off": False,
        "gen_ai.usage.input_tokens": 1213,  # what the broken answer used is estimated
        "gen_ai.usage.output_tokens": 150,
        "unbroken.usage.estimated": True,
    }
    assert [(span.name, span.kind, *times(span), about(span)) for span in watched.spans()] == [
        chat(0, 0.0, 0.6, "tool_calls", (100, 20)),
        call(0, 0.3, 0.8, "weather", "call_r0c0", 0.5, early=True),
        call(1, 0.8, 0.8, "weather", "call_r0c1", 0.0, duplicate_of="call_r0c0"),
        call(2, 0.6, 2.1, "events_on", "call_r0c2", 1.5, early=True),
        chat(1, 2.1, 2.7, "tool_calls", (200, 30)),
        call(6, 2.7, 3.2, "weather", "call_r1c2", 0.5, early=True),
        call(5, 2.7, 3.7, "map_of", "call_r1c1", 1.0, "timed_out", early=True, error="timeout"),
        call(4, 2.3, 3.8, "events_on", "call_r1c0", 1.5, early=True, adopted=3),
        chat(2, 3.8, 3.8, "tool_calls", (300, 40)),
        call(7, 3.8, 4.05, "book", "call_r2c0", 0.25, early=False),
        call(8, 3.8, 4.05, "book", "call_r2c1", 0.25, early=False),
        chat(3, 4.05, 4.55, "stop", (400, 50)),
        ("invoke_agent main", SpanKind.INTERNAL, 0.0, 4.55, whose | asked | ended),
    ]
    run = watched.span("invoke_agent main")
    assert run.parent is None
    assert {span.parent.span_id for span in watched.spans() if span.parent is not None} == {id_of(run)}
    failed = [span.name for span in watched.spans() if span.status.status_code is StatusCode.ERROR]
    assert failed == ["execute_tool map_of"]
    told = {"turn": 1, "attempt": 1, "kind": "lost", "reason": "the connection was lost", "wait": 0.0}
    told |= {"model": "scripted:demo", "elsewhere": False}
    events = [(span.name, times(span), noted(span)) for span in watched.spans() if span.events]
    assert events == [("chat demo", (2.1, 2.7), [("request_retried", told)])]


def test_every_metric_of_the_long_run_is_right() -> None:
    watched = Watched()
    a_long_run.play(sinks=[watched.sink])
    chat = ("chat", "scripted", "demo")
    assert watched.numbers() == {
        ("gen_ai.client.operation.duration", *chat): (4, 1.7),
        ("gen_ai.client.operation.time_to_first_chunk", *chat): (4, 0.0),
        ("gen_ai.client.token.usage", *chat, "input"): (4, 1000),
        ("gen_ai.client.token.usage", *chat, "output"): (4, 140),
        ("unbroken.run.duration", "main", "answered"): (1, 4.55),
        ("unbroken.run.rounds", "main"): (1, 3),
        ("unbroken.restarts", "main", "lost"): 1,
        ("unbroken.tool.calls", "main", "weather"): 3,
        ("unbroken.tool.calls", "main", "events_on"): 2,
        ("unbroken.tool.calls", "main", "map_of"): 1,
        ("unbroken.tool.calls", "main", "book"): 2,
        ("unbroken.tool.failures", "timeout", "main", "map_of"): 1,
        ("unbroken.tool.duration", "main", "weather"): (2, 1.0),
        ("unbroken.tool.duration", "main", "events_on"): (2, 3.0),
        ("unbroken.tool.duration", "timeout", "main", "map_of"): (1, 1.0),
        ("unbroken.tool.duration", "main", "book"): (2, 0.5),
        ("unbroken.early.saved", "main", "weather"): 0.3,
        ("unbroken.early.saved", "main", "events_on"): 0.4,
    }


def shape(watched: Watched) -> list[Any]:
    """All of its spans, but for their ids."""
    spans = [(span.name, span.kind, times(span), about(span), noted(span)) for span in watched.spans()]
    return sorted(spans, key=lambda span: (span[2], span[3].get("gen_ai.tool.call.id", "")))


def test_a_recording_is_the_same_next_to_a_trace_and_its_replay_gives_the_same_trace(tmp_path: Path) -> None:
    first, again = Watched(), Watched()
    a_long_run.play(tmp_path / "alone.jsonl")
    a_long_run.play(tmp_path / "traced.jsonl", sinks=[first.sink])
    assert (tmp_path / "traced.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    a_long_run.agent(sinks=[again.sink]).replay(tmp_path / "alone.jsonl")
    assert shape(again) == shape(first)


class Collector(BaseHTTPRequestHandler):
    """Where the real exporters send to: keeps what came, by path."""

    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Generator[tuple[str, list[tuple[str, bytes]]]]:
    bodies: list[tuple[str, bytes]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Collector,), {"bodies": bodies}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_long_run_arrives_at_a_collector_over_otlp() -> None:
    with collecting() as (url, bodies):
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"), 60_000)
        meters = MeterProvider([reader])
        a_long_run.play(sinks=[OpenTelemetry(tracers, meters)])
        tracers.shutdown()
        meters.shutdown()
    came = [ExportTraceServiceRequest.FromString(body) for path, body in bodies if path == "/v1/traces"]
    scopes = [scope for each in came for resource in each.resource_spans for scope in resource.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    assert {scope.scope.name for scope in scopes} == {"unbroken"}
    assert [span.name for span in spans].count("chat demo") == 4
    assert sum(span.name.startswith("execute_tool ") for span in spans) == 8
    run = spans[-1]
    assert (run.name, run.end_time_unix_nano - run.start_time_unix_nano) == ("invoke_agent main", 4_550_000_000)
    assert {span.parent_span_id for span in spans[:-1]} == {run.span_id}
    (measured,) = [ExportMetricsServiceRequest.FromString(body) for path, body in bodies if path == "/v1/metrics"]
    metrics = measured.resource_metrics[0].scope_metrics[0].metrics
    (calls,) = [metric for metric in metrics if metric.name == "unbroken.tool.calls"]
    assert sum(point.as_int for point in calls.sum.data_points) == 8


# Content


def everything(watched: Watched) -> str:
    return json.dumps([json.loads(span.to_json()) for span in watched.spans()]) + repr(watched.numbers())


@tool(effect="read")
async def look_up(what: str) -> str:
    """Look something up."""
    if what == "wrong":
        raise ValueError("the words of the failure")
    return f"the words of the result: {what}"


def talk(watched: Watched, model: ScriptedModel | None = None) -> Any:
    said = [
        Say("the words of a thought"),
        Call("look_up", what="the words of the arguments"),
        Call("look_up", what="wrong"),
    ]
    agent = Agent(
        model or ScriptedModel(said, "the words of the answer"),
        [look_up],
        instructions="the words of the system",
        sinks=[watched.sink],
    )
    return play(agent, "the words of the prompt")


def test_no_content_is_exported_by_default() -> None:
    watched = Watched()
    talk(watched)
    assert len(watched.spans()) == 5
    assert "the words of" not in everything(watched)


def test_content_is_exported_on_request() -> None:
    watched = Watched(content=True)
    talk(watched)
    first, _ = [about(span) for span in watched.spans() if span.name.startswith("chat")]
    assert json.loads(first["gen_ai.system_instructions"])[0]["content"].startswith("the words of the system")
    user = {"role": "user", "parts": [{"type": "text", "content": "the words of the prompt"}]}
    assert json.loads(first["gen_ai.input.messages"]) == [user]
    (defined,) = json.loads(first["gen_ai.tool.definitions"])
    assert (defined["type"], defined["name"], defined["parameters"]["required"]) == ("function", "look_up", ["what"])
    (answer,) = json.loads(first["gen_ai.output.messages"])
    assert (answer["role"], answer["finish_reason"]) == ("assistant", "tool_calls")
    arguments = {"what": "the words of the arguments"}
    assert answer["parts"][:2] == [
        {"type": "text", "content": "the words of a thought"},
        {"type": "tool_call", "id": "call_r0c0", "name": "look_up", "arguments": arguments},
    ]
    (last,) = [about(span) for span in watched.spans() if span.name.startswith("chat")][1:]
    results = json.loads(last["gen_ai.input.messages"])[-1]
    assert (results["role"], results["parts"][0]["type"]) == ("tool", "tool_call_response")
    assert results["parts"][0]["response"] == "the words of the result: the words of the arguments"
    good, bad = [span for span in watched.spans() if span.name == "execute_tool look_up"]
    assert json.loads(about(good)["gen_ai.tool.call.arguments"]) == arguments
    assert about(good)["gen_ai.tool.call.result"] == "the words of the result: the words of the arguments"
    assert bad.status.description == "Error: the words of the failure"
    run = about(watched.span("invoke_agent main"))
    assert json.loads(run["gen_ai.input.messages"]) == [user]
    said = {"role": "assistant", "parts": [{"type": "text", "content": "the words of the answer"}]}
    assert json.loads(run["gen_ai.output.messages"]) == [said | {"finish_reason": "answered"}]


def test_secrets_in_content_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "sw-4711-0815-abcdef")
    watched = Watched(content=True)
    talk(watched, ScriptedModel([Call("look_up", what="sw-4711-0815-abcdef")], "It is sw-4711-0815-abcdef."))
    assert "sw-4711-0815-abcdef" not in everything(watched)


def test_half_a_surrogate_pair_can_be_sent() -> None:
    watched = Watched(content=True)
    talk(watched, ScriptedModel([Call("look_up", r'{"what": "\ud83d"}')], "Done."))
    (span,) = [span for span in watched.spans() if span.name == "execute_tool look_up"]
    about(span)["gen_ai.tool.call.result"].encode()
    about(watched.span("invoke_agent main"))["gen_ai.input.messages"].encode()


# Failures


def test_a_failed_run_has_the_reason() -> None:
    watched = Watched()
    agent = Agent(ScriptedModel(Fail(Unauthorized("the key is wrong"))), sinks=[watched.sink])
    with pytest.raises(Unauthorized):
        play(agent)
    for name in ("chat demo", "invoke_agent main"):
        span = watched.span(name)
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "the key is wrong")
        assert about(span)["error.type"] == "Unauthorized"
    assert watched.numbers() == {
        ("gen_ai.client.operation.duration", "Unauthorized", "chat", "scripted", "demo"): (1, 0.0),
        ("unbroken.run.duration", "Unauthorized", "main"): (1, 0.0),
    }


def test_a_response_that_broke_off_permanently_is_an_error() -> None:
    watched = Watched()
    agent = Agent(ScriptedModel([Say("Half"), Break("the line is dead")]), sinks=[watched.sink])
    with pytest.raises(ChainBroken):
        play(agent)
    assert about(watched.span("chat demo"))["error.type"] == "lost"
    assert about(watched.span("invoke_agent main"))["error.type"] == "ChainBroken"


def test_a_cancelled_run_leaves_no_span_open() -> None:
    watched = Watched()

    @tool(effect="read")
    async def waits() -> str:
        await asyncio.sleep(60)
        return "never"

    model = ScriptedModel([Call("waits"), Pause(30), Call("waits")])
    agent = Agent(model, [waits], sinks=[watched.sink])

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await agent.run("Go.")

    run_virtual(main, a_long_run.START)
    assert {span.name: (times(span), about(span)["error.type"]) for span in watched.spans()} == {
        "chat demo": ((0.0, 2.0), "CancelledError"),
        "execute_tool waits": ((0.0, 2.0), "cancelled"),
        "invoke_agent main": ((0.0, 2.0), "CancelledError"),
    }
    assert watched.spans()[-1].name == "invoke_agent main"


def test_a_call_that_is_refused_has_a_span_without_length() -> None:
    watched = Watched()
    play(Agent(ScriptedModel([Call("made_up_17")], "Done."), [look_up], sinks=[watched.sink]))
    span = watched.span("execute_tool made_up_17")
    assert times(span) == (0.0, 0.0)
    assert (about(span)["error.type"], about(span)["unbroken.call.outcome"]) == ("not_executed", "not_executed")
    counted = {key: value for key, value in watched.numbers().items() if key[0].startswith("unbroken.tool")}
    # A model may invent any number of names; none of them becomes a separate series.
    assert counted == {("unbroken.tool.calls", "main", "_OTHER"): 1}


def test_a_call_of_a_broken_response_is_not_mistaken_for_one_with_the_same_id() -> None:
    """Both have the id `call_r0c0`; only the second is in the history."""
    watched = Watched()

    @tool(effect="read")
    async def wait_for(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    model = ScriptedModel(
        [Call("wait_for", seconds=5), Pause(1), Break()],
        [Call("wait_for", seconds=3)],
        "Done.",
    )
    play(Agent(RetryingModel(model), [wait_for], sinks=[watched.sink]))
    dropped, kept = [span for span in watched.spans() if span.name == "execute_tool wait_for"]
    assert (times(dropped), about(dropped)["unbroken.call.dropped"]) == ((0.0, 1.0), True)
    assert about(dropped)["error.type"] == "cancelled"
    assert (times(kept), "error.type" in about(kept)) == ((1.0, 4.0), False)


def test_an_adopted_call_ended_when_its_tool_did() -> None:
    """It ended while it was unknown which call would adopt it: between the break and the end of the retry."""
    watched = Watched()

    @tool(effect="read")
    async def takes_two() -> str:
        await asyncio.sleep(2)
        return "done"

    model = ScriptedModel([Call("takes_two"), Pause(1), Break()], [Call("takes_two"), Pause(5)], "Done.")
    play(Agent(RetryingModel(model), [takes_two], sinks=[watched.sink]))
    span = watched.span("execute_tool takes_two")
    assert times(span) == (0.0, 2.0)
    assert (about(span)["unbroken.call.number"], about(span)["unbroken.call.adopted"]) == (1, 0)
    assert watched.numbers()[("unbroken.early.saved", "main", "takes_two")] == 2.0
    assert watched.numbers()[("unbroken.tool.calls", "main", "takes_two")] == 1


def test_a_dropped_call_saved_nothing() -> None:
    watched = Watched()
    model = ScriptedModel([Call("look_up", what="a"), Pause(1), Break()], [Pause(1), Say("Never mind.")])
    play(Agent(RetryingModel(model), [look_up], sinks=[watched.sink]))
    assert times(watched.span("execute_tool look_up")) == (0.0, 0.0)
    assert [key for key in watched.numbers() if key[0] == "unbroken.early.saved"] == []


def test_a_value_that_is_not_json_does_not_end_a_run() -> None:
    assert json_text({"a": object()}).startswith("(this cannot be written: ")


def test_a_fallback_model_is_named() -> None:
    watched = Watched()
    first = ScriptedModel([Uses(7, 0), Break()], name="openai:first")
    model = RetryingModel(first, attempts=1, fallback=[ScriptedModel(["Hello.", Uses(5, 1)], name="mistral:second")])
    play(Agent(model, sinks=[watched.sink]))
    told = about(watched.span("chat first"))
    assert (told["gen_ai.provider.name"], told["gen_ai.response.model"]) == ("openai", "second")
    ((name, event),) = noted(watched.span("chat first"))
    assert (name, event["elsewhere"], event["model"]) == ("request_retried", True, "openai:first")


# Events


def test_repairs_and_cuts_are_noted() -> None:
    watched = Watched()
    model = ScriptedModel(
        [Say("One thing."), Break()],
        [Say("Another."), Call("look_up", what="a"), Call("look_up", what="b")],
        "Done.",
    )
    limits = Limits(rounds=1)
    play(Agent(RetryingModel(model), [look_up], sinks=[watched.sink], several_calls=False, limits=limits))
    assert noted(watched.span("invoke_agent main")) == [
        ("text_replaced", {"turn": 0, "length": 8}),
        ("calls_ignored", {"turn": 0, "names": ("look_up",)}),
        ("limit_reached", {"turn": 0, "kind": "round_limit", "limit": 1}),
    ]


def test_a_thread_that_exceeds_its_time_is_noted_on_its_call() -> None:
    watched, go_on = Watched(), threading.Event()

    @tool(effect="read", timeout=0.2)
    def hangs() -> str:
        go_on.wait(5)
        return "late"

    agent = Agent(ScriptedModel([Call("hangs")], "Done."), [hangs], sinks=[watched.sink])
    asyncio.run(agent.run("Go."))
    go_on.set()
    ((name, event),) = noted(watched.span("execute_tool hangs"))
    assert (name, event["name"], event["seconds"]) == ("tool_late", "hangs", 0.2)


def test_a_run_that_waits_is_counted_when_it_has_ended() -> None:
    watched = Watched()

    @tool(effect="write", approve=True)
    async def pay() -> str:
        return "paid"

    agent = Agent(ScriptedModel([Call("pay")], "Done."), [pay], sinks=[watched.sink], on_approval=lambda call: Wait())

    async def main() -> None:
        waiting = await agent.run("Go.")
        assert ("unbroken.run.rounds", "main") not in watched.numbers()
        await agent.resume(waiting, {waiting.pending[0].id: Allow()})

    run_virtual(main, a_long_run.START)
    first, second = [span for span in watched.spans() if span.name == "invoke_agent main"]
    assert noted(first) == [("approval_asked", {"turn": 0, "name": "pay", "call_id": "call_r0c0"})]
    assert about(first)["unbroken.run.stop_reason"] == "waiting"
    assert about(second)["unbroken.run.goes_on"] is True
    assert watched.numbers()[("unbroken.run.rounds", "main")] == (1, 1)
    assert watched.numbers()[("unbroken.tool.calls", "main", "pay")] == 1


# Parents


def test_a_run_is_a_child_of_the_span_that_awaits_it() -> None:
    watched = Watched()
    tracer = watched.tracers.get_tracer("test")
    agent = Agent(ScriptedModel("Hello.", loop_last=True), sinks=[watched.sink])

    async def main() -> None:
        with tracer.start_as_current_span("awaited"):
            await agent.run("Go.")
        with tracer.start_as_current_span("streamed") as streamed:
            async for _ in agent.stream("Go."):
                assert trace.get_current_span() is streamed

    asyncio.run(main())
    with tracer.start_as_current_span("synchronous"):
        agent.run_sync("Go.")
    names = {id_of(span): span.name for span in watched.spans()}
    runs = [span for span in watched.spans() if span.name == "invoke_agent main"]
    assert [names[span.parent.span_id] for span in runs if span.parent] == ["awaited", "streamed", "synchronous"]


def test_what_a_tool_does_is_a_child_of_its_call() -> None:
    watched = Watched()
    tracer = watched.tracers.get_tracer("test")

    @tool(effect="read")
    async def awaits() -> str:
        with tracer.start_as_current_span("in the loop"):
            await asyncio.sleep(0)
        return "done"

    @tool(effect="read")
    def blocks() -> str:
        with tracer.start_as_current_span("in a thread"):
            time.sleep(0.001)
        return "done"

    inner = Agent(ScriptedModel([Call("awaits")], "Found."), [awaits], name="inner", sinks=[watched.sink])
    outer = Agent(
        ScriptedModel([Call("blocks"), Call("ask", task="Look.")], "Done."),
        [blocks, inner.as_tool("ask", "Asks another.")],
        name="outer",
        sinks=[watched.sink],
    )
    asyncio.run(outer.run("Go."))
    assert watched.parents() == {
        "invoke_agent outer": "",
        "chat demo": "invoke_agent outer",
        "execute_tool blocks": "invoke_agent outer",
        "in a thread": "execute_tool blocks",
        "execute_tool ask": "invoke_agent outer",
        "invoke_agent inner": "execute_tool ask",
        "execute_tool awaits": "invoke_agent inner",
        "in the loop": "execute_tool awaits",
    }


def test_without_configured_providers_nothing_happens() -> None:
    result = a_long_run.play(sinks=[OpenTelemetry()])
    assert result.stop_reason == "answered"


# Without the package


def python(*lines: str) -> str:
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_is_loaded_only_when_it_is_used() -> None:
    seen = python(
        "import sys",
        "import unbroken",
        "from unbroken.trajectory.otel import OpenTelemetry",
        "print('opentelemetry' in sys.modules)",
        "OpenTelemetry()",
        "print('opentelemetry' in sys.modules)",
    )
    assert seen.split() == ["False", "True"]


def test_without_the_package_the_extra_is_named() -> None:
    done = run_without("opentelemetry", "from unbroken.trajectory.otel import OpenTelemetry; OpenTelemetry()")
    assert done.stderr.splitlines()[-1] == (
        "unbroken_wires.errors.UserError: OpenTelemetry() needs the package opentelemetry-api: "
        "pip install 'unbroken[otel]' (in a checkout: pip install ./packages/* 'unbroken[otel]')"
    )


def test_its_repr_describes_it() -> None:
    assert repr(OpenTelemetry(content=True)) == "OpenTelemetry(content=True)"


def test_a_request_that_got_no_answer_is_not_a_restart() -> None:
    watched = Watched()
    model = ScriptedModel(Fail(RateLimited("slow down")), "Done.")
    play(Agent(RetryingModel(model), [look_up], sinks=[watched.sink]))
    assert [key for key in watched.numbers() if key[0] == "unbroken.restarts"] == []


def test_calls_and_failures_are_counted_like_in_metrics() -> None:
    """One is dropped with its response, one that had ended before its response broke is adopted, two fail together."""
    watched, metrics = Watched(), Metrics()

    @tool(effect="read")
    async def wait_for(seconds: float) -> str:
        await asyncio.sleep(seconds)
        if seconds == 0.2:
            raise ValueError("it fails")
        return "done"

    model = ScriptedModel(
        [Call("wait_for", seconds=5), Call("wait_for", seconds=0.1), Pause(1), Break()],
        [Pause(1), Call("wait_for", seconds=0.1), Pause(1)],
        [Call("wait_for", seconds=0.2), Call("wait_for", seconds=0.2)],
        "Done.",
    )
    play(Agent(RetryingModel(model), [wait_for], sinks=[watched.sink, metrics]))
    counted = {key[0]: value for key, value in watched.numbers().items() if key[0] != "unbroken.tool.duration"}
    assert counted["unbroken.tool.calls"] == metrics.tool_calls == 3
    assert counted["unbroken.tool.failures"] == metrics.tool_failures == 1
    assert counted["unbroken.early.saved"] == metrics.early_seconds_saved == 0.1


def test_a_sink_of_the_agent_and_of_the_run_creates_each_span_once() -> None:
    watched = Watched()
    agent = Agent(ScriptedModel("Done."), sinks=[watched.sink])
    run_virtual(lambda: agent.run("Go.", sinks=[watched.sink]))
    assert sorted(span.name.split()[0] for span in watched.spans()) == ["chat", "invoke_agent"]
