"""The OpenAPI description is valid, and the gateway behaves as described."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import jsonschema
import pytest
from aiohttp import ClientSession

from unbroken_gateway.admin.openapi import openapi
from unbroken_gateway.http.uvicorn_server import running
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/responses": {"model": "demo", "input": "Hello"},
    "/v1/responses/compact": {"model": "demo", "input": [{"role": "user", "content": "Hello"}]},
    "/v1/responses/input_tokens": {"model": "demo", "input": "Hello"},
    "/v1/messages": {"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/messages/count_tokens": {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]},
    "/v1beta/models/{model}:generateContent": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "/v1beta/models/{model}:streamGenerateContent": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "/v1beta/models/{model}:countTokens": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "/api/chat": {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": False},
    "/v2/chat": {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]},
    "/model/{model}/converse": {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]},
    "/model/{model}/converse-stream": {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]},
}


def references(value: object) -> list[str]:
    if isinstance(value, dict):
        found = cast("dict[str, object]", value)
        own = [reference] if isinstance(reference := found.get("$ref"), str) else []
        return own + [each for inner in found.values() for each in references(inner)]
    if isinstance(value, list):
        return [each for inner in cast("list[object]", value) for each in references(inner)]
    return []


def validate(described: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    """References in the schema point into the description, so both are in one document."""
    jsonschema.Draft202012Validator({**described, **schema}).validate(value)  # pyright: ignore[reportUnknownMemberType] - untyped


def test_every_reference_is_valid() -> None:
    described = openapi()
    for reference in references(described):
        place: Any = described
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_every_schema_is_valid_and_used() -> None:
    described = openapi()
    used = set(references(described))
    for name, schema in described["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert f"#/components/schemas/{name}" in used


def test_every_request_is_tested_below() -> None:
    asked = {path for path, methods in openapi()["paths"].items() if "post" in methods}
    assert asked == set(ASKED)


def test_known_models_are_named() -> None:
    assert openapi(["a", "b"])["components"]["schemas"]["Model"]["enum"] == ["a", "b"]
    assert "enum" not in openapi()["components"]["schemas"]["Model"]


def test_the_gateway_answers_as_it_is_described() -> None:
    described = openapi()

    def check(path: str, method: str, status: int, media: str, body: bytes) -> None:
        response = described["paths"][path][method]["responses"][str(status)]
        assert media in response["content"], f"{method} {path}: {status} {media}"
        if media == "application/json":
            schema = response["content"][media]["schema"]
            validate(described, schema, json.loads(body))

    async def ask(url: str) -> None:
        async with ClientSession(url) as session:
            for path, body in ASKED.items():
                where = path.replace("{model}", "demo")
                nobody = {"model": "nobody"} if "model" in body else {}
                elsewhere = path.replace("{model}", "nobody")
                for at, sent, expected in (
                    (where, body, 200),
                    (where, {}, 400),
                    (elsewhere, {**body, **nobody}, 404),
                ):
                    async with session.post(at, json=sent) as answer:
                        assert answer.status == expected, f"{at}: {await answer.text()}"
                        check(path, "post", answer.status, answer.content_type, await answer.read())
            async with session.post("/v1/responses", json=ASKED["/v1/responses"]) as answer:
                stored = (await answer.json())["id"]
            methods = [(path, method) for path, known in described["paths"].items() for method in known]
            for path, method in sorted(methods, key=lambda each: each[1] == "delete"):
                if method in ("get", "delete"):
                    async with session.request(method, path.replace("{id}", stored)) as answer:
                        assert answer.status == 200, path
                        check(path, method, 200, answer.content_type, await answer.read())
            async with session.get(f"/v1/responses/{stored}") as answer:
                check("/v1/responses/{id}", "get", answer.status, answer.content_type, await answer.read())

    settings = GatewaySettings(upstreams=(UpstreamSettings("demo", "demo"),), port=0, store="memory:")
    with running(settings) as url:
        asyncio.run(ask(url))


@pytest.mark.parametrize("path", sorted(ASKED))
def test_requests_match_their_schema(path: str) -> None:
    described = openapi(["demo"])
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validate(described, schema, ASKED[path])
