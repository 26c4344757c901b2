"""An upstream that breaks off, with clients of any wire: the answer ends as if nothing had happened, or the client gets
an error in its own format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_client import (
    PROVIDERS,
    SOME_PAIRS,
    Client,
    Reply,
    assert_error,
    result_of,
    run,
    serving,
    settings_for,
    upstream_settings,
)
from gateway_readers import read
from thorough import ALL

from unbroken.errors import ProviderError
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import (
    FAULTS,
    Answer,
    Break,
    Call,
    Cut,
    ErrorInside,
    Fail,
    Fault,
    FaultyServer,
    Pause,
    Say,
    ScriptedServer,
    Step,
    Think,
    Uses,
    find_fault,
    story,
)
from unbroken_testing.faulty import ANSWERED, TOOLS
from unbroken_wires.messages import Assistant, Request, ToolMessage, User
from unbroken_wires.wires import WIRES, find_wire

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


@dataclass(slots=True)
class Behind:
    """A separate server behind each alias of one gateway, so that many scenarios can run at once."""

    url: str = ""
    servers: dict[str, ScriptedServer] = field(default_factory=dict[str, ScriptedServer])

    def client(self, alias: str, wire: str, stream: bool = False) -> Client:
        return Client(self.url, wire, stream, parallel=None, model=alias)


@asynccontextmanager
async def behind(rows: Mapping[str, tuple[ScriptedServer, str, Object]], **settings: Any) -> AsyncGenerator[Behind]:
    """By alias: the server, its wire, and more settings of the alias."""
    async with AsyncExitStack() as running:
        servers = {alias: await running.enter_async_context(server) for alias, (server, _, _) in rows.items()}
        aliases = [upstream_settings(server, wire, alias=alias, **more) for alias, (server, wire, more) in rows.items()]
        url = await running.enter_async_context(serving(settings_for(*aliases, **settings)))
        yield Behind(url, servers)


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_an_answer_that_broke_off_is_sent_once_and_complete(client_wire: str, upstream_wire: str) -> None:
    async def one(gateway: Behind, alias: str, serial: bool, stream: bool) -> None:
        client = gateway.client(alias, client_wire, stream)
        replies = [await client.ask(User.of("Oslo and Lima?"))]
        assert replies[0].status == 200, alias
        assert replies[0].response.text == "Let me look. ", alias
        assert replies[0].response.verdict.whole, (alias, replies[0].response.verdict)
        while replies[-1].response.calls:
            replies.append(await client.answer_calls())
        cities = [arguments["city"] for reply in replies for _, arguments in reply.calls]
        assert cities == ["Oslo", "Lima"], alias
        assert [len(reply.calls) for reply in replies] == ([1, 1, 0] if serial else [2, 0]), alias
        assert replies[-1].response.text == "Done.", alias
        for reply in replies:  # and strictly by its wire
            heard = read(client_wire, reply.data, stream)
            assert heard.text == reply.response.text, alias
            assert [(name, arguments) for _, name, arguments in heard.calls] == reply.calls, alias
        assert len(gateway.servers[alias].requests) == 3, alias

    async def story() -> None:
        cases = {
            f"{place}, serial {serial}, stream {stream}": (place, serial, stream)
            for place in BREAKS
            for serial in (False, True)
            for stream in (False, True)
        }
        rows: dict[str, tuple[ScriptedServer, str, Object]] = {
            alias: (ScriptedServer(BREAKS[place], WHOLE, "Done."), upstream_wire, {"serial": serial})
            for alias, (place, serial, _) in cases.items()
        }
        async with behind(rows) as gateway:
            await asyncio.gather(*(one(gateway, alias, serial, stream) for alias, (_, serial, stream) in cases.items()))

    run(story)


OTHERWISE: list[str | Step] = [Say("I look it up. "), OSLO]


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_different_text_follows_after_a_paragraph_or_is_an_error(client_wire: str, upstream_wire: str) -> None:
    broken: list[str | Step] = [Say("Let me "), LATER, Break()]

    def rows(*more: str) -> dict[str, tuple[ScriptedServer, str, Object]]:
        script = (broken, OTHERWISE, "Done.")
        return {
            alias: (ScriptedServer(*script), upstream_wire, {"serial": "serial" in alias})
            for alias in ("plain", "serial", *more)
        }

    async def appended(gateway: Behind, alias: str) -> None:
        client = gateway.client(alias, client_wire, stream=True)
        reply = await client.ask(User.of("Oslo?"))
        assert reply.response.text == "Let me \n\nI look it up. "
        assert reply.calls == [("get_weather", {"city": "Oslo"})]
        assert reply.response.verdict.whole
        assert read(client_wire, reply.data, stream=True).text == reply.response.text
        assert (await client.answer_calls()).response.text == "Done."
        assistant = gateway.servers[alias].requests[-1].messages[1]
        assert isinstance(assistant, Assistant)
        assert assistant.text == "I look it up. "  # the other text is not the model's

    async def refused(gateway: Behind, alias: str) -> None:
        reply = await gateway.client(alias, client_wire, stream=True).ask(User.of("Oslo?"))
        assert "says something else" in told_in_stream(client_wire, reply)
        assert reply.response.text == "Let me "
        assert reply.calls == []

    async def whole(gateway: Behind, alias: str) -> None:
        """A client that waits for the complete body has seen nothing of the first answer."""
        reply = await gateway.client(alias, client_wire).ask(User.of("Oslo?"))
        assert reply.response.text == "I look it up. "
        assert reply.calls == [("get_weather", {"city": "Oslo"})]

    async def story() -> None:
        async with behind(rows()) as gateway:
            await asyncio.gather(*(appended(gateway, alias) for alias in gateway.servers))
        async with behind(rows("whole", "whole serial"), on_diverge="error") as gateway:
            await asyncio.gather(
                *((whole if "whole" in alias else refused)(gateway, alias) for alias in gateway.servers)
            )

    run(story)


def told_in_stream(wire: str, reply: Reply) -> str:
    """The message of the error that a stream ends with, in its wire's format."""
    assert reply.status == 200
    framing = find_wire(wire).framing
    last = framing.events(reply.data)[-1]
    name, event = last.rpartition(b"data: ")[0], json.loads(framing.texts(last)[0])
    match wire:
        case "ollama":
            return event["error"]
        case "cohere-v2":
            assert name == b"event: message-end\n"
            assert event["delta"]["finish_reason"] == "ERROR"
            return event["delta"]["error"]
        case "bedrock-converse":
            ((kind, inside),) = event.items()
            assert kind.endswith("Exception")
            return inside["message"]
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


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_a_failing_answer_is_an_error_in_the_clients_format(client_wire: str, upstream_wire: str) -> None:
    """After some text it is in the stream, before any text it is a status; half a call is never sent."""
    cut = [Say("Let me look. "), LATER, Cut("get_weather", '{"city": "Os', id=OSLO.id), LATER, Break()]

    async def after_text(gateway: Behind, alias: str) -> None:
        reply = await gateway.client(alias, client_wire, stream=True).ask(User.of("Oslo?"))
        assert told_in_stream(client_wire, reply)
        assert reply.response.text == "Let me look. "
        assert reply.calls == []
        assert b"Os" not in reply.data
        assert len(gateway.servers[alias].requests) == 2

    async def before(gateway: Behind, alias: str, stream: bool) -> None:
        reply = await gateway.client(alias, client_wire, stream).ask(User.of("Oslo?"))
        assert_error(client_wire, reply, 502, "")

    async def story() -> None:
        twice: Object = {"options": {"attempts": 2}}
        once: Object = {"options": {"attempts": 1}}
        rows: dict[str, tuple[ScriptedServer, str, Object]] = {
            "cut": (ScriptedServer(cut, loop_last=True), upstream_wire, twice),
            "cut serial": (ScriptedServer(cut, loop_last=True), upstream_wire, {**twice, "serial": True}),
            "cut whole": (ScriptedServer(cut, loop_last=True), upstream_wire, once),
            "nothing": (ScriptedServer(Break(), loop_last=True), upstream_wire, once),
        }
        async with behind(rows) as gateway:
            await asyncio.gather(
                after_text(gateway, "cut"),
                after_text(gateway, "cut serial"),
                before(gateway, "cut whole", False),
                before(gateway, "nothing", False),
                before(gateway, "nothing", True),
            )

    run(story)


def test_a_fallback_with_another_wire_continues_in_the_middle_of_a_stream() -> None:
    broken: list[str | Step] = [Say("Let me "), LATER, Break()]
    wires = list(WIRES)
    stories = {
        **{f"from {wire}": (wire, wire, wires[at - 1]) for at, wire in enumerate(wires)},
        **{f"to {wire}": (wire, wires[at - 2], wire) for at, wire in enumerate(wires)},
    }

    async def one(gateway: Behind, alias: str, client_wire: str) -> None:
        client = gateway.client(alias, client_wire, stream=True)
        reply = await client.ask(User.of("Oslo and Lima?"))
        assert reply.response.text == "Let me look. ", alias
        assert [arguments["city"] for _, arguments in reply.calls] == ["Oslo", "Lima"], alias
        assert (await client.answer_calls()).response.text == "Let me \n\nDone.", alias
        spare = f"{alias}, spare"
        assert [len(gateway.servers[name].requests) for name in (alias, spare)] == [2, 2], alias

    async def story() -> None:
        rows: dict[str, tuple[ScriptedServer, str, Object]] = {}
        for alias, (_, first, second) in stories.items():
            spare = f"{alias}, spare"
            more: Object = {"fallback": (spare,), "options": {"attempts": 1}}
            rows[alias] = (ScriptedServer(broken, loop_last=True), first, more)
            rows[spare] = (ScriptedServer(WHOLE, "Done."), second, {})
        async with behind(rows) as gateway:
            await asyncio.gather(*(one(gateway, alias, client) for alias, (client, _, _) in stories.items()))

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
def test_a_refusal_of_the_upstream_keeps_its_status_in_the_clients_format(client_wire: str, stream: bool) -> None:
    async def one(gateway: Behind, alias: str, status: int) -> None:
        reply = await gateway.client(alias, client_wire, stream).ask(User.of("Hello."))
        inside = assert_error(client_wire, reply, status, "no, says the provider")
        openai, anthropic, gemini = REFUSALS[status]
        expected = {"anthropic-messages": anthropic, "gemini": gemini}.get(client_wire, openai)
        assert inside.get("status" if client_wire == "gemini" else "type", expected) == expected, alias
        assert reply.headers.get("Retry-After") == ("18" if status == 429 else None), alias

    def refusing(status: int) -> ScriptedServer:
        error = ProviderError("no, says the provider", status=status, retry_after=17.2 if status == 429 else None)
        return ScriptedServer(Fail(error), loop_last=True)

    async def story() -> None:
        cases = {f"{wire} {status}": (wire, status) for wire in WIRES for status in REFUSALS}
        rows: dict[str, tuple[ScriptedServer, str, Object]] = {
            alias: (refusing(status), wire, {"options": {"attempts": 1}}) for alias, (wire, status) in cases.items()
        }
        async with behind(rows) as gateway:
            await asyncio.gather(*(one(gateway, alias, status) for alias, (_, status) in cases.items()))

    run(story)


TOO_LONG = {
    "openai-chat": ("context_length_exceeded", ""),
    "openai-responses": ("context_length_exceeded", ""),
    "anthropic-messages": ("", "prompt is too long"),
    "gemini": ("", "The input token count exceeds the maximum number of tokens allowed"),
    "ollama": ("", "the input length exceeds the context length"),
    "cohere-v2": ("", "too many tokens"),
    "bedrock-converse": ("", "Input is too long for requested model"),
}


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_a_history_that_is_too_long_is_reported_so_that_the_client_compacts_it(
    client_wire: str, upstream_wire: str
) -> None:
    said = {
        "openai-chat": "This model's maximum context length is 128000 tokens.",
        "openai-responses": "Your input exceeds the context window of this model.",
        "anthropic-messages": "prompt is too long: 210000 tokens > 200000 maximum",
        "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "ollama": "the input length exceeds the context length",
        "cohere-v2": "too many tokens: total number of tokens in the prompt cannot exceed 128000 - received 131402.",
        "bedrock-converse": "Input is too long for requested model.",
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
    async def silent(gateway: Behind, alias: str) -> None:
        reply = await gateway.client(alias, wire, stream).ask(User.of("Hello."))
        inside = assert_error(wire, reply, 504, "first_byte")
        if wire == "anthropic-messages":
            assert inside["type"] == "timeout_error"

    async def story() -> None:
        late: Object = {"options": {"attempts": 1, "first_byte": 0.05}}
        rows: dict[str, tuple[ScriptedServer, str, Object]] = {
            upstream_wire: (ScriptedServer([Pause(30), Say("Late.")]), upstream_wire, late) for upstream_wire in WIRES
        }
        async with behind(rows) as gateway:
            await asyncio.gather(*(silent(gateway, alias) for alias in gateway.servers))
            for upstream_wire, server in gateway.servers.items():
                await server.stop()
                reply = await gateway.client(upstream_wire, wire, stream).ask(User.of("Hello."))
                assert_error(wire, reply, 502, "cannot be reached")

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_falls_silent_after_some_text_is_sent_once_and_complete(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer([Say("Let me "), Pause(30)], WHOLE) as upstream:
            alias = upstream_settings(upstream, wire, options={"idle": 0.05})
            async with serving(settings_for(alias)) as url:
                reply = await Client(url, wire, stream=True, parallel=None).ask(User.of("Oslo and Lima?"))
                assert reply.response.text == "Let me look. "
                assert len(reply.calls) == 2

    run(story)


LEFT_AS_THEY_CAME = {
    "split_emoji": "halves of a character in two events, which a client has to join with or without a gateway",
}
"""If client and model have one wire, text that is only unusual is not rewritten."""


WAYS = [(across, stream) for across in (False, True) for stream in (False, True) if ALL or across != stream]


@pytest.mark.parametrize(("across", "stream"), WAYS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_plain_client_can_read_every_fault_of_an_upstream(wire: str, across: bool, stream: bool) -> None:
    """One response is broken or unusual; the client is as strict as the official ones. `across`: it speaks another wire
    than the model."""
    client_wire = list(WIRES)[list(WIRES).index(wire) - 1] if across else wire
    faults = [
        fault
        for fault in FAULTS.values()
        if fault.fits(wire, stream) and fault.outcome == "answered" and (across or fault.name not in LEFT_AS_THEY_CAME)
    ]
    if not ALL:  # half of them: the other half on the next wire
        faults = faults[(list(WIRES).index(wire) + across) % 2 :: 2]

    async def one(url: str, fault: Fault) -> None:
        client = Client(url, client_wire, stream, parallel=None, model=fault.name, tools=TOOLS)
        client.messages = [User.of(f"What is the weather like, and what time is it? ({fault.name})")]
        reply = await client.post(client.body())
        assert reply.status == 200, reply.data
        first = read(client_wire, reply.data, stream)
        made = [(name, arguments.get("city")) for _, name, arguments in first.calls]
        wanted = [("get_weather", "Oslo 🌧"), ("get_weather", "Lima"), ("now", None)]
        # A damaged call comes after those that had already been sent.
        assert (sorted(made, key=str) == sorted(wanted, key=str)) if fault.damages else made == wanted, made
        client.messages.append(Assistant(first.text, reply.response.calls))
        client.messages.append(ToolMessage(tuple(result_of(call) for call in reply.response.calls)))
        reply = await client.post(client.body())
        assert reply.status == 200, reply.data
        last = read(client_wire, reply.data, stream)
        assert (last.text, last.calls) == (ANSWERED, [])

    async def story_of(url: str, fault: Fault, room: asyncio.Semaphore) -> str:
        async with room:
            try:
                await one(url, fault)
            except (AssertionError, KeyError, ValueError) as error:
                return f"{fault.name}: {type(error).__name__}: {str(error)[:300]}"
        return ""

    async def all_of_them() -> None:
        async with FaultyServer(story) as upstream:
            aliases = [
                UpstreamSettings(
                    fault.name,
                    f"{PROVIDERS[wire]}:big-model",
                    base_url=upstream.base_url(wire, fault.name),
                    wire=wire,
                    recover=fault.name.startswith("leaked"),
                    options={"idle": 1.5, "first_byte": 1.5}
                    if "stall" in fault.name
                    else {},  # longer than a busy machine is
                )
                for fault in faults
            ]
            async with serving(settings_for(*aliases)) as url:
                room = asyncio.Semaphore(24)
                told = await asyncio.gather(*(story_of(url, fault, room) for fault in faults))
            assert not any(told), "\n".join(filter(None, told))
            met = {sent.fault for sent in upstream.sent}
            assert {fault.name for fault in faults if fault.longest is None} <= met

    run(all_of_them)


@pytest.mark.parametrize("across", [False, True], ids=["same wire", "other wire"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_may_be_cut_at_any_byte(wire: str, across: bool) -> None:
    client_wire = list(WIRES)[list(WIRES).index(wire) - 1] if across else wire
    met: set[str] = set()

    def say(request: Request) -> Answer:
        if isinstance(request.messages[-1], ToolMessage):
            return "Done."
        at, *_, mode = question_of(request).split()  # an id is that of one conversation
        calls = [Call("get_weather", city=city, id=f"call_Zq{at:0>4}{city}{mode}") for city in ("Oslo", "Lima")]
        return [Think("Hm, two cities. "), Say("Let me look it up. "), *calls, Uses(5, 6)]

    def cut(_: int, request: Request) -> Fault | None:
        question = question_of(request)
        if question in met:
            return None
        met.add(question)
        return find_fault("close").at(after=int(question.partition(" ")[0]))

    async def one(url: str, at: int, serial: bool, room: asyncio.Semaphore) -> None:
        async with room:
            client = Client(url, client_wire, stream=True, parallel=None, model="serial" if serial else "m")
            client.messages = [User.of(f"{at} is where it is cut, {serial}")]
            texts: list[str] = []
            cities: list[str] = []
            while "Done." not in texts:
                reply = await client.post(client.body())
                assert reply.status == 200, (at, reply.data)
                heard = read(client_wire, reply.data, stream=True)
                texts.append(heard.text)
                cities += [arguments["city"] for _, _, arguments in heard.calls]
                client.messages.append(Assistant(heard.text, reply.response.calls))
                client.messages.append(ToolMessage(tuple(map(result_of, reply.response.calls))))
                assert len(texts) < 4, at
            assert texts == ["Let me look it up. ", *[""] * serial, "Done."], at
            assert cities == ["Oslo", "Lima"], at

    async def story() -> None:
        async with FaultyServer(say, plan=cut) as upstream:
            aliases = [
                upstream_settings(upstream, wire),
                upstream_settings(upstream, wire, alias="serial", serial=True),
            ]
            async with serving(settings_for(*aliases)) as url:
                room = asyncio.Semaphore(24)
                places = range(0, 4000, 149 if ALL else 349)
                await asyncio.gather(*(one(url, at, serial, room) for at in places for serial in (False, True)))

    run(story)


def question_of(request: Request) -> str:
    question = request.messages[0]
    assert isinstance(question, User)
    return question.text
