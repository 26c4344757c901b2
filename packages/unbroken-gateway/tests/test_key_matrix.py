"""Every key with every method and path: what is not listed for it is refused, and never reaches a provider.

Two tenants, each with its own model on its own server. What is allowed is written down here a second time, by hand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from gateway_client import messages_of, run, serving, settings_for
from gateway_upstreams import Asked, Told, Upstream, telling

from unbroken_gateway.app import Gateway
from unbroken_gateway.keys import GatewayKey, create_key, revoke_key
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.settings import GatewaySettings

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
MODEL_PATHS = (
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/completions",
    "/v1/rerank",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
FORBIDDEN = (
    "/v1/files",
    "/v1/files/file-abc123def",
    "/v1/files/file-abc123def/content",
    "/v1/uploads",
    "/v1/batches",
    "/v1/batches/batch_abc123def/cancel",
    "/v1/fine_tuning/jobs",
    "/v1/fine_tuning/jobs/ftjob-abc123/cancel",
    "/v1/organization/users",
    "/v1/organization/admin_api_keys",
    "/v1/organization/projects/proj_1/api_keys",
    "/v1/vector_stores",
    "/v1/vector_stores/vs_abc123def/files",
    "/v1/assistants",
    "/v1/threads/thread_abc123/runs",
    "/v1/responses/resp_abc123def",
    "/v1/responses/resp_abc123def/cancel",
    "/v1/responses/resp_abc123def/input_items",
    "/v1/conversations",
    "/v1/conversations/conv_abc123/items",
    "/v1/containers/cntr_abc123/files",
    "/v1/chat/completions/chatcmpl-abc123",
    "/v1/realtime/sessions",
    "/v1/videos",
    "/v1/skills",
    "/v1/evals",
    "/v1/messages/batches",
    "/v1/credits",
    "/v1/keys",
    "/v1/generation",
    "/v1/anything",
)
TRICKS = (
    "/v1//embeddings",
    "/v1/embeddings/",
    "/v1/Embeddings",
    "/V1/embeddings",
    "/v1/embeddings;x=1",
    "/v1/embeddings%2f..%2ffiles",
    "/v1/embeddings/../files",
    "/v1/embeddings/%2e%2e/files",
    "/v1/embeddings/.%2e/files",
    "/v1/./files",
    "/v1/%2e/files",
    "/v1/embeddings%252f..%252ffiles",
    "/v1/embeddings%00",
    "/v1/embeddings%0d%0aX:1",
    "/v1/embeddings%5c..%5cfiles",
    "/v1/files%3f",
    "/v1/embeddings%23/files",
)
BODIES: Mapping[str, Any] = {
    "own": {"model": "acme", "input": "x"},
    "other": {"model": "globex", "input": "x"},
    "real name": {"model": "big-model", "input": "x"},
    "none": {"input": "x"},
    "more models": {"model": "acme", "models": ["openai/gpt-5-pro"], "input": "x"},
    "nested": {"model": "acme", "extra_body": {"route": "fallback", "models": ["x"]}, "input": "x"},
}
LISTED = ("GET /v1/files", "POST /v1/files", "DELETE /v1/files/*")


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    secret: str
    aliases: tuple[str, ...] = ()
    lists: bool = False
    """It may pass the requests in `LISTED`, and nothing else."""


def callers(file: Path) -> list[Caller]:
    def make(name: str, *aliases: str, passes: tuple[str, ...] | None = None) -> Caller:
        rules = None if passes is None else tuple(map(read_rule, passes))
        return Caller(name, create_key(file, GatewayKey(name, aliases, passes=rules)), aliases, passes is not None)

    revoked = make("revoked")
    revoke_key(file, "revoked")
    return [
        Caller("nobody", ""),
        Caller("guess", "ub-" + "x" * 43),
        Caller("revoked", revoked.secret),
        make("acme", "acme"),
        make("globex", "globex"),
        make("both"),
        make("lister", "acme", passes=LISTED),
    ]


def expected(caller: Caller, method: str, path: str, body: str) -> str:
    """The tenant whose provider gets the request, or nothing."""
    if caller.name in ("nobody", "guess", "revoked") or path in TRICKS:
        return ""
    if caller.lists:
        harmless = body in ("own", "none")
        return "acme" if harmless and f"{method} {path}" in ("GET /v1/files", "POST /v1/files") else ""
    if method != "POST" or path not in MODEL_PATHS:
        return ""
    asked = {"own": "acme", "other": "globex", "more models": "acme", "nested": "acme"}.get(body, "")
    if body in ("more models", "nested") and caller.aliases:
        return ""
    return asked if not caller.aliases or asked in caller.aliases else ""


def cases(who: list[Caller]) -> Iterator[tuple[Caller, str, str, str]]:
    for caller, method, path in product(who, METHODS, (*MODEL_PATHS, *FORBIDDEN, *TRICKS)):
        for body in BODIES if method == "POST" else ("own", "none"):
            yield caller, method, path, body


@asynccontextmanager
async def tenants(file: Path) -> AsyncGenerator[tuple[GatewaySettings, dict[str, Upstream]]]:
    async with telling(answered) as acme, telling(answered) as globex:
        rows = (acme.settings("openai-chat", "acme"), globex.settings("openai-responses", "globex"))
        yield settings_for(*rows, keys=True, keys_file=str(file)), {"acme": acme, "globex": globex}


def answered(asked: Asked) -> Told:
    return Told(json.dumps({"object": "list", "path": asked.path}).encode())


async def call(gateway: Gateway, method: str, target: str, secret: str, body: Any) -> int:
    data = json.dumps(body).encode()
    headers = [
        (b"authorization", f"Bearer {secret}".encode()),
        (b"content-type", b"application/json"),
        (b"x-http-method-override", b"DELETE"),
        (b"openai-organization", b"org-other"),
        (b"openai-project", b"proj-other"),
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(target),
        "raw_path": target.encode(),
        "query_string": b"",
        "headers": headers[0 if secret else 1 :],
    }
    sent = await messages_of(gateway, scope, data)
    return sent[0]["status"]


def test_requests_that_are_not_listed_for_a_key_are_refused_and_reach_no_provider(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    who = callers(file)

    async def story() -> int:
        tried = 0
        async with tenants(file) as (settings, servers):
            gateway = Gateway(settings)
            for caller, method, path, body in cases(who):
                tried += 1
                status = await call(gateway, method, path, caller.secret, BODIES[body])
                reached = {name: server.asked[:] for name, server in servers.items() if server.asked}
                for server in servers.values():
                    server.asked.clear()
                tenant, case = expected(caller, method, path, body), (caller.name, method, path, body, status)
                if not tenant:
                    assert 400 <= status < 500, case
                    assert reached == {}, case
                    continue
                assert status == 200, case
                assert list(reached) == [tenant], case
                (asked,) = reached[tenant]
                assert (asked.method, asked.path) == (method, path), case
                assert not {"openai-organization", "openai-project", "x-http-method-override"} & asked.headers.keys()
                assert json.loads(asked.data).get("model") in ("big-model", None)
            await gateway.aclose()
        return tried

    assert run(story) > 4000


@pytest.mark.parametrize("override", ["x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url"])
def test_over_real_http_no_trick_in_path_or_header_reaches_a_provider(tmp_path: Path, override: str) -> None:
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("acme", ("acme",)))

    async def story() -> None:
        async with tenants(file) as (settings, servers), serving(settings) as url:
            host, port = url.removeprefix("http://").split(":")
            for method, path in product(
                ("GET", "POST", "DELETE"), (*TRICKS, *FORBIDDEN[:8], "/v1/files?x=/v1/embeddings")
            ):
                body = json.dumps(BODIES["own"]).encode()
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
                head += f"{override}: /v1/files\r\nContent-Type: application/json\r\nConnection: close\r\n"
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.read()
                writer.close()
                assert answer.split(b" ")[1][:1] == b"4", (method, path, answer)
            assert [server.asked for server in servers.values()] == [[], []]
            async with (
                aiohttp.ClientSession(
                    url, headers={"Authorization": f"Bearer {secret}", override: "DELETE"}
                ) as session,
                session.post("/v1/embeddings", json=BODIES["own"]) as answer,
            ):
                assert answer.status == 200
            assert [asked.method for asked in servers["acme"].asked] == ["POST"]
            assert override not in servers["acme"].asked[0].headers

    run(story)
