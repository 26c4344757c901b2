"""The faulty upstream breaks what it should, where and as often as it should, and then answers well."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from unbroken import (
    Agent,
    Assistant,
    Decoder,
    Request,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
    UserError,
    connect,
    tool,
)
from unbroken.errors import ContextTooLong, ProviderError
from unbroken.models.error_responses import Asked, read_failure
from unbroken.models.retrying import RetryingModel
from unbroken.models.scripted import Line, Step
from unbroken_testing import FAULTS, Call, Fault, FaultyServer, Say, find_fault, serve_faulty, story
from unbroken_testing.faults import close, context_too_long, drip, garbage, reset, stall, status
from unbroken_testing.faulty import ANNOUNCED, TOOLS
from unbroken_testing.matrix import open_model
from unbroken_testing.plugin import FaultyUpstream
from unbroken_testing.rewrites import LEAKS
from unbroken_wires.decoding.leaked_calls.dialects import DIALECTS
from unbroken_wires.deltas import Ended, Verdict
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import WIRES, find_wire

ASKED = Request((User.of("What is the weather?"),), tools=TOOLS, model="demo")
LOOK: Line = [Say("Let me look."), Call("get_weather", city="Oslo", days=3)]
WEATHER: list[tuple[str, Any]] = [
    ("get_weather", {"city": "Oslo 🌧", "days": 3}),
    ("get_weather", {"city": "Lima", "days": 5}),
    ("now", {}),
]
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/{model}:{method}?alt=sse",
    "ollama": "/api/chat",
    "cohere-v2": "/v2/chat",
    "bedrock-converse": "/model/{model}/{method}",
}
AS_SPELLED = {"several_calls", "utf8_split", "drip", "in_one_piece"}
"""Faults that change no byte."""


@dataclass
class Heard:
    """What a client received of a response."""

    status: int
    headers: dict[str, str]
    data: bytes
    lost: str
    verdict: Verdict
    text: str
    calls: list[tuple[str, Any]]


class Client:
    def __init__(self, session: aiohttp.ClientSession, server: FaultyServer, wire: str = "openai-chat") -> None:
        self._session = session
        self._server = server
        self.wire = wire

    async def ask(self, request: Request = ASKED, prefix: str = "", patience: float = 5.0) -> Heard:
        """`patience`: the seconds to wait once the server has the request."""
        method = find_wire(self.wire).http.methods[request.stream]
        url = self._server.url + prefix + PATHS[self.wire].format(model=request.model, method=method)
        body = find_wire(self.wire).write_request(request)
        code, headers, data, lost = 0, dict[str, str](), b"", ""
        try:
            async with self._patient(patience), self._session.post(url, data=body) as answer:
                code, headers = answer.status, dict(answer.headers)
                async for piece in answer.content.iter_any():
                    data += piece
        except (aiohttp.ClientError, OSError) as error:
            lost = type(error).__name__
        names = [tool.name for tool in request.tools] if find_wire(self.wire).calls_leak else None
        decoder = Decoder(self.wire, names, request)
        decoder.feed(data)
        decoder.end(lost, "lost")
        response = decoder.response()
        calls = [(call.name, call.arguments) for call in response.calls]
        return Heard(code, headers, data, lost, response.verdict, response.text, calls)

    @asynccontextmanager
    async def _patient(self, seconds: float) -> AsyncGenerator[None]:
        sent = len(self._server.sent)
        async with asyncio.timeout(30.0) as limit:

            async def arrived() -> None:
                while len(self._server.sent) == sent:
                    await asyncio.sleep(0.001)
                limit.reschedule(asyncio.get_running_loop().time() + seconds)

            watching = asyncio.create_task(arrived())
            try:
                yield
            finally:
                watching.cancel()


def with_server(
    server: FaultyServer, main: Callable[[Client], Coroutine[Any, Any, None]], wire: str = "openai-chat"
) -> None:
    async def run() -> None:
        async with server, aiohttp.ClientSession() as session:
            await main(Client(session, server, wire))

    asyncio.run(run())


def after(answer: Assistant, request: Request = ASKED) -> Request:
    """The next request of a client that accepted this answer."""
    results = ToolMessage(tuple(ToolResult.of(call, "rain") for call in answer.calls))
    return replace(request, messages=(*request.messages, answer, results))


LOOKED = Assistant("Let me look.", (ToolCall("call_r0c0", "get_weather", {"city": "Oslo", "days": 3}, "{}"),))


def places(fault: Fault) -> Iterator[tuple[str, bool]]:
    return ((wire, stream) for wire in fault.wires for stream in (True, False) if fault.fits(wire, stream))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_behaves_as_named_and_the_next_response_is_good(fault: Fault) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            for wire, stream in places(fault):
                await check(session, wire, stream)

    async def check(session: aiohttp.ClientSession, wire: str, stream: bool) -> None:
        always = fault.longest is not None
        async with FaultyServer(story, fault=fault.at(longest=100 if always else None)) as server:
            client, request = Client(session, server, wire), replace(ASKED, stream=stream)
            heard = await client.ask(request, patience=0.05 if fault.row == 12 else 5.0)
            again = await client.ask(request)
            assert server.broken == ({0: fault.name, 1: fault.name} if always else {0: fault.name})
            sent, well = server.sent
        whole = heard.status == 200 and heard.verdict.whole and not heard.lost
        if fault.damages:
            assert not whole
        elif fault.outcome == "reported":
            assert (heard.verdict.kind, heard.verdict.again) == ("cut_call", False)
            assert [arguments for _, arguments in heard.calls].count(None) == 1
        else:
            assert whole
            assert ANNOUNCED.strip() in heard.text
            assert heard.calls == (WEATHER if fault.row != 37 else meant(sent.steps))
        if not fault.damages:
            assert (sent.data == well.data) == (fault.name in AS_SPELLED)
        if not always:
            assert again.verdict.whole
            assert (again.text, again.calls, well.fault) == (ANNOUNCED, WEATHER, "")

    asyncio.run(main())


def meant(steps: tuple[Step, ...]) -> list[tuple[str, Any]]:
    return [(step.name, json.loads(step.raw)) for step in steps if isinstance(step, Call)]


def test_every_section_that_a_server_can_break_is_there() -> None:
    assert {fault.row for fault in FAULTS.values()} == {*range(1, 20), 35, 36, 37}
    assert [fault.name for fault in FAULTS.values() if not list(places(fault))] == []
    assert set(LEAKS) < {dialect.name for dialect in DIALECTS}


def test_integers_beyond_64_bits_are_sent_exactly() -> None:
    async def main(client: Client) -> None:
        heard = await client.ask()
        assert heard.calls[0] == ("get_weather", {"city": "Oslo 🌧", "days": 2**64 + 3})

    with_server(FaultyServer(story, fault="big_integers"), main)


@pytest.mark.parametrize(
    ("takes", "needs", "given"),
    [
        (("city",), ("city",), [("get_weather", {"city": "Oslo 🌧"}), ("get_weather", {"city": "Lima"})]),
        (("place",), ("place",), [("get_weather", {"place": "Oslo 🙂"})]),
        (("city", "days"), ("city",), WEATHER[:2]),
    ],
    ids=["less", "other", "the same"],
)
def test_a_weather_tool_with_other_parameters_gets_matching_arguments(
    takes: tuple[str, ...], needs: tuple[str, ...], given: list[tuple[str, Any]]
) -> None:
    properties = {name: {"type": "string"} for name in takes}
    parameters = {"type": "object", "properties": properties, "required": [*needs]}
    answer = cast("list[Step]", story(Request((User.of("Go."),), (ToolSpec("get_weather", parameters=parameters),))))
    assert meant(tuple(answer)) == given


@pytest.mark.parametrize(
    ("fault", "words"), [("reset", "Connection reset by peer"), ("close", "it ended in the middle of the body")]
)
def test_a_lost_connection_is_described(fault: str, words: str) -> None:
    async def main() -> Verdict:
        async with FaultyServer(story, fault=fault) as server:
            model = connect("openai:demo", base_url=server.base_url(), api_key="k").model
            *_, last = [delta async for deltas in model.stream(ASKED) for delta in deltas]
            assert isinstance(last, Ended)
            return last.verdict

    verdict = asyncio.run(main())
    assert verdict.kind == "lost"
    assert verdict.reason.startswith(f"the connection was lost: {words}")


def test_emoji_are_sent_in_halves() -> None:
    async def main(client: Client) -> None:
        data = (await client.ask()).data
        assert re.search(rb"\\ud83d\"", data)
        assert re.search(rb":\"\\ude42", data)

    with_server(FaultyServer(story, fault="split_emoji"), main)


@pytest.mark.parametrize(
    ("name", "there", "gone"),
    [
        ("crlf", b"\r\n\r\n", b"}\n"),
        ("comments", b": keep-alive\n\n", b"\x00"),
        ("no_space", b"data:{", b"data: "),
        ("json_array", b'[{"id"', b"data:"),
        ("no_type", b'"index":0', b'"type":"function"'),
        ("index_as_string", b'"index":"1"', b'"index":1'),
        ("no_ids", b'"name":"now"', b"call_r0"),
        ("ids_restart", b'"id":"call_0"', b"call_r0"),
        ("null_arguments", b'"name":"now","arguments":null', b"\x00"),
        ("finish_says_stop", b'"finish_reason":"stop"', b'"finish_reason":"tool_calls"'),
        ("no_finish_reason", b"data: [DONE]", b'"finish_reason":"'),
        ("leaked_hermes", b"<tool_call>", b'"tool_calls"'),
        ("error_event_inside", b"event: error\n", b"[DONE]"),
        ("html_inside", b"</html>", b"[DONE]"),
        ("garbage", b"\x00\xfe\xff", b"\xff\xff"),
    ],
)
def test_the_bytes_are_those_of_the_fault(name: str, there: bytes, gone: bytes) -> None:
    async def main(client: Client) -> None:
        data = (await client.ask()).data
        assert there in data
        assert gone not in data

    with_server(FaultyServer(story, fault=name), main)


def post_raw(server: FaultyServer) -> socket.socket:
    """A request on a bare socket, to see the end of the connection itself."""
    host, port = server.url.removeprefix("http://").split(":")
    body = find_wire("openai-chat").write_request(ASKED)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)), 5)
    connection.sendall(head.encode() + body)
    return connection


def read_raw(connection: socket.socket) -> tuple[bytes, bool]:
    """What was received, and whether the connection was reset."""
    data = b""
    with connection:
        try:
            while piece := connection.recv(65536):
                data += piece
        except ConnectionResetError:
            return data, True
    return data, False


@pytest.mark.parametrize(
    ("fault", "was_reset", "head"),
    [
        (reset(after=300), True, True),
        (reset(after=0), True, False),
        (find_fault("reset_at_once"), True, False),
        (close(after=300), False, True),
        (find_fault("hang_up"), False, False),
    ],
)
def test_a_reset_is_a_reset_and_a_close_is_a_close(fault: Fault, was_reset: bool, head: bool) -> None:
    with serve_faulty(story, fault=fault) as server:
        data, ended_in_reset = read_raw(post_raw(server))
        assert ended_in_reset == was_reset
        assert data.startswith(b"HTTP/1.1 200") == head
        assert not data.endswith(b"0\r\n\r\n")
        assert len(server.sent[0].data) == (300 if head else 0)


def test_a_clean_end_is_one_in_http() -> None:
    with serve_faulty(story, fault="clean_end_without_finish") as server:
        connection = post_raw(server)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            piece = connection.recv(65536)
            assert piece
            data += piece
        connection.close()
        assert b'finish_reason":"' not in data


async def half_sent(server: FaultyServer, number: int) -> None:
    while len(server.sent) <= number or len(server.sent[number].data) < 200:
        await asyncio.sleep(0.001)


def test_a_stall_ends_when_its_client_has_gone_or_the_server_stops() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        server = FaultyServer(story, fault=stall(after=200), times=None)
        await server.start()
        async with aiohttp.ClientSession() as session:
            client = Client(session, server)
            gone = asyncio.create_task(client.ask())
            await half_sent(server, 0)
            gone.cancel()
            while not server.sent[0].over:  # it notices by itself
                await asyncio.sleep(0.001)
            waiting = asyncio.create_task(client.ask())
            await half_sent(server, 1)
            await server.stop()
            heard = await waiting
            assert (heard.lost, len(heard.data)) == ("ClientPayloadError", 200)
        assert server.sent[1].over
        assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_drip_takes_time() -> None:
    async def main(client: Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await client.ask(replace(ASKED, stream=False))).text == "Hi."
        assert loop.time() - began >= 0.001 * 150

    with_server(FaultyServer("Hi.", fault=drip(0.001)), main)


def test_a_status_has_the_format_of_its_wire_and_a_retry_after() -> None:
    async def main(client: Client) -> None:
        limited, overloaded, odd, well = [await client.ask() for _ in range(4)]
        assert (limited.status, limited.headers["Retry-After"]) == (429, "1.5")
        assert json.loads(limited.data) == find_wire(client.wire).error_body(429, "too many requests")
        assert (overloaded.status, "Retry-After" in overloaded.headers) == (529, False)
        assert (odd.status, well.status) == (418, 200)

    for wire in WIRES:
        with_server(FaultyServer("Hi.", fault=[status(429, retry_after=1.5), status(529), status(418)]), main, wire)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS.values() if fault.row == 35 and fault.instead])
def test_a_context_that_is_too_long_is_recognised_in_every_wording(fault: Fault) -> None:
    asked = Asked("some", "demo", "http://127.0.0.1")
    for wire in fault.wires:
        reply = fault.in_place(wire)
        assert reply is not None
        error: ProviderError = read_failure(asked, reply.status, reply.headers, next(reply.chunks)[1], 0.0)
        assert isinstance(error, ContextTooLong)


def test_a_context_is_too_long_until_it_is_shortened() -> None:
    long = replace(ASKED, messages=(User.of("x" * 3000),))

    async def main(client: Client) -> None:
        codes = [(await client.ask(request)).status for request in (ASKED, long, long, ASKED)]
        assert codes == [200, 400, 400, 200]

    with_server(FaultyServer(story, fault=context_too_long("vllm", longest=2500)), main)


def test_a_broken_answer_is_repeated_before_the_next_one() -> None:
    async def main(client: Client) -> None:
        assert not (await client.ask()).verdict.whole
        assert (await client.ask(replace(ASKED, stream=False))).text == "Let me look."
        assert (await client.ask(after(LOOKED))).text == "Rain."

    server = FaultyServer(LOOK, "Rain.", fault="reset")
    with_server(server, main)
    assert server.broken == {0: "reset"}
    assert "Let me look.".startswith(server.sent[0].text)
    assert [sent.text for sent in server.sent[1:]] == ["Let me look.", "Rain."]


def test_a_client_that_took_a_broken_response_as_complete_gets_the_next_answer() -> None:
    async def main(client: Client) -> None:
        heard = await client.ask()
        assert (heard.verdict.whole, heard.lost) == (True, "ClientPayloadError")
        assert (await client.ask(after(LOOKED))).text == "Rain."

    with_server(FaultyServer(LOOK, "Rain.", fault=close(after=10**6)), main)


def test_a_model_that_learns_of_an_incomplete_call_repeats_it() -> None:
    async def main(client: Client) -> None:
        assert (await client.ask()).calls == [("get_weather", None)]
        assert (await client.ask(after(LOOKED))).calls == [("get_weather", {"city": "Oslo", "days": 3})]

    with_server(FaultyServer(LOOK, "Rain.", fault="cut_by_length"), main)


def test_a_refused_request_uses_no_answer() -> None:
    async def main(client: Client) -> None:
        assert [(await client.ask()).status for _ in range(3)] == [503, 503, 200]

    with_server(FaultyServer("Hi.", fault="status_503", times=2), main)


def test_a_repeated_answer_may_differ() -> None:
    async def main(client: Client) -> None:
        first, second = await client.ask(), await client.ask()
        assert first.text == "Let me look."
        assert second.text == "In other words: Let me look."
        assert second.calls == first.calls
        assert b"call_r0c0" in first.data
        assert b"call_r0c0" not in second.data

    with_server(FaultyServer(LOOK, fault="error_at_the_end", differs=True), main)
    shorter = FaultyServer(LOOK, fault="error_at_the_end", differs=lambda steps: [Say("Hm."), *steps[1:]])

    async def own(client: Client) -> None:
        assert [(await client.ask()).text for _ in range(2)] == ["Let me look.", "Hm."]

    with_server(shorter, own)


def test_which_responses_break_can_be_chosen() -> None:
    def planned(number: int, request: Request) -> str | None:
        return "status_500" if number == 1 and request.stream else None

    plans: list[tuple[dict[str, Any], dict[int, str]]] = [
        ({"fault": "status_503", "times": None}, {0: "status_503", 1: "status_503", 2: "status_503"}),
        ({"fault": "status_503", "times": None, "on": (0, 2)}, {0: "status_503", 2: "status_503"}),
        ({"fault": ["status_503", "html_page"]}, {0: "status_503", 1: "html_page"}),
        ({"fault": ["leaked_hermes", "status_503"]}, {0: "status_503"}),
        ({"plan": planned}, {1: "status_500"}),
        ({}, {}),
    ]
    for options, broken in plans:
        server = FaultyServer("Hi.", loop_last=True, **options)

        async def main(client: Client) -> None:
            for _ in range(3):
                await client.ask()

        with_server(server, main, "anthropic-messages")
        assert server.broken == broken


def test_a_fault_without_anything_to_break_waits() -> None:
    async def main(client: Client) -> None:
        assert [(await client.ask()).verdict.kind for _ in range(2)] == ["whole", "cut_call"]

    server = FaultyServer("No calls here.", LOOK, fault="cut_by_length")
    with_server(server, main)
    assert server.broken == {1: "cut_by_length"}


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_chooses_its_fault_by_model_or_address(wire: str) -> None:
    by_model = replace(ASKED, model="fault:status_503")
    server = FaultyServer(story)

    async def main(client: Client) -> None:
        assert [(await client.ask(by_model)).status for _ in range(2)] == [503, 200]
        final = after(LOOKED, by_model)
        assert (await client.ask(final)).text.startswith("Rain")
        assert (await client.ask(by_model)).status == 503  # that run was over, and this is another
        assert (await client.ask(prefix="/fault/html_page")).data.startswith(b"<!DOCTYPE")
        assert (await client.ask(prefix="/fault/html_page")).verdict.whole
        unknown = await client.ask(prefix="/fault/rest")
        assert (unknown.status, b"did you mean reset" in unknown.data) == (400, True)

    with_server(server, main, wire)
    assert server.broken == {0: "status_503", 3: "status_503", 4: "html_page"}
    assert server.base_url(wire, fault="reset").startswith(f"{server.url}/fault/reset")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": 0}, r"times=0\): give a whole number above 0, or None"),
        ({"times": -1}, r"times=-1\)"),
        ({"times": "all"}, r"times='all'\)"),
        ({"on": 1}, r"on=1\): give the numbers of requests, as in on=\(0, 2\)"),
        ({"after": -3}, r"after=-3\): give a number of bytes"),
        ({"fault": 3}, r"^3 is not a fault: give a name"),
    ],
)
def test_a_server_that_cannot_break_anything_is_refused(options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"fault": "reset", **options}
    with pytest.raises(UserError, match=message):
        FaultyServer("Hello.", **settings)


def test_a_single_answer_of_the_fixture_needs_no_list(faulty_upstream: FaultyUpstream) -> None:
    server = faulty_upstream("status_503", answers="Hello.", times=2)
    model = RetryingModel(open_model("openai-chat", server.base_url()), first_wait=0.001)
    assert Agent(model).run_sync("Hi.").text == "Hello."
    assert server.broken == {0: "status_503", 1: "status_503"}


def test_a_fault_has_a_name_and_may_have_a_position() -> None:
    assert find_fault("reset@120") == reset(after=120) != garbage(after=120)
    assert find_fault("status-429").name == "status_429"
    with pytest.raises(UserError, match=r"there is no fault 'rest'; did you mean reset\? `unbroken faults list` shows"):
        find_fault("rest")
    with pytest.raises(UserError, match="as in reset@120"):
        find_fault("reset@soon")
    with serve_faulty() as one:
        port = int(one.url.rpartition(":")[2])
        with pytest.raises(UserError, match=rf"listening on port {port} failed: .+ or 0 for any free one"):
            serve_faulty(port=port).__enter__()


def test_our_agent_gets_its_answer_from_a_server_that_breaks() -> None:
    @tool(effect="write")
    def get_weather(city: str, days: int) -> str:
        """The weather."""
        return "rain"

    async def main() -> None:
        async with FaultyServer(LOOK, "Rain.", fault=["reset", "stall"], times=1) as server:
            model = connect(
                "openai:demo", base_url=server.base_url(), api_key="none", idle=0.3, first_byte=0.5, attempts=5
            )
            result = await Agent(model, tools=[get_weather]).run("Oslo?")
            assert result.text == "Rain."
            assert list(server.broken.values()) == ["reset", "stall"]

    asyncio.run(main())


TESTS = """
import sys
import urllib.request
from urllib.error import HTTPError

urls = []

def test_nothing_heavy_is_imported_yet():
    assert not {"aiohttp", "pydantic", "orjson", "unbroken_testing.server"} & set(sys.modules)

def test_a_server_that_breaks(faulty_upstream, scripted_upstream):
    for server in (faulty_upstream("status_503", answers=["Hi."]), scripted_upstream("Hi.")):
        urls.append(server.url)
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "Hi."}]}'
    codes = []
    for url in (urls[0], urls[0], urls[1]):
        try:
            codes.append(urllib.request.urlopen(f"{url}/v1/chat/completions", body).status)
        except HTTPError as error:
            codes.append(error.code)
            error.close()
    assert codes == [503, 200, 200]

def test_they_are_stopped():
    for url in urls:
        try:
            urllib.request.urlopen(url)
        except OSError as error:
            assert "refused" in str(error)
        else:
            raise AssertionError("it still runs")
"""


def test_the_fixtures_start_servers_and_stop_them(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, "utf-8")
    installed = any(point.name == "unbroken" for point in entry_points(group="pytest11"))
    # In a tree that was not installed since it has the plugin, it has to be named.
    named = [] if installed else ["-p", "unbroken_testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *named, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert "warning" not in done.stdout
