"""An upstream that breaks off, before a client of any wire: the answer comes to an end as if nothing had happened, or
the client is told in its own wire's words that it did not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_client import PAIRS, Client, Reply, run, serving, settings_for, upstream_settings

from unbroken.errors import ProviderError
from unbroken.messages import Assistant, User
from unbroken.testing import Break, Call, Cut, ErrorInside, Fail, Pause, Say, ScriptedServer, Step, Uses
from unbroken.wires import WIRES

Object = dict[str, Any]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

OSLO = Call("get_weather", city="Oslo", id="call_Zq8wLk3vTb")
LIMA = Call("get_weather", city="Lima", id="call_Xr9mNj4uSa")
WHOLE: list[str | Step] = [Say("Let me look. "), OSLO, LIMA, Uses(7, 5)]
LATER = Pause(0.02)
"""Long enough for what came before to reach the client."""

BREAKS: dict[str, list[str | Step]] = {
    "before the first byte": [Break()],
    "after some text": [Say("Let me "), LATER, Break()],
    "in the middle of a call": [Say("Let me look. "), LATER, Cut("get_weather", '{"ci', id=OSLO.id), LATER, Break()],
    "after a whole call": [Say("Let me look. "), OSLO, LATER, Break()],
    "in the middle of the second call": [Say("Let me look. "), OSLO, LATER, Cut("get_weather", '{"ci'), LATER, Break()],
    "with an error inside": [Say("Let me look. "), LATER, ErrorInside("overloaded")],
}


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_an_answer_that_broke_off_is_told_once_and_whole(client_wire: str, upstream_wire: str) -> None:
    async def one(place: str, serial: bool, stream: bool) -> None:
        what = (place, serial, stream)
        async with ScriptedServer(BREAKS[place], WHOLE, "Done.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire, serial=serial))) as url:
                client = Client(url, client_wire, stream, parallel=None)
                replies = [await client.ask(User.of("Oslo and Lima?"))]
                assert replies[0].status == 200, what
                assert replies[0].response.text == "Let me look. ", what
                assert replies[0].response.verdict.whole, (what, replies[0].response.verdict)
                while replies[-1].response.calls:
                    replies.append(await client.answer_calls())
                cities = [arguments["city"] for reply in replies for _, arguments in reply.calls]
                assert cities == ["Oslo", "Lima"], what
                assert [len(reply.calls) for reply in replies] == ([1, 1, 0] if serial else [2, 0]), what
                assert replies[-1].response.text == "Done.", what
            assert len(upstream.requests) == 3, what

    async def story() -> None:
        cases = [(place, serial, stream) for place in BREAKS for serial in (False, True) for stream in (False, True)]
        await asyncio.gather(*(one(*case) for case in cases))

    run(story)


OTHERWISE: list[str | Step] = [Say("I look it up. "), OSLO]


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_other_words_follow_after_a_paragraph_or_are_an_error(client_wire: str, upstream_wire: str) -> None:
    broken: list[str | Step] = [Say("Let me "), LATER, Break()]

    async def appended(serial: bool) -> None:
        async with ScriptedServer(broken, OTHERWISE, "Done.") as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=serial)
            async with serving(settings_for(alias)) as url:
                client = Client(url, client_wire, stream=True, parallel=None)
                reply = await client.ask(User.of("Oslo?"))
                assert reply.response.text == "Let me \n\nI look it up. "
                assert reply.calls == [("get_weather", {"city": "Oslo"})]
                assert reply.response.verdict.whole
                last = await client.answer_calls()
                assert last.response.text == "Done."
            assistant = upstream.requests[-1].messages[1]
            assert isinstance(assistant, Assistant)
            assert assistant.text == "I look it up. "  # the model never said the other

    async def refused(serial: bool) -> None:
        async with ScriptedServer(broken, OTHERWISE) as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=serial)
            async with serving(settings_for(alias, on_diverge="error")) as url:
                reply = await Client(url, client_wire, stream=True, parallel=None).ask(User.of("Oslo?"))
                assert "says something else" in told_in_stream(client_wire, reply)
                assert reply.response.text == "Let me "
                assert reply.calls == []

    async def not_seen(serial: bool) -> None:
        """Who waits for the whole body has heard nothing yet."""
        async with ScriptedServer(broken, OTHERWISE) as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=serial)
            async with serving(settings_for(alias, on_diverge="error")) as url:
                reply = await Client(url, client_wire, parallel=None).ask(User.of("Oslo?"))
                assert reply.response.text == "I look it up. "
                assert reply.calls == [("get_weather", {"city": "Oslo"})]

    async def story() -> None:
        await asyncio.gather(*(case(serial) for case in (appended, refused, not_seen) for serial in (False, True)))

    run(story)


def told_in_stream(wire: str, reply: Reply) -> str:
    """The words of the error that a stream ends with, in its wire's own shape."""
    assert reply.status == 200
    *_, last = [event for event in reply.data.split(b"\n\n") if event]
    name, _, data = last.rpartition(b"data: ")
    event = json.loads(data)
    match wire:
        case "anthropic-messages":
            assert name == b"event: error\n"
            assert event["type"] == "error"
            return event["error"]["message"]
        case "openai-responses":
            assert name == b"event: response.failed\n"
            assert event["response"]["status"] == "failed"
            return event["response"]["error"]["message"]
        case "gemini":
            assert event["error"]["status"]
            return event["error"]["message"]
        case _:
            assert event["error"]["type"]
            return event["error"]["message"]


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_an_answer_that_cannot_be_had_is_an_error_in_the_clients_words(client_wire: str, upstream_wire: str) -> None:
    """After some text it stands in the stream, before any it is a status; half a call is never seen."""
    cut = [Say("Let me look. "), LATER, Cut("get_weather", '{"city": "Os', id=OSLO.id), LATER, Break()]

    async def after_text(serial: bool) -> None:
        async with ScriptedServer(cut, loop_last=True) as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=serial, options={"attempts": 2})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, client_wire, stream=True, parallel=None).ask(User.of("Oslo?"))
                assert told_in_stream(client_wire, reply)
                assert reply.response.text == "Let me look. "
                assert reply.calls == []
                assert b"Os" not in reply.data
            assert len(upstream.requests) == 2

    async def before(stream: bool) -> None:
        async with ScriptedServer(Break(), loop_last=True) as upstream:
            alias = upstream_settings(upstream, upstream_wire, options={"attempts": 1})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, client_wire, stream, parallel=None).ask(User.of("Oslo?"))
                assert reply.status == 502
                assert_error(client_wire, reply, 502, "")

    async def whole() -> None:
        async with ScriptedServer(cut, loop_last=True) as upstream:
            alias = upstream_settings(upstream, upstream_wire, options={"attempts": 1})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, client_wire, parallel=None).ask(User.of("Oslo?"))
                assert reply.status == 502
                assert_error(client_wire, reply, 502, "")

    async def story() -> None:
        await asyncio.gather(after_text(False), after_text(True), before(False), before(True), whole())

    run(story)


def assert_error(wire: str, reply: Reply, status: int, words: str) -> Object:
    """An HTTP error in the shape of its wire. Gives what stands inside."""
    assert reply.status == status, reply.data
    assert reply.headers["Content-Type"] == "application/json"
    body = reply.body
    error = body["error"]
    assert words in error["message"], error
    match wire:
        case "anthropic-messages":
            assert body["type"] == "error"
            assert error.keys() == {"type", "message"}
        case "gemini":
            assert error.keys() == {"code", "message", "status"}
            assert error["code"] == status
        case _:
            assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_fallback_of_another_wire_goes_on_in_the_middle_of_a_stream() -> None:
    async def one(client_wire: str, first_wire: str, second_wire: str) -> None:
        broken: list[str | Step] = [Say("Let me "), LATER, Break()]
        async with ScriptedServer(broken, loop_last=True) as first, ScriptedServer(WHOLE, "Done.") as second:
            settings = settings_for(
                upstream_settings(first, first_wire, fallback=("spare",), options={"attempts": 1}),
                upstream_settings(second, second_wire, alias="spare"),
            )
            async with serving(settings) as url:
                client = Client(url, client_wire, stream=True, parallel=None)
                reply = await client.ask(User.of("Oslo and Lima?"))
                assert reply.response.text == "Let me look. "
                assert [arguments["city"] for _, arguments in reply.calls] == ["Oslo", "Lima"]
                assert (await client.answer_calls()).response.text in ("Let me \n\nDone.", "Done.")
            assert (len(first.requests), len(second.requests)) == (2, 2)

    async def story() -> None:
        wires = list(WIRES)
        await asyncio.gather(
            *(one(client, client, wires[at - 1]) for at, client in enumerate(wires)),
            *(one(client, wires[at - 2], client) for at, client in enumerate(wires)),
        )

    run(story)


REFUSALS = {
    401: ("invalid_request_error", "authentication_error", "UNAUTHENTICATED"),
    403: ("permission_error", "permission_error", "PERMISSION_DENIED"),
    404: ("invalid_request_error", "not_found_error", "NOT_FOUND"),
    400: ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT"),
    422: ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    500: ("server_error", "api_error", "INTERNAL"),
    503: ("service_unavailable_error", "api_error", "UNAVAILABLE"),
    529: ("service_unavailable_error", "overloaded_error", "UNAVAILABLE"),
}


@STREAMED
@pytest.mark.parametrize("client_wire", WIRES)
def test_what_an_upstream_refuses_is_refused_with_its_status_in_the_clients_shape(
    client_wire: str, stream: bool
) -> None:
    async def one(upstream_wire: str, status: int) -> None:
        error = ProviderError("no, says the provider", status=status, retry_after=17.2 if status == 429 else None)
        async with ScriptedServer(Fail(error), loop_last=True) as upstream:
            alias = upstream_settings(upstream, upstream_wire, options={"attempts": 1})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, client_wire, stream, parallel=None).ask(User.of("Hello."))
                inside = assert_error(client_wire, reply, status, "no, says the provider")
                names = dict(zip(("openai", "anthropic-messages", "gemini"), REFUSALS[status], strict=True))
                expected = names["openai" if client_wire.startswith("openai") else client_wire]
                assert inside["status" if client_wire == "gemini" else "type"] == expected, status
                assert reply.headers.get("retry-after") == ("18" if status == 429 else None)

    async def story() -> None:
        await asyncio.gather(*(one(upstream_wire, status) for upstream_wire in WIRES for status in REFUSALS))

    run(story)


TOO_LONG = {
    "openai-chat": ("context_length_exceeded", ""),
    "openai-responses": ("context_length_exceeded", ""),
    "anthropic-messages": ("", "prompt is too long"),
    "gemini": ("", "The input token count exceeds the maximum number of tokens allowed"),
}


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_a_history_that_is_too_long_is_told_so_that_the_client_compacts_it(
    client_wire: str, upstream_wire: str
) -> None:
    said = {
        "openai-chat": "This model's maximum context length is 128000 tokens.",
        "openai-responses": "Your input exceeds the context window of this model.",
        "anthropic-messages": "prompt is too long: 210000 tokens > 200000 maximum",
        "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    }[upstream_wire]

    async def story() -> None:
        async with ScriptedServer(Fail(ProviderError(said, status=400)), loop_last=True) as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire))) as url:
                reply = await Client(url, client_wire, parallel=None).ask(User.of("A long story."))
                code, words = TOO_LONG[client_wire]
                inside = assert_error(client_wire, reply, 400, words)
                assert (inside.get("code") if code else "") == code
                if client_wire == "anthropic-messages":
                    assert inside["message"].startswith(words)
            assert len(upstream.requests) == 1

    run(story)


@STREAMED
@pytest.mark.parametrize("wire", WIRES)
def test_an_upstream_that_never_answers_is_a_timeout(wire: str, stream: bool) -> None:
    async def silent(upstream_wire: str) -> None:
        async with ScriptedServer([Pause(30), Say("Late.")], loop_last=True) as upstream:
            alias = upstream_settings(upstream, upstream_wire, options={"attempts": 1, "first_byte": 0.05})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, wire, stream, parallel=None).ask(User.of("Hello."))
                inside = assert_error(wire, reply, 504, "first_byte")
                if wire == "anthropic-messages":
                    assert inside["type"] == "timeout_error"

    async def closed(upstream_wire: str) -> None:
        async with ScriptedServer("Never.") as upstream:
            alias = upstream_settings(upstream, upstream_wire, options={"attempts": 1})
        async with serving(settings_for(alias)) as url:
            reply = await Client(url, wire, stream, parallel=None).ask(User.of("Hello."))
            assert_error(wire, reply, 502, "cannot be reached")

    async def story() -> None:
        await asyncio.gather(*(case(upstream_wire) for case in (silent, closed) for upstream_wire in WIRES))

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_falls_silent_after_some_text_is_told_once_and_whole(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer([Say("Let me "), Pause(30)], WHOLE) as upstream:
            alias = upstream_settings(upstream, wire, options={"idle": 0.05})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, wire, stream=True, parallel=None).ask(User.of("Oslo and Lima?"))
                assert reply.response.text == "Let me look. "
                assert len(reply.calls) == 2

    run(story)
