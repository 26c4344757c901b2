"""For the tests of the gateway: a gateway over real HTTP with a scripted upstream, and a plain client of any wire.

The client is as stubborn as a real one: it sends its complete history each time, in its own wire's format, and keeps
only what that wire can express. If HTTP itself does not matter, a client may call the application directly.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
import uvicorn
from thorough import ALL

from unbroken.asgi import Receive, Scope, Send
from unbroken.models.model import Model
from unbroken.models.scripted import Line
from unbroken_gateway.app import Gateway
from unbroken_gateway.http.protocol import BoundedConfig, BoundedProtocol, websocket_options
from unbroken_gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings
from unbroken_gateway.stores import Store
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_testing import Call, Say, ScriptedServer, Step, Uses
from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.decoder import Response
from unbroken_wires.messages import Assistant, Message, Request, ToolCall, ToolMessage, ToolResult, ToolSpec, User
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.jsontext import dumps, loads

Object = dict[str, Any]
T = TypeVar("T")

PROVIDERS = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
    "gemini": "gemini",
    "ollama": "ollama",
    "cohere-v2": "cohere",
    "bedrock-converse": "bedrock",
}
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/{model}:{method}",
    "ollama": "/api/chat",
    "cohere-v2": "/v2/chat",
    "bedrock-converse": "/model/{model}/{method}",
}
SAYS_ONE_CALL = ("openai-chat", "openai-responses", "anthropic-messages")
"""Wires with words for one call at a time."""
MODEL_IN_PATH = ("gemini", "bedrock-converse")
PAIRS = [(client, upstream) for client in WIRES for upstream in WIRES]
"""All pairs of a client's and a model's wire."""
_PLACES = {wire: place for place, wire in enumerate(WIRES)}
SOME_PAIRS = [
    (client, upstream)
    for client, upstream in PAIRS
    if ALL or (_PLACES[upstream] - _PLACES[client]) % len(WIRES) in (0, 3)
]
"""For the slowest tests: each wire as client and as upstream with itself and with one other, or all pairs."""

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CITIES = ("Beijing", "Shanghai", "Guangzhou")
IDS = ("call_q7Zp2mX91aKd", "call_w8Lr5nB02cVe", "call_e9Tk8hJ63fMg")
THREE_CALLS: list[str | Step] = [
    Say("Let me look."),
    *(Call("get_weather", city=city, id=id) for city, id in zip(CITIES, IDS, strict=True)),
    Uses(input=100, output=20),
]
_SESSION: ContextVar[aiohttp.ClientSession | None] = ContextVar("_SESSION", default=None)
"""The connections of one test: a new one for each request takes longer than most requests."""
RETRY = {"x-stainless-retry-count": "1"}
QUESTION = "What is the weather in Beijing, Shanghai and Guangzhou?"


def upstream_settings(server: ScriptedServer, wire: str, alias: str = "m", **more: Any) -> UpstreamSettings:
    return UpstreamSettings(
        alias,
        f"{PROVIDERS[wire]}:big-model",
        base_url=server.base_url(wire),
        wire=wire,
        options={"attempts": 3, **more.pop("options", {})},
        **more,
    )


def settings_for(*upstreams: UpstreamSettings, clients: tuple[ClientProfile, ...] = (), **more: Any) -> GatewaySettings:
    options: dict[str, Any] = {"store": "memory:", "port": 0, **more}
    return GatewaySettings(upstreams, clients=clients, **options)


@asynccontextmanager
async def serving(
    settings: GatewaySettings,
    store: Store | None = None,
    now: Callable[[], float] | None = None,
    gateway: Gateway | None = None,
) -> AsyncGenerator[str]:
    """A gateway on a separate port, in this loop; yields its address."""
    if gateway is None:
        gateway = Gateway(settings, store) if now is None else Gateway(settings, store, now)
    config = BoundedConfig(
        gateway,
        host="127.0.0.1",
        port=0,
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=1,
        **websocket_options(settings),
    )
    config.settings = settings
    server = _Server(config)
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if running.done():
                await running
                raise RuntimeError("the gateway did not start")
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway with a scripted upstream."""

    url: str
    upstream: ScriptedServer
    clock: Clock

    def client(self, wire: str, stream: bool = False, **more: Any) -> Client:
        return Client(self.url, wire, stream, **more)

    @property
    def asked(self) -> list[list[Message]]:
        """The requests to the model."""
        return [list(request.messages) for request in self.upstream.requests]


@asynccontextmanager
async def stage(
    upstream_wire: str,
    *answers: Line,
    serial: bool = False,
    alias: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncGenerator[Stage]:
    """Each answer is for one request of the gateway; more requests are refused. `serial` and `alias` are settings of
    the alias."""
    clock = Clock()
    async with ScriptedServer(*answers) as upstream:
        row = upstream_settings(upstream, upstream_wire, serial=serial, options={"attempts": 1}, **(alias or {}))
        async with serving(settings_for(row, **settings), now=clock) as url:
            yield Stage(url, upstream, clock)


class _Server(uvicorn.Server):
    """uvicorn's own waits 0.2 s for each end."""

    async def main_loop(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.002)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.002)
        await self.lifespan.shutdown()


class Inside:
    """A gateway that is called directly, with models of this process. The owner of its store closes it."""

    def __init__(
        self, models: Mapping[str, Model], store: Store, now: Callable[[], float] = time.time, **settings: Any
    ) -> None:
        rows = tuple(UpstreamSettings(alias, "demo") for alias in models)
        self._gateway = Gateway(settings_for(*rows, **settings), store, now)
        for alias, model in models.items():
            self._gateway.upstreams[alias] = Upstream(alias, model, "", f"{alias} here", serial=False)

    async def aclose(self) -> None:
        await self._gateway.aclose()

    async def post(self, path: str, query: str, data: bytes, headers: Mapping[str, str]) -> _Raw:
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        bodies = [data]
        sent: list[dict[str, Any]] = []

        async def receive() -> Mapping[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop()}
            await asyncio.get_running_loop().create_future()  # this client never disconnects
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._gateway(scope, receive, send)
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return _Raw(sent[0]["status"], names, b"".join(part.get("body", b"") for part in sent[1:]))


@dataclass(frozen=True, slots=True)
class _Raw:
    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    data: bytes
    response: Response
    """The response as our decoder reads it; empty if the status is an error."""

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(call.name, call.arguments) for call in self.response.calls]

    @property
    def ids(self) -> list[str]:
        return [call.id for call in self.response.calls]

    @property
    def body(self) -> Any:
        return loads(self.data)


@dataclass(slots=True)
class Client:
    """A client of one wire. `messages` is its history in our format, without anything that its wire cannot express."""

    url: str | Inside
    wire: str
    stream: bool = False
    parallel: bool | None = False
    model: str = "m"
    tools: tuple[ToolSpec, ...] = (WEATHER,)
    headers: dict[str, str] = field(default_factory=dict[str, str])
    messages: list[Message] = field(default_factory=list[Message])
    habit: Callable[[list[Message]], list[Message]] | None = None
    """Changes its history each time before it is sent."""

    def request(self, messages: list[Message] | None = None) -> Request:
        messages = self.messages if messages is None else messages
        return Request(
            tuple(messages if self.habit is None else self.habit(messages)),
            self.tools,
            parallel=self.parallel,
            stream=self.stream,
            model=self.model,
        )

    def body(self, messages: list[Message] | None = None) -> Object:
        return find_wire(self.wire).encode_request(self.request(messages))

    def path(self) -> tuple[str, str]:
        """The path and query of its requests."""
        query = "alt=sse" if self.wire == "gemini" and self.stream else ""
        return path_of(self.wire, self.model, self.stream), query

    async def post(self, body: Object | bytes, **more: str) -> Reply:
        """`more`: headers."""
        path, query = self.path()
        data = body if isinstance(body, bytes) else dumps(body)
        headers = {"Content-Type": "application/json", **self.headers, **more}
        raw = await (
            _post(self.url + path, query, data, headers)
            if isinstance(self.url, str)
            else self.url.post(path, query, data, headers)
        )
        asked = find_wire(self.wire).decode_request(loads(data)) if raw.status == 200 else None
        decoder = Decoder(self.wire, None, asked)
        if raw.status == 200:
            decoder.feed(raw.data)
        return Reply(raw.status, raw.headers, raw.data, decoder.response())

    async def again(self) -> Reply:
        """Retries the last request, as an SDK does."""
        before = self.messages[:-1] if isinstance(self.messages[-1], Assistant) else self.messages
        return await self.post(self.body(before), **RETRY)

    def branch(self) -> Client:
        return replace(self, messages=list(self.messages))

    async def ask(self, *said: Message) -> Reply:
        """Sends a message and adds the answer to the history, as far as this wire can express it."""
        self.messages += said
        reply = await self.post(self.body())
        if reply.status == 200:
            message = reply.response.message
            self.messages.append(Assistant(message.text, message.calls))
        return reply

    async def answer_calls(self) -> Reply:
        """Runs the calls of the last answer, and sends their results."""
        last = self.messages[-1]
        assert isinstance(last, Assistant)
        return await self.ask(ToolMessage(tuple(result_of(call) for call in last.calls)))

    async def converse(self, question: str = QUESTION, most: int = 10) -> list[Reply]:
        """All responses to a question, up to the answer without calls."""
        replies = [await self.ask(User.of(question))]
        while replies[-1].response.calls and len(replies) < most:
            replies.append(await self.answer_calls())
        return replies


def path_of(wire: str, model: str = "m", stream: bool = False) -> str:
    return PATHS[wire].format(model=model, method=find_wire(wire).http.methods[stream])


def error_in(wire: str, body: Any, status: int) -> Object:
    """What is inside an error, which has the format of its wire. Three wires have only the message, or its kind beside
    it."""
    match wire:
        case "ollama":
            assert body.keys() == {"error"}
            return {"message": body["error"]}
        case "cohere-v2":
            assert body.keys() == {"message"}
            return body
        case "bedrock-converse":
            assert body.keys() == {"__type", "message"}
            assert body["__type"] == find_wire(wire).error_body(status, "", "")["__type"]
            return {"message": body["message"]}
        case "anthropic-messages":
            assert body["type"] == "error"
            assert body["error"].keys() == {"type", "message"}
        case "gemini":
            assert body["error"].keys() == {"code", "message", "status"}
            assert body["error"]["code"] == status
        case _:
            assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


async def _post(url: str, query: str, data: bytes, headers: Mapping[str, str]) -> _Raw:
    async with AsyncExitStack() as own:
        session = _SESSION.get() or await own.enter_async_context(aiohttp.ClientSession())
        address = f"{url}?{query}" if query else url
        async with session.post(address, data=BytesIO(data), headers=headers) as http:
            return _Raw(http.status, dict(http.headers), await http.read())


def result_of(call: ToolCall, text: str = "") -> ToolResult:
    city = (call.arguments or {}).get("city", "")
    return ToolResult.of(call, text or f"Sunny in {city}.")


def plain(message: Message) -> Message:
    """Without ids, which wires write differently."""
    match message:
        case Assistant():
            calls = tuple(ToolCall("", call.name, call.arguments) for call in message.calls)
            return Assistant(message.text, calls)
        case ToolMessage():
            return ToolMessage(tuple(replace(result, call_id="", name="", native=None) for result in message.results))
        case _:
            return message


def assert_error(wire: str, reply: Reply, status: int, *words: str) -> dict[str, Any]:
    """An HTTP error in the format of its wire. Returns what is inside."""
    assert reply.status == status, (reply.status, reply.data)
    assert reply.headers["Content-Type"] == "application/json"
    error = error_in(wire, reply.body, status)
    for each in words:
        assert each in error["message"], error
    assert "\n" not in error["message"]
    return error


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60), aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            _SESSION.set(session)
            return await work()

    return asyncio.run(bounded())


async def messages_of(
    gateway: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, body: bytes
) -> list[dict[str, Any]]:
    """What the application sends for one request, without a server in between. The client stays until the end."""
    bodies, sent = [body], list[dict[str, Any]]()

    async def receive() -> Mapping[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop()}
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await gateway(scope, receive, send)
    return sent
