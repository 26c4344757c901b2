"""One limit for what is kept of an answer, over all its attempts. Beyond it the run ends in an error that names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scenes import PROVIDERS, Desk
from streams import chat, chunk, piece, sse

from unbroken import Agent, Decoder, Request, ScriptedModel, User, connect, decode
from unbroken.errors import TooLarge, UserError
from unbroken.models.retrying import RetryingModel
from unbroken.models.scripted import Answer, play_bytes
from unbroken_testing import Break, Call, Say, ScriptedServer, Think
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import WIRES

ASKED = Request((User.of("Go."),), tools=(ToolSpec("look"),), model="demo")
LONG: dict[str, Answer] = {
    "text": "word " * 2200,
    "reasoning": [Think("word " * 2200), "Done."],
    "arguments": [Call("look", note="x" * 11_000, pieces=50)],
    "all together": [Think("x" * 4000), Say("y" * 4000), Call("look", note="z" * 4000, pieces=50)],
}


def feed_all(decoder: Decoder, body: bytes, size: int) -> None:
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])


@pytest.mark.parametrize("size", [100, 1000, 10**6])
@pytest.mark.parametrize("what", LONG)
@pytest.mark.parametrize("wire", WIRES)
def test_text_reasoning_and_arguments_count_however_they_arrive(wire: str, what: str, size: int) -> None:
    body = b"".join(data for _, data in play_bytes(LONG[what], wire, ASKED))
    with pytest.raises(TooLarge, match=r"more than 10,000 characters .*, retries included: .* raise `max_answer`"):
        feed_all(Decoder(wire, request=ASKED, max_answer=10_000), body, size)
    assert decode(body, wire, max_answer=20_000).verdict.whole


MANY: dict[str, list[Call]] = {
    "calls without arguments": [Call("look") for _ in range(60)],
    "tiny calls": [Call("look", at=at) for at in range(60)],
    "a long name": [Call("look" * 5000)],
    "long ids": [Call("look", id=f"{at}{'i' * 4000}") for at in range(5)],
}


@pytest.mark.parametrize("size", [100, 10**6])
@pytest.mark.parametrize("what", MANY)
@pytest.mark.parametrize("wire", WIRES)
def test_calls_count_however_little_is_in_them(wire: str, what: str, size: int) -> None:
    body = b"".join(data for _, data in play_bytes([*MANY[what]], wire, ASKED))
    with pytest.raises(TooLarge, match="characters of text, reasoning, calls"):
        feed_all(Decoder(wire, request=ASKED, max_answer=10_000), body, size)
    assert len(decode(body, wire, max_answer=40_000).calls) == len(MANY[what])


def test_ids_that_change_with_each_piece_of_a_call_count() -> None:
    pieces = [piece(0, f"c{at}", None if at else "look", "{" if not at else " ") for at in range(400)]
    with pytest.raises(TooLarge):
        decode(chat(*pieces), max_answer=10_000)


def anthropic(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event['type']}\n".encode() + sse(event, done=False) for event in events)


def block(at: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": at, "content_block": content}


LONG_VALUE = "v" * 1000
KEPT: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
    "redacted thinking": ("anthropic-messages", lambda at: [block(at, type="redacted_thinking", data=LONG_VALUE)]),
    "results of the provider": (
        "anthropic-messages",
        lambda at: [block(at, type="web_search_tool_result", tool_use_id=f"s{at}", content=[{"url": LONG_VALUE}])],
    ),
    "empty blocks": ("anthropic-messages", lambda at: [block(9 * at + n, type="text", text="") for n in range(9)]),
    "reasoning details": (
        "openai-chat",
        lambda at: [chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": at, "data": LONG_VALUE}]})],
    ),
    "encrypted reasoning": (
        "openai-responses",
        lambda at: [
            {
                "type": "response.output_item.done",
                "output_index": at,
                "item": {"type": "reasoning", "id": f"r{at}", "summary": [], "encrypted_content": LONG_VALUE},
            }
        ],
    ),
    "signatures": (
        "gemini",
        lambda at: [{"candidates": [{"content": {"parts": [{"text": "a", "thoughtSignature": LONG_VALUE}]}}]}],
    ),
    "citations": (
        "cohere-v2",
        lambda at: [{"type": "citation-start", "index": at, "delta": {"message": {"citations": {"text": LONG_VALUE}}}}],
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_has_to_be_sent_back_counts(what: str) -> None:
    wire, events_of = KEPT[what]
    decoder = Decoder(wire, request=ASKED, max_answer=10_000)
    events = [event for at in range(40) for event in events_of(at)]
    body = anthropic(*events) if wire == "anthropic-messages" else sse(*events, done=False)
    with pytest.raises(TooLarge, match="data that the provider wants back"):
        feed_all(decoder, body, 1000)


def test_bytes_that_are_not_kept_do_not_count() -> None:
    events = [chunk({"content": "x"}) | {"obfuscation": "y" * 3000} for _ in range(1000)]
    response = decode(sse(*events, chunk({}, "stop")), max_answer=1000)
    assert (response.text, response.verdict.whole) == ("x" * 1000, True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_beyond_the_limit_is_not_asked_for_again(wire: str, stream: bool) -> None:
    desk = Desk()

    async def main() -> None:
        async with ScriptedServer([Call("look", note="x" * 2_500_000, pieces=50)], loop_last=True) as server:
            url = server.base_url(wire)
            model = connect(PROVIDERS[wire], wire=wire, base_url=url, stream=stream, max_answer=10_000, api_key="k")
            with pytest.raises(TooLarge, match="raise `max_answer`") as caught:
                await Agent(model, desk.tools("look")).run("Go.")
            assert [verdict.kind for verdict in caught.value.verdicts] == ["too_large"]
            assert len(server.requests) == 1
            assert desk.ran == []

    asyncio.run(main())


class Streaming(ScriptedModel):
    """It streams, whatever is asked for: what broke off has its text."""

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return super().stream(replace(request, stream=True))


def test_the_attempts_at_an_answer_count_together() -> None:
    model = Streaming([Say("x" * 6_000_000, chunks=50), Break()], loop_last=True)
    with pytest.raises(TooLarge, match=r"more than 16,777,216 characters of text, .* retries included"):
        asyncio.run(Agent(RetryingModel(model, attempts=9, first_wait=0.001)).run("Go."))
    assert len(model.requests) == 3


def test_calls_of_all_attempts_count_together() -> None:
    class Limited(Streaming):
        max_answer = 20_000

    model = Limited([*(Call("look") for _ in range(30)), Break()], loop_last=True)
    with pytest.raises(TooLarge, match=r"more than 20,000 characters of text, .* retries included"):
        asyncio.run(Agent(RetryingModel(model, attempts=9, first_wait=0.001), Desk().tools("look")).run("Go."))
    assert len(model.requests) == 3


def test_a_limit_below_one_is_a_mistake() -> None:
    with pytest.raises(UserError, match="max_answer=0 of connect: it is a number of characters, from 1"):
        connect("ollama:m", max_answer=0)
