"""What a client, a log and an operator can find out about one request: its id, who answered, what failed before."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_client import Client, run, serving, settings_for, upstream_settings
from multidict import CIMultiDict

from unbroken.errors import RateLimited, Unavailable
from unbroken.logs import JsonLines, PlainLines
from unbroken_gateway.settings import DeploymentSettings, GatewaySettings, UpstreamSettings
from unbroken_testing import Fail, Say, ScriptedServer, Uses
from unbroken_wires.messages import User
from unbroken_wires.wires import WIRES

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ID = "x-unbroken-request-id"


@STREAMED
@pytest.mark.parametrize("wire", WIRES)
def test_every_answer_has_an_id_of_its_own_and_names_the_model_that_gave_it(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with (
            ScriptedServer("Hello.", loop_last=True) as server,
            serving(settings_for(upstream_settings(server, wire))) as url,
        ):
            replies = [await Client(url, wire, stream, parallel=None).ask(User.of("Hello?")) for _ in range(2)]
            ids = {reply.headers[ID] for reply in replies}
            assert len(ids) == 2
            for reply in replies:
                assert reply.headers["x-unbroken-upstream"].endswith(":big-model")
                assert "x-unbroken-failed" not in reply.headers

    run(story)


def test_errors_and_pages_have_an_id_too() -> None:
    async def story() -> None:
        async with (
            ScriptedServer("Hello.", loop_last=True) as server,
            serving(settings_for(upstream_settings(server, "openai-chat"))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            for path in ("/healthz", "/v1/models", "/nothing", "/v1/files"):
                async with session.get(path) as answer:
                    assert len(answer.headers[ID]) == 16, path
            async with session.post("/v1/chat/completions", data=b"{") as answer:
                assert answer.status == 400
                assert len(answer.headers[ID]) == 16

    run(story)


@STREAMED
def test_the_deployment_that_answered_and_the_failures_before_it_are_named(stream: bool) -> None:
    async def story() -> None:
        limited = Fail(RateLimited("slow down", status=429, retry_after=40.0))
        async with (
            ScriptedServer(limited, loop_last=True) as one,
            ScriptedServer("Hello.", loop_last=True) as two,
            serving(pair(one, two)) as url,
        ):
            reply = await Client(url, "openai-chat", stream, parallel=None).ask(User.of("Hello?"))
            assert reply.headers["x-unbroken-upstream"] == "west"
            assert reply.headers["x-unbroken-failed"] == "limited"

    run(story)


def pair(one: ScriptedServer, two: ScriptedServer) -> GatewaySettings:
    deployments = tuple(
        DeploymentSettings(
            "openai-chat:m", name=name, base_url=server.base_url("openai-chat"), wire="openai-chat", priority=at
        )
        for at, (name, server) in enumerate((("east", one), ("west", two)), 1)
    )
    return settings_for(UpstreamSettings("m", "openai-chat:m", deployments=deployments))


SENT = {
    "x-request-id": "req_of_the_provider",
    "x-ratelimit-remaining-tokens": "1234",
    "anthropic-ratelimit-requests-limit": "50",
    "set-cookie": "session=secret",
    "server": "nginx",
}


@pytest.mark.parametrize("status", [200, 400])
def test_the_providers_id_and_limits_are_passed_on_and_nothing_else_of_its_head(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        message: dict[str, Any] = {"role": "assistant", "content": "Hello."}
        body = {"id": "x", "object": "chat.completion", "choices": [{"message": message, "finish_reason": "stop"}]}
        return web.json_response(body if status == 200 else {"error": {"message": "no"}}, status=status, headers=SENT)

    async def story() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            alias = UpstreamSettings("m", "openai-chat:m", base_url=f"http://{host}:{port}/v1", wire="openai-chat")
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, "openai-chat", parallel=None).ask(User.of("Hello?"))
            assert reply.status == status
            headers = CIMultiDict(reply.headers)
            for name in ("x-request-id", "x-ratelimit-remaining-tokens", "anthropic-ratelimit-requests-limit"):
                assert headers[name] == SENT[name]
            assert "set-cookie" not in headers
            assert headers.get("server") != "nginx"
        finally:
            await runner.cleanup()

    run(story)


@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
def test_log_lines_of_a_request_end_with_its_id(as_json: bool) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines() if as_json else PlainLines("%(message)s"))
    log = logging.getLogger("unbroken.gateway")
    log.addHandler(handler)

    async def story() -> str:
        async with (
            ScriptedServer(Fail(Unavailable("broken", status=500)), loop_last=True) as server,
            serving(settings_for(upstream_settings(server, "openai-chat", options={"attempts": 1}))) as url,
        ):
            reply = await Client(url, "openai-chat", parallel=None).ask(User.of("Hello?"))
            assert reply.status == 500
            return reply.headers[ID]

    try:
        id = run(story)
    finally:
        log.removeHandler(handler)
    (line,) = [line for line in written.getvalue().splitlines() if "a model failed" in line]
    if as_json:
        fields = json.loads(line)
        assert (fields["request"], fields["level"], fields["alias"], fields["key"]) == (id, "warning", "m", None)
    else:
        assert line.endswith(f" [{id}]")


@pytest.mark.parametrize("share", [None, 0.0, 1.0])
def test_requests_are_logged_all_of_them_or_only_those_that_failed(share: float | None) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    log = logging.getLogger("unbroken.gateway")
    log.addHandler(handler)
    log.setLevel("INFO")

    async def story() -> None:
        async with (
            ScriptedServer([Say("Hello."), Uses(7, 3)], loop_last=True) as server,
            serving(
                settings_for(
                    upstream_settings(server, "openai-chat"), access_log=share is not None, access_share=share or 0.0
                )
            ) as url,
        ):
            for model in ("m", "nothing"):
                await Client(url, "openai-chat", parallel=None, model=model).ask(User.of("Hello?"))

    try:
        run(story)
    finally:
        log.removeHandler(handler)
        log.setLevel("NOTSET")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    logged = [line for line in lines if line.get("event") == "request"]
    assert [line["status"] for line in logged] == ([] if share is None else [200, 404] if share else [404])
    if share:
        first = logged[0]
        assert (first["alias"], first["client"], first["input"], first["output"]) == ("m", "openai-chat", 7, 3)
        assert first["upstream"] == "openai-chat:big-model"
        assert first["failed"] is None
        assert isinstance(first["seconds"], float)
        assert len(first["request"]) == 16
