"""The scripted server is a provider over real HTTP on all four wires: it streams, keeps requests, and refuses."""

from __future__ import annotations

import asyncio
import gc
import json
import urllib.request
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from unbroken import Assistant, Request, Response, ToolCall, User, decode
from unbroken.errors import RateLimited, Unreachable, UserError
from unbroken.models.scripted import Line
from unbroken_testing import Break, Call, ErrorInside, Fail, Pause, Say, ScriptedServer, Think, Uses, run_virtual, serve
from unbroken_testing.scenario import Stray
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import WIRES, find_wire

ASKED = Request((User.of("What is the weather?"),), tools=(ToolSpec("get_weather"),), model="demo")
STREAMED = [pytest.param(True, id="streamed"), pytest.param(False, id="whole")]
ANSWER: Line = [Think("Hm."), Say("Let me look."), Call("get_weather", city="Oslo"), Call("now"), Uses(10, 20)]
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/{model}:{method}",
    "ollama": "/api/chat",
    "cohere-v2": "/v2/chat",
    "bedrock-converse": "/model/{model}/{method}",
}
ERRORS: dict[str, dict[int, Any]] = {
    "openai-chat": {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"},
    "openai-responses": {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"},
    "anthropic-messages": {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"},
    "gemini": {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"},
    "ollama": dict.fromkeys((401, 404, 429), "error"),
    "cohere-v2": dict.fromkeys((401, 404, 429), "message"),
    "bedrock-converse": {
        401: "UnrecognizedClientException",
        404: "ResourceNotFoundException",
        429: "ThrottlingException",
    },
}


class Client:
    """The minimum of a client of a wire: a body, a path, a key."""

    def __init__(self, session: aiohttp.ClientSession, server: ScriptedServer, wire: str) -> None:
        self._session = session
        self._server = server
        self._wire = wire

    def post(
        self, request: Request = ASKED, body: Any = None, key: str = "", query: str = ""
    ) -> aiohttp.client._RequestContextManager:  # pyright: ignore[reportPrivateUsage] - aiohttp has no public name for it
        method = find_wire(self._wire).http.methods[request.stream]
        url = self._server.url + PATHS[self._wire].format(model=request.model, method=method) + query
        data = json.dumps(body or find_wire(self._wire).encode_request(request))
        return self._session.post(url, data=data, headers={"Authorization": f"Bearer {key}"})

    async def ask(self, request: Request = ASKED) -> Response:
        async with self.post(request) as answer:
            assert answer.status == 200
            return decode(await answer.read(), self._wire)

    async def refused(self, request: Request = ASKED, body: Any = None, key: str = "") -> tuple[int, Any]:
        async with self.post(request, body, key) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def connected(server: ScriptedServer, wire: str) -> AsyncGenerator[Client]:
    async with server, aiohttp.ClientSession() as session:
        yield Client(session, server, wire)


def word_of(error: Any) -> Any:
    """The field by which a wire's clients recognise an error; where there is none, the field with its message."""
    inside: Any = error.get("error")
    if not hasattr(inside, "get"):
        return error.get("__type") or next(iter(error))
    return inside.get("code") if isinstance(inside.get("code"), str) else inside.get("status") or inside.get("type")


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_is_served(wire: str, stream: bool) -> None:
    async def main() -> None:
        server = ScriptedServer(ANSWER)
        async with connected(server, wire) as client:
            response = await client.ask(replace(ASKED, stream=stream))
        assert response.verdict.whole
        assert (response.reasoning, response.text) == ("Hm.", "Let me look.")
        assert [(call.name, call.arguments) for call in response.calls] == [
            ("get_weather", {"city": "Oslo"}),
            ("now", {}),
        ]
        assert response.usage is not None
        assert response.usage.total_tokens == 30
        assert (server.wires, server.requests[0].messages) == ([wire], ASKED.messages)
        assert (server.requests[0].model, server.requests[0].stream) == ("demo", stream)
        assert len(server.bodies) == len(server.headers) == 1

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_while_it_is_being_written(wire: str) -> None:
    async def main() -> bytes:
        heard = asyncio.Event()

        def held(chunks: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
            """Does not send the second word before the client has the first."""
            for pause, data in chunks:
                while b"second" in data and not heard.is_set():
                    yield 0.001, b""
                yield pause, data

        async with connected(ScriptedServer("first second", wrap=held), wire) as client, client.post() as answer:
            seen = b""
            async for data in answer.content.iter_any():
                seen += data
                if b"first" in seen:
                    heard.set()
            return seen

    assert b"second" in asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("wire", WIRES)
def test_the_model_in_the_gemini_path_or_in_the_body_chooses_the_script(wire: str) -> None:
    async def main() -> list[str]:
        scripts: dict[str, list[Line]] = {"big": ["I am big."], "small": ["I am small."]}
        async with connected(ScriptedServer("I am another.", scripts=scripts), wire) as client:
            return [(await client.ask(replace(ASKED, model=model))).text for model in ("small", "big", "demo")]

    assert asyncio.run(main()) == ["I am small.", "I am big.", "I am another."]


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_key_an_unknown_model_and_a_failure_have_the_wires_format(wire: str) -> None:
    async def main() -> None:
        server = ScriptedServer(
            Fail(RateLimited("slow down", status=429, retry_after=2)), api_key="right", models=["demo"]
        )
        async with connected(server, wire) as client:
            for status, refused in (
                (401, await client.refused(key="wrong")),
                (404, await client.refused(replace(ASKED, model="nobody"), key="right")),
                (429, await client.refused(key="right")),
            ):
                assert refused[0] == status
                assert word_of(refused[1]) == ERRORS[wire][status]
            assert "right" not in str(await client.refused(key="wrong"))

    asyncio.run(main())


def test_the_retry_time_is_in_the_header() -> None:
    async def main() -> str | None:
        server = ScriptedServer([Pause(0.001), Fail(RateLimited("slow down", status=429, retry_after=1.5))])
        async with connected(server, "openai-chat") as client, client.post() as answer:
            return answer.headers.get("Retry-After")

    assert asyncio.run(main()) == "1.5"


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_a_break_ends_the_body_early(wire: str, stream: bool) -> None:
    async def main() -> None:
        server, request = ScriptedServer([Say("Let me look."), Break()]), replace(ASKED, stream=stream)
        async with connected(server, wire) as client, client.post(request) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()

    asyncio.run(main())


def test_an_unreachable_server_hangs_up() -> None:
    async def main() -> None:
        async with connected(ScriptedServer(Break(), Fail(Unreachable("gone"))), "openai-chat") as client:
            for _ in range(2):
                with pytest.raises(aiohttp.ServerDisconnectedError):
                    await client.ask()

    asyncio.run(main())


def test_an_error_inside_has_a_success_status() -> None:
    async def main() -> str:
        async with connected(ScriptedServer([Say("Let"), ErrorInside("overloaded")]), "anthropic-messages") as client:
            return (await client.ask()).verdict.kind

    assert asyncio.run(main()) == "error"


@pytest.mark.parametrize("wire", WIRES)
def test_a_mistake_in_the_script_is_reported_to_the_client(wire: str) -> None:
    def broken(request: Request) -> str:
        raise AssertionError("three messages were expected")

    async def main() -> None:
        async with connected(ScriptedServer(broken), wire) as client:
            status, error = await client.refused()
            assert (status, "three messages were expected" in str(error)) == (400, True)
        async with connected(ScriptedServer(), wire) as client:
            status, error = await client.refused()
            assert (status, "asked for answer 1 and its script has 0" in str(error)) == (400, True)

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_requests_that_the_provider_would_refuse_are_refused(wire: str) -> None:
    async def main() -> None:
        unanswered = Assistant("", (ToolCall("call_1", "get_weather", {}, "{}"),))
        request = replace(ASKED, messages=(*ASKED.messages, unanswered, User.of("Well?")))
        async with connected(ScriptedServer("Never said."), wire) as client:
            status, error = await client.refused(request)
            assert (status, "no result" in str(error) or "0 function responses" in str(error)) == (400, True)
        async with connected(ScriptedServer("Said.", strict=False), wire) as client:
            assert (await client.ask(request)).text == "Said."

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_an_invalid_body_is_refused(wire: str) -> None:
    async def main() -> list[int]:
        async with connected(ScriptedServer("Never said."), wire) as client, aiohttp.ClientSession() as session:
            async with client.post(body=["not", "an", "object"]) as answer:
                listed = answer.status
            async with session.post(str(answer.url), data=b"{") as answer:
                return [listed, answer.status]

    assert asyncio.run(main()) == [400, 400]


@pytest.mark.parametrize("answer", [3, [Say("Hi."), 3], b"Hi."], ids=["number", "step", "bytes"])
def test_an_invalid_answer_is_reported_to_the_author_of_the_script(answer: Any) -> None:
    with pytest.raises(UserError, match=r"^answer 2 of the script is .*: give a string, a step, a list of these"):
        ScriptedServer("Hello.", answer)


def test_stray_requests_are_kept_separately() -> None:
    async def main() -> None:
        heard: list[Stray] = []
        async with ScriptedServer("Never said.", on_stray=heard.append) as server, aiohttp.ClientSession() as session:
            async with session.post(f"{server.url}/chat/completions", json={}) as answer:
                assert answer.status == 404
                assert f"the base URL is {server.url}/v1" in str(await answer.json())
            async with session.post(f"{server.url}/v1/messages", data=b"{") as answer:
                assert answer.status == 400
        assert [(each.method, each.path, each.status) for each in heard] == [
            ("POST", "/chat/completions", 404),
            ("POST", "/v1/messages", 400),
        ]
        assert server.strays == heard
        assert server.requests == server.sent == []

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_that_is_not_strict_still_refuses_requests_without_messages(wire: str) -> None:
    nothing = {"openai-responses": "input: nothing", "gemini": "contents: none"}.get(wire, "messages: none")

    async def main() -> None:
        server = ScriptedServer("Never said.", strict=False)
        async with connected(server, wire) as client:
            async with client.post(body={"model": "demo"}) as answer:
                assert answer.status == 400
            assert [sent.refused for sent in server.sent] == [nothing]

    asyncio.run(main())


def test_usage_is_streamed_on_openai_chat_only_on_request() -> None:
    async def main() -> list[bool]:
        asked = find_wire("openai-chat").encode_request(ASKED)
        quiet = {key: value for key, value in asked.items() if key != "stream_options"}
        async with connected(ScriptedServer(ANSWER, ANSWER), "openai-chat") as client:
            return [b"usage" in await (await client.post(body=body)).read() for body in (asked, quiet)]

    assert asyncio.run(main()) == [True, False]


def test_gemini_streams_events_on_request_and_otherwise_one_array() -> None:
    async def main() -> None:
        async with connected(ScriptedServer(ANSWER, ANSWER), "gemini") as client:
            async with client.post(query="?alt=sse") as answer:
                assert answer.content_type == "text/event-stream"
                events = decode(await answer.read(), "gemini")
            async with client.post() as answer:
                assert answer.content_type == "application/json"
                body = await answer.read()
        assert isinstance(json.loads(body), list)
        assert decode(body, "gemini").calls == events.calls

    asyncio.run(main())


def test_the_models_are_listed() -> None:
    with serve(models=["a", "b"]) as server, urllib.request.urlopen(f"{server.url}/v1/models") as answer:
        listed = json.load(answer)
    assert [model["id"] for model in listed["data"]] == ["a", "b"]
    assert [model["name"] for model in listed["models"]] == ["models/a", "models/b"]


def test_synchronous_code_is_served_from_a_thread() -> None:
    with serve("Hello.", chunk_delay=0.001) as server:
        body = find_wire("openai-chat").write_request(ASKED)
        with urllib.request.urlopen(f"{server.base_url()}/chat/completions", body) as answer:
            assert decode(answer.read()).text == "Hello."
        assert server.requests[0].messages == ASKED.messages


def test_the_server_also_works_on_virtual_time() -> None:
    async def main() -> tuple[str, bool]:
        loop = asyncio.get_running_loop()
        async with connected(ScriptedServer([Pause(120.0), Say("At last.")]), "openai-chat") as client:
            text = (await client.ask()).text
            return text, loop.time() >= 120.0

    assert run_virtual(main) == ("At last.", True)


def test_a_stopped_server_is_not_kept_alive() -> None:
    """With everything that it has kept of each request: many servers would fill the memory of a long test."""

    async def lived() -> weakref.ref[ScriptedServer]:
        async with ScriptedServer("Hi.") as server, aiohttp.ClientSession() as client:
            async with client.get(f"{server.url}/nowhere") as response:
                assert response.status == 404
            return weakref.ref(server)

    server = asyncio.run(lived())
    gc.collect()
    assert server() is None
