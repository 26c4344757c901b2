"""A client sends a signature back in part or empty: it gets an answer, without the thinking and told so. What the
gateway holds is restored; what the provider cannot verify is left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_client import Client, Reply, Stage, run, stage

from unbroken import Agent, connect
from unbroken.errors import RequestRefused
from unbroken_testing import Call, Fail, ScriptedServer, Think
from unbroken_wires.messages import User
from unbroken_wires.wires import find_wire

Object = dict[str, Any]
CLAUDE, GEMINI, BEDROCK = "anthropic-messages", "gemini", "bedrock-converse"
CUT = "EqQBCgIYAhIM1gbcDa9GJwZA"
INVALID = Fail(RequestRefused("messages.1.content.0: Invalid `signature` in `thinking` block", status=400))
CORRUPTED = Fail(RequestRefused("Corrupted thought signature.", status=400))
BOUND = Fail(
    RequestRefused(
        "messages.1.content.0: Invalid `signature` in `thinking` block. "
        "The block is bound to a different conversation.",
        status=400,
    )
)


def thought(signature: str | None) -> list[Object]:
    thinking: Object = {"type": "thinking", "thinking": "hm"}
    if signature is not None:
        thinking["signature"] = signature
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "Hello."}]},
        {"role": "user", "content": "Again."},
    ]


async def send(on: Stage, messages: list[Object], stream: bool) -> Reply:
    body = {"model": "m", "max_tokens": 9000, "messages": messages, "stream": stream}
    return await on.client(CLAUDE, stream).post({**body, "thinking": {"type": "enabled", "budget_tokens": 1024}})


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_whose_signature_was_cut_is_left_out_once_the_provider_refuses_it(stream: bool) -> None:
    async def play() -> tuple[Reply, list[Object]]:
        async with stage(CLAUDE, INVALID, "Hello again.") as on:
            return await send(on, thought(CUT), stream), on.upstream.bodies

    reply, (first, second) = run(play)
    assert (reply.status, reply.response.message.text) == (200, "Hello again.")
    assert "messages.thinking" in reply.headers["x-unbroken-dropped"]
    assert first["messages"][1]["content"][0]["signature"] == CUT
    assert [block["type"] for block in second["messages"][1]["content"]] == ["text"]


@pytest.mark.parametrize("signature", ["", None])
def test_thinking_without_a_signature_is_not_sent_at_all(signature: str | None) -> None:
    async def play() -> tuple[Reply, list[Object]]:
        async with stage(CLAUDE, "Hello again.") as on:
            return await send(on, thought(signature), stream=False), on.upstream.bodies

    reply, bodies = run(play)
    assert (reply.status, len(bodies)) == (200, 1)
    assert "hm" not in str(bodies[0]["messages"])


NEEDED = "The model returned the following errors: messages.1.content.0.thinking.signature: Field required"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [str(INVALID.error), NEEDED], ids=["cut", "needed"])
def test_reasoning_of_claude_on_bedrock_is_left_out_once_it_is_refused(words: str, stream: bool) -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": CUT}}}
    turns = [("user", [{"text": "Hi"}]), ("assistant", [reasoning, {"text": "Hello."}]), ("user", [{"text": "Again."}])]
    messages = [{"role": role, "content": content} for role, content in turns]
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    body = {"messages": messages, "inferenceConfig": {"maxTokens": 9000}, "additionalModelRequestFields": fields}

    async def play() -> tuple[Reply, list[Object]]:
        async with stage(BEDROCK, Fail(RequestRefused(words, status=400)), "Hello again.") as on:
            return await on.client(BEDROCK, stream).post(body), on.upstream.bodies

    reply, (first, second) = run(play)
    assert (reply.status, reply.response.message.text) == (200, "Hello again.")
    assert "messages.content.reasoningContent" in reply.headers["x-unbroken-dropped"]
    assert "reasoningContent" in first["messages"][1]["content"][0]
    assert second["messages"][1]["content"] == [{"text": "Hello."}]


@pytest.mark.parametrize("signature", [CUT, "", None])
def test_thinking_of_a_client_of_claude_is_not_sent_to_bedrock(signature: str | None) -> None:
    async def play() -> tuple[Reply, list[Object]]:
        async with stage(BEDROCK, "Hello again.") as on:
            return await send(on, thought(signature), stream=False), on.upstream.bodies

    reply, bodies = run(play)
    assert (reply.status, len(bodies), "hm" in str(bodies)) == (200, 1, False)


@pytest.mark.parametrize("refused", [BOUND, Fail(RequestRefused("max_tokens: too many", status=400))])
def test_another_refusal_reaches_the_client(refused: Fail) -> None:
    async def play() -> tuple[Reply, int]:
        async with stage(CLAUDE, refused, "Never.") as on:
            return await send(on, thought(CUT), stream=False), len(on.upstream.bodies)

    reply, requests = run(play)
    assert (reply.status, requests) == (400, 1)


def test_a_second_refusal_is_the_client_s() -> None:
    async def play() -> tuple[Reply, int]:
        async with stage(CLAUDE, INVALID, INVALID, "Never.") as on:
            return await send(on, thought(CUT), stream=True), len(on.upstream.bodies)

    reply, requests = run(play)
    assert (reply.status, requests) == (400, 2)


def test_a_signature_that_the_gateway_holds_is_restored() -> None:
    async def play() -> list[Object]:
        async with stage(CLAUDE, [Think("hm"), Call("get_weather", city="Oslo", id="toolu_1")], "Warm.") as on:
            client = on.client(CLAUDE)
            first = (await client.ask(User.of("Where is it warm?"))).body["content"]
            assert first[0]["signature"] == "sig-scripted-0"
            cut = [{**first[0], "signature": "sig"}, *first[1:]]
            said: Object = {"role": "assistant", "content": cut}
            result = {"type": "tool_result", "tool_use_id": first[-1]["id"], "content": "20 degrees"}
            asked = client.body(client.messages[:1])
            await client.post({**asked, "messages": [*asked["messages"], said, {"role": "user", "content": [result]}]})
            return on.upstream.bodies[1]["messages"][1]["content"]

    assert run(play)[0]["signature"] == "sig-scripted-0"


@pytest.mark.parametrize("stream", [False, True])
def test_signatures_of_gemini_become_the_placeholder(stream: bool) -> None:
    call: Object = {"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2ln"}
    result: Object = {"functionResponse": {"name": "get_weather", "response": {"result": "20 degrees"}}}
    contents = [
        {"role": "user", "parts": [{"text": "Where is it warm?"}]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [result]},
    ]

    async def play() -> tuple[Reply, list[Object]]:
        async with stage(GEMINI, CORRUPTED, "Oslo.") as on:
            client: Client = on.client(GEMINI, stream)
            return await client.post({**client.body([User.of("x")]), "contents": contents}), on.upstream.bodies

    reply, (_, second) = run(play)
    assert (reply.status, reply.response.message.text) == (200, "Oslo.")
    assert "contents.parts.thoughtSignature" in reply.headers["x-unbroken-dropped"]
    assert second["contents"][1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"


def test_a_run_with_a_history_from_outside_gets_its_answer_and_a_warning() -> None:
    history = find_wire(CLAUDE).decode_request({"messages": thought(CUT)[:2]}).messages

    async def ask() -> tuple[Any, list[Object]]:
        async with ScriptedServer(INVALID, "Hello again.") as server:
            model = connect("anthropic:claude-sonnet-4-5", base_url=server.url, api_key="k", reasoning="low")
            return await Agent(model).run("Again.", history=history), server.bodies

    result, bodies = asyncio.run(ask())
    assert (result.text, len(bodies)) == ("Hello again.", 2)
    assert any("messages.thinking" in warning for warning in result.warnings)
