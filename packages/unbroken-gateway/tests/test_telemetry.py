"""OpenTelemetry of the gateway, with the real SDK and its OTLP exporter to a server of the tests."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest
from gateway_client import THREE_CALLS, Client, result_of, run, serving, settings_for, upstream_settings
from gateway_upstreams import Told, telling
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from unbroken.errors import RateLimited, RequestRefused
from unbroken_gateway.settings import DeploymentSettings, UpstreamSettings
from unbroken_gateway.telemetry import GatewayTelemetry
from unbroken_testing import Fail, Say, ScriptedServer, Uses
from unbroken_wires.messages import ToolMessage, User

WIRE = "openai-chat"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
SERVER, CLIENT = 2, 3


class Collector:
    """What an OTLP server received."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.metrics: dict[str, list[Any]] = {}

    def take(self, path: str, data: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                self.resources.append(values(resource.resource.attributes))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                for metric in [metric for scope in resource.scope_metrics for metric in scope.metrics]:
                    self.metrics[metric.name] = list(metric.histogram.data_points)

    def of_kind(self, kind: int) -> list[Any]:
        return sorted((span for span in self.spans if span.kind == kind), key=lambda span: span.start_time_unix_nano)


def values(attributes: Any) -> dict[str, Any]:
    def value(one: Any) -> Any:
        kind = one.WhichOneof("value")
        return [value(each) for each in one.array_value.values] if kind == "array_value" else getattr(one, kind)

    return {each.key: value(each.value) for each in attributes}


@contextmanager
def collecting() -> Generator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def deployed(*servers: ScriptedServer) -> UpstreamSettings:
    deployments = tuple(
        DeploymentSettings(
            f"openai-chat:model-{name}", name=name, base_url=server.base_url(WIRE), wire=WIRE, priority=at
        )
        for at, (name, server) in enumerate(zip(("east", "west"), servers, strict=True), 1)
    )
    return UpstreamSettings("m", "openai-chat:m", deployments=deployments)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_is_a_server_span_of_the_clients_trace_with_a_client_span_for_each_attempt(stream: bool) -> None:
    async def story(collector: Collector) -> list[Any]:
        limited = Fail(RateLimited("slow down", status=429, retry_after=40.0))
        async with (
            ScriptedServer(limited, loop_last=True) as one,
            ScriptedServer([Say("Hello."), Uses(100, 20, cached=30)], loop_last=True) as two,
            serving(settings_for(deployed(one, two), telemetry=True, telemetry_endpoint=collector.url)) as url,
        ):
            client = Client(url, WIRE, stream, parallel=None, headers={**PARENT, "user-agent": "tester/1"})
            reply = await client.ask(User.of("A secret question?"))
            assert reply.response.text == "Hello."
            return [reply.headers["x-unbroken-request-id"], *two.headers]

    with collecting() as collector:
        id, sent = run(lambda: story(collector))
        (server,) = collector.of_kind(SERVER)
        east, west = collector.of_kind(CLIENT)
        assert {span.trace_id.hex() for span in (server, east, west)} == {TRACE}
        assert server.parent_span_id.hex() == "00f067aa0ba902b7"
        assert {east.parent_span_id, west.parent_span_id} == {server.span_id}
        about = values(server.attributes)
        assert server.name == "POST /v1/chat/completions"
        assert about["http.response.status_code"] == 200
        assert about["unbroken.request.id"] == id
        assert (about["gen_ai.request.model"], about["gen_ai.response.model"]) == ("m", "model-west")
        assert about["user_agent.original"] == "tester/1"
        first, second = values(east.attributes), values(west.attributes)
        assert east.name == "chat model-east"
        assert (first["unbroken.deployment"], first["unbroken.attempt"], first["error.type"]) == ("east", 1, "limited")
        assert east.status.code == 2
        assert (second["unbroken.deployment"], second["unbroken.attempt"]) == ("west", 2)
        assert second["gen_ai.usage.input_tokens"] == 100
        assert second["gen_ai.usage.output_tokens"] == 20
        assert second["gen_ai.usage.cache_read.input_tokens"] == 30
        assert second["gen_ai.response.finish_reasons"] == ["stop"]
        assert second["gen_ai.operation.name"] == "chat"
        assert second["gen_ai.provider.name"] == "openai-chat"
        assert "error.type" not in second
        assert "traceparent" not in sent
        assert not any("secret question" in str(span) for span in collector.spans), "content is off"
        assert collector.resources[0]["service.name"] == "unbroken-gateway"
        durations = collector.metrics["gen_ai.client.operation.duration"]
        assert {values(point.attributes).get("error.type") for point in durations} == {"limited", None}
        tokens = {
            values(point.attributes)["gen_ai.token.type"]: point.sum
            for point in collector.metrics["gen_ai.client.token.usage"]
        }
        assert tokens == {"input": 100, "output": 20}
        (served,) = collector.metrics["gen_ai.server.request.duration"]
        assert values(served.attributes)["gen_ai.request.model"] == "m"
        assert collector.metrics["gen_ai.server.time_to_first_token"][0].count == 1


def test_the_requests_of_one_turn_are_linked_and_content_is_exported_masked_if_switched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-value")

    async def story(collector: Collector) -> list[Any]:
        more: dict[str, Any] = {"telemetry_content": True, "telemetry_propagate": True}
        async with (
            ScriptedServer(THREE_CALLS, "Done.", loop_last=True) as server,
            serving(
                settings_for(upstream_settings(server, WIRE), telemetry=True, telemetry_endpoint=collector.url, **more)
            ) as url,
        ):
            client = Client(url, WIRE)
            reply = await client.ask(User.of("How is it with sk-very-secret-value?"))
            while reply.response.calls:
                reply = await client.ask(ToolMessage(tuple(map(result_of, reply.response.calls))))
            assert reply.response.text == "Done."
            return server.headers

    with collecting() as collector:
        sent = run(lambda: story(collector))
        requests = collector.of_kind(SERVER)
        asked, answered = collector.of_kind(CLIENT)
        first, *later = requests
        assert len(requests) == 4
        assert [event.name for span in requests for event in span.events] == [
            "unbroken.calls_held",
            "unbroken.call_released",
            "unbroken.call_released",
        ]
        sessions = {values(span.attributes)["unbroken.turn.session"] for span in requests[:3]}
        assert len(sessions) == 1
        assert [[link.span_id for link in span.links] for span in later] == [[first.span_id]] * 3
        about = values(asked.attributes)
        assert "How is it with ***?" in about["gen_ai.input.messages"]
        assert "get_weather" in about["gen_ai.tool.definitions"]
        assert "Guangzhou" in about["gen_ai.output.messages"], "all calls, though one was released"
        assert "Done." in values(answered.attributes)["gen_ai.output.messages"]
        assert not any("sk-very-secret-value" in str(span) for span in collector.spans)
        assert sent[0]["traceparent"].startswith(f"00-{asked.trace_id.hex()}-{asked.span_id.hex()}-")


def test_requests_that_are_passed_through_and_refused_ones_have_spans_too() -> None:
    async def story(collector: Collector) -> None:
        async with (
            telling(Told(b'{"object": "list"}')) as upstream,
            serving(settings_for(upstream.settings(WIRE), telemetry=True, telemetry_endpoint=collector.url)) as url,
            aiohttp.ClientSession(url) as session,
        ):
            for path, status in (("/v1/embeddings", 200), ("/v1/files/file-abc123def", 403)):
                async with session.post(path, json={"model": "m", "input": "Hello"}) as answer:
                    assert answer.status == status

    with collecting() as collector:
        run(lambda: story(collector))
        served, refused = collector.of_kind(SERVER)
        (asked,) = collector.of_kind(CLIENT)
        assert asked.parent_span_id == served.span_id
        assert asked.name == "embeddings big-model"
        assert values(asked.attributes)["http.response.status_code"] == 200
        assert refused.name == "POST /v1/files/{id}"
        assert values(refused.attributes)["http.response.status_code"] == 403
        assert refused.status.code == 0, "a mistake of the client is no error of the server"


def test_an_impossible_report_of_usage_is_not_exported(caplog: pytest.LogCaptureFixture) -> None:
    async def story(collector: Collector) -> None:
        most = 2**62
        wrong = [[Say("Hello."), usage] for usage in (Uses(-5, 1), Uses(most, most))]
        async with (
            ScriptedServer(*wrong) as server,
            serving(
                settings_for(upstream_settings(server, WIRE), telemetry=True, telemetry_endpoint=collector.url)
            ) as url,
        ):
            for _ in wrong:
                assert (await Client(url, WIRE, parallel=None, tools=()).ask(User.of("Hi"))).status == 200

    with collecting() as collector:
        run(lambda: story(collector))
        spans = collector.of_kind(CLIENT)
        assert len(spans) == 2
        assert not any(name.startswith("gen_ai.usage") for span in spans for name in values(span.attributes))
        assert "gen_ai.client.token.usage" not in collector.metrics
        assert not caplog.records


def test_the_variables_of_opentelemetry_switch_it_on_and_nothing_is_imported_when_it_is_off() -> None:
    code = (
        "import sys; from unbroken_gateway import Gateway, GatewaySettings, UpstreamSettings;"
        "Gateway(GatewaySettings((UpstreamSettings('demo', 'demo'),), store='memory:'));"
        "print([name for name in sys.modules if name.startswith('opentelemetry')][:1])"
    )

    async def imported(**variables: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=subprocess.PIPE, env={**clean, **variables}
        )
        return (await process.communicate())[0].decode().strip()

    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}

    async def story() -> None:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_METRICS_EXPORTER": "none"}
        off, on, disabled = await asyncio.gather(
            imported(), imported(**where), imported(**where, OTEL_SDK_DISABLED="true")
        )
        assert (off, disabled) == ("[]", "[]")
        assert on == "['opentelemetry']"

    run(story)


def test_the_text_of_an_error_in_which_a_provider_quotes_a_prompt_is_content() -> None:
    quoted = Fail(RequestRefused("this is not allowed: 'my diary'", status=400))

    async def spans(content: bool) -> list[Any]:
        with collecting() as collector:
            more: dict[str, Any] = {"telemetry_endpoint": collector.url, "telemetry_content": content}
            async with (
                ScriptedServer([quoted]) as server,
                serving(settings_for(upstream_settings(server, WIRE), telemetry=True, **more)) as url,
            ):
                client = Client(url, WIRE, parallel=None, tools=())
                assert (await client.ask(User.of("my diary"))).status == 400
            return collector.spans

    async def story() -> None:
        without = await spans(content=False)
        assert [values(span.attributes)["error.type"] for span in without] == ["refused", "refused"]
        assert "my diary" not in str(without)
        assert "this is not allowed" in str(await spans(content=True))

    run(story)


def test_a_collector_that_hangs_delays_neither_a_request_nor_the_end_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it accepts, and never answers
        endpoint = f"http://127.0.0.1:{hanging.getsockname()[1]}"

        async def story() -> None:
            async with ScriptedServer("Hello.") as server:
                settings = settings_for(upstream_settings(server, WIRE), telemetry=True, telemetry_endpoint=endpoint)
                async with serving(settings) as url:
                    assert (await Client(url, WIRE, parallel=None, tools=()).ask(User.of("Hi"))).status == 200
                telemetry = GatewayTelemetry(settings, longest_end=0.05)
                telemetry.shared.measure("gen_ai.server.request.duration", 1.0, {})
                await telemetry.aclose()

        run(story)
        assert "unbroken-telemetry" in {thread.name for thread in threading.enumerate()}, "the exporter is waited for"
