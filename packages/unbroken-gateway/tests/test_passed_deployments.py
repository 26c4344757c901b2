"""Requests that are passed through, for an alias with several deployments or with a `*`: which deployment gets them,
and what their answers report."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import run, serving, settings_for
from gateway_upstreams import Asked, Told, Upstream, telling

from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.relay.references import MODEL_PATHS
from unbroken_gateway.settings import DeploymentSettings, GatewaySettings, UpstreamSettings

Object = dict[str, Any]
MANY = ("POST /v1/files", "GET /v1/files/*", "POST /v1/responses", "POST /v1/batches")


def vector(name: str) -> Told:
    headers = {"x-request-id": f"req_{name}", "x-ratelimit-remaining-requests": "7", "set-cookie": "a=secret"}
    return Told(json.dumps({"object": "list", "from": name}).encode(), headers=headers)


def deployed(*servers: Upstream, alias: str = "m", model: str = "", **more: Any) -> GatewaySettings:
    deployments = tuple(
        DeploymentSettings(
            model or f"openai-responses:model-{name}",
            name=name,
            base_url=f"{server.url}/v1",
            wire="openai-responses",
            priority=at,
        )
        for at, (name, server) in enumerate(zip(("east", "west"), servers, strict=True), 1)
    )
    upstream = UpstreamSettings(alias, deployments[0].model, deployments=deployments)
    return settings_for(upstream, passes=(*MODEL_PATHS, *MANY), **more)


async def embed(session: aiohttp.ClientSession, model: str = "m", **more: Any) -> tuple[int, Object, Any]:
    async with session.post("/v1/embeddings", json={"model": model, "input": "Hello", **more}) as answer:
        return answer.status, await answer.json(), answer.headers


@asynccontextmanager
async def two(east: Told, west: Told, **more: Any) -> AsyncGenerator[tuple[Upstream, Upstream, aiohttp.ClientSession]]:
    async with (
        telling(east) as first,
        telling(west) as second,
        serving(deployed(first, second, **more)) as url,
        aiohttp.ClientSession(url) as session,
    ):
        yield first, second, session


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Told(b'{"error": {"message": "slow down"}}', 429, {"Retry-After": "40"}), "limited"),
        (Told(b'{"error": {"message": "bad key sk-secret"}}', 401), "refused"),
        (Told(b"<html>", 502), "unavailable"),
        (Told(b'{"object"', cut=True), "unreachable"),
    ],
    ids=["limited", "wrong key", "unavailable", "broken off"],
)
def test_another_deployment_answers_at_once_and_the_failed_one_is_left_alone(failure: Told, kind: str) -> None:
    async def story() -> None:
        async with two(failure, vector("west")) as (first, second, session):
            status, body, headers = await embed(session)
            assert (status, body["from"]) == (200, "west")
            assert headers["x-unbroken-upstream"] == "west"
            assert headers["x-unbroken-failed"] == kind
            assert headers["x-request-id"] == "req_west"
            assert headers["x-ratelimit-remaining-requests"] == "7"
            assert "set-cookie" not in headers
            assert first.asked[0].body["model"] == "model-east"
            assert second.asked[0].body["model"] == "model-west"
            for _ in range(2 if kind in ("unavailable", "unreachable") else 0):
                await embed(session)
            before = len(first.asked)
            assert (await embed(session))[1]["from"] == "west"
            assert len(first.asked) == before, "it is cooling"
            async with session.get("/status.json") as answer:
                (model,) = (await answer.json())["status"]["upstreams"]
            east, west = model["deployments"]
            assert east["failures"] == before
            assert east["cooling"] > 0
            assert (west["requests"], west["failures"], west["busy"]) == (len(second.asked), 0, 0)
            async with session.get("/metrics") as answer:
                page = await answer.text()
            labels, counted = 'alias="m",deployment="east"', "broken" if kind == "unreachable" else kind
            for line in (
                f"unbroken_deployment_requests_total{{{labels}}} {before}.0",
                f'unbroken_deployment_failures_total{{{labels},kind="{counted}"}} {before}.0',
                f"unbroken_deployment_cooldowns_total{{{labels}}} 1.0",
                f"unbroken_deployment_requests_in_flight{{{labels}}} 0.0",
                f'unbroken_deployment_first_byte_seconds_count{{alias="m",deployment="west"}} {len(second.asked)}.0',
            ):
                assert line in page.splitlines(), line
            async with session.get("/") as answer:
                shown = await answer.text()
            assert "<h2>Deployments</h2>" in shown
            assert shown.index("cooling down") < shown.index("in use")

    run(story)


def test_an_answer_that_has_begun_is_not_made_up_of_two() -> None:
    async def story() -> None:
        async with two(Told([b"RIFF", b"more"], cut=True), vector("west")) as (_, second, session):
            async with session.post("/v1/audio/speech", json={"model": "m", "input": "Hello"}) as answer:
                assert answer.headers["x-unbroken-upstream"] == "east"
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()
            assert second.asked == []

    run(story)


def test_a_refused_request_is_not_sent_to_another_deployment_and_the_last_failure_is_passed_on() -> None:
    async def story() -> None:
        async with two(Told(b'{"error": {"message": "no input"}}', 400), vector("west")) as (_, second, session):
            status, body, headers = await embed(session)
            assert (status, body) == (400, {"error": {"message": "no input"}})
            assert headers["x-unbroken-upstream"] == "east"
            assert second.asked == []
        async with two(Told(b"{}", 503), Told(b'{"error": {"message": "busy"}}', 529)) as (_, _, session):
            status, body, headers = await embed(session)
            assert (status, body["error"]["message"]) == (529, "busy")
            assert headers["x-unbroken-failed"] == "unavailable"

    run(story)


def test_a_name_that_fits_a_wildcard_is_passed_through_with_its_own_part() -> None:
    async def story() -> None:
        settings = {"alias": "embed-*", "model": "openai-responses:text-*"}
        async with two(vector("east"), vector("west"), **settings) as (first, _, session):
            status, _, headers = await embed(session, "embed-3-large")
            assert (status, headers["x-unbroken-upstream"]) == (200, "east")
            assert first.asked[0].body["model"] == "text-3-large"
            assert (await embed(session, "other"))[0] == 404
            async with session.get("/metrics") as answer:
                page = await answer.text()
            assert 'unbroken_requests_total{alias="embed-*",client="passed"' in page
            assert 'unbroken_deployment_requests_total{alias="embed-*",deployment="east"} 1.0' in page
            assert "embed-3-large" not in page

    run(story)


def made(asked: Asked) -> Told:
    if asked.path.endswith("/files"):
        return Told(b'{"object": "file", "id": "file-abc123def"}')
    container = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_abc123def", "status": "completed"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    return Told(json.dumps({"id": "resp_1abcdef", "object": "response", "output": [container, said]}).encode())


@pytest.mark.parametrize("keys", [False, True])
def test_what_a_deployment_holds_is_used_there_and_nowhere_else(keys: bool, tmp_path: Path) -> None:
    """The container is made at `west`, because `east` is limited at that moment."""
    turns = {"limited": True}

    def east(asked: Asked) -> Told:
        return Told(b"{}", 429) if turns["limited"] and asked.path.endswith("/responses") else made(asked)

    async def story() -> None:
        file = tmp_path / "keys"
        secret = create_key(file, GatewayKey("ann")) if keys else "-"
        async with telling(east) as first, telling(made) as second:
            settings = deployed(first, second, keys=keys, keys_file=str(file))
            headers = {"Authorization": f"Bearer {secret}"}
            async with serving(settings) as url, aiohttp.ClientSession(url, headers=headers) as session:

                async def post(path: str, **body: Any) -> str:
                    async with session.post(path, json=body) as answer:
                        assert answer.status == 200, await answer.text()
                        return answer.headers["x-unbroken-upstream"]

                assert await post("/v1/responses", model="m", input="Hello.") == "west"
                tool: Object = {"type": "code_interpreter", "container": {"type": "auto"}}
                assert await post("/v1/responses", model="m", input="Count.", tools=[tool], store=False) == "west"
                turns["limited"] = False
                again = {**tool, "container": "cntr_abc123def"}
                assert await post("/v1/responses", model="m", input="Again.", tools=[again], store=False) == "west"
                assert await post("/v1/files", purpose="batch") == "east", "things are created at the first one"
                assert await post("/v1/batches", input_file_id="file-abc123def") == "east"
                assert [asked.path for asked in second.asked] == ["/v1/responses"] * 3
                if keys:
                    stranger = {"Authorization": f"Bearer {create_key(file, GatewayKey('bob'))}"}
                    body = {"model": "m", "input": "Mine?", "tools": [again]}
                    async with session.post("/v1/responses", json=body, headers=stranger) as answer:
                        assert answer.status in (401, 404)

    run(story)
