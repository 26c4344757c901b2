"""The fast path of a new question: whatever goes wrong on it, no model is asked twice for an answer that is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from gateway_client import Client, run, serving, settings_for

from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import User

MESSAGE = {"role": "assistant", "content": "All is well."}
BODY = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def answering(*answers: tuple[bytes, bool]) -> AsyncGenerator[tuple[str, list[int]]]:
    """Sends these bytes, one item for each request, and then closes the connection, or does not."""
    asked: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        data, closes = answers[min(len(asked), len(answers) - 1)]
        asked.append(length)
        writer.write(HEAD + b"\r\n" + data)
        await writer.drain()
        if not closes:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked


def ask(*answers: tuple[bytes, bool]) -> tuple[str, int]:
    """The answer's text, and how often the model was asked."""

    async def story() -> tuple[str, int]:
        async with answering(*answers) as (base_url, asked):
            alias = UpstreamSettings("m", "openai-chat:x", base_url=base_url, options={"idle": 0.3})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, "openai-chat", parallel=None).ask(User.of("How is it?"))
                assert reply.status == 200, reply.data
                return reply.response.text, len(asked)

    return run(story)


def test_a_complete_body_on_a_connection_that_is_never_closed_is_the_answer() -> None:
    assert ask((BODY, False)) == ("All is well.", 1)


def test_a_body_that_breaks_off_is_requested_again() -> None:
    assert ask((BODY[:40], True), (BODY, True)) == ("All is well.", 2)


def test_an_unusual_answer_is_read_by_the_decoder_and_not_requested_again() -> None:
    said = {**MESSAGE, "reasoning_content": "Hm."}
    body = json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}).encode()
    assert ask((body, True)) == ("All is well.", 1)


@pytest.mark.parametrize("stream", [True, False])
def test_what_the_model_refuses_is_changed_on_the_fast_path_too(stream: bool) -> None:
    async def story() -> None:
        async with ScriptedServer("All is well.") as server:
            alias = UpstreamSettings("m", "openai-chat:o4-mini", base_url=server.base_url("openai-chat"))
            async with serving(settings_for(alias)) as url:
                client = Client(url, "openai-chat", stream, parallel=None)
                body = client.body([User.of("How is it?")])
                reply = await client.post({**body, "max_tokens": 50, "temperature": 0.2})
                assert (reply.status, reply.response.text) == (200, "All is well.")
                assert reply.headers["x-unbroken-dropped"] == "temperature"
        assert len(server.bodies) == 1
        assert server.bodies[0]["max_completion_tokens"] == 50
        assert not {"max_tokens", "temperature"} & set(server.bodies[0])

    run(story)
