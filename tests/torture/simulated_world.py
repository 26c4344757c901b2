"""The world of the simulation: servers of a sharded store, providers with deployments, and gateways, on virtual time.

Only what is outside a gateway is simulated: the network to the store's servers, the providers, the death of a process.
Each gateway is the real application (`Gateway`), called as an ASGI server calls it, with the real sharded store,
circuit breakers, pools of deployments and retries.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from gateway_client import Client

from torture.checker import MESSAGES
from torture.clients import PATIENCE, Answer, NoAnswer, Writes
from torture.conversation import Conversation
from torture.history import ACCOUNT, turn_mark
from torture.upstream import FIRST_NUMBER, speak
from unbroken.asgi import ClientConnection
from unbroken.errors import RateLimited, Unavailable, Unreachable
from unbroken.models.http import HTTPModel
from unbroken.models.model import Observer
from unbroken.models.retrying import RetryingModel
from unbroken_gateway.app import Gateway
from unbroken_gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings
from unbroken_gateway.stores import StoreStats, StoreUnavailable
from unbroken_gateway.stores.records import Record
from unbroken_gateway.stores.sharded import ShardedStore
from unbroken_gateway.stores.store import NOTHING, Addition, Limit, MemoryStore, Store
from unbroken_gateway.upstreams.pool import Deployment, Pool
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_testing import Call, Say, Think
from unbroken_wires.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Native, Request, ToolCall, Usage
from unbroken_wires.transcript import repair, to_json
from unbroken_wires.wires.jsontext import dumps

ServerState: TypeAlias = Literal["up", "down", "hangs", "slow"]
ProviderState: TypeAlias = Literal["up", "down", "slow", "limits", "breaks"]

EXCHANGE = 3.0
"""Seconds after which the store on Redis gives up waiting for its server."""
ASKING: ContextVar[str] = ContextVar("asking")
"""The conversation for which a gateway works."""


class Server(MemoryStore):
    """One server of the store, which all gateways use."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(max_bytes=1 << 50, now=now)
        self.state: ServerState = "up"

    def lose_everything(self) -> None:
        self._entries.clear()
        self._expiring.clear()
        self._bytes = 0


class Connection:
    """The way from one gateway to one server. A gateway that is dead writes nothing more."""

    parts = 1

    def __init__(self, server: Server, dice: random.Random) -> None:
        self._server = server
        self._dice = dice
        self.is_dead = False

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        await self._reach()
        return await self._server.get(keys)

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        await self._reach()
        await self._server.put(entries, ttl, append)
        if self._dice.random() < 0.05:  # a gateway may die, and a server may go away, before the answer is there
            await self._reach()

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        await self._reach()
        return await self._server.add(additions, once)

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        await self._reach()
        return await self._server.reserve(additions, limits)

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        await self._reach()
        return await self._server.counters(groups, names)

    async def record(self, name: str, known: int = 0) -> Record | None:
        await self._reach()
        return await self._server.record(name, known)

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        await self._reach()
        return await self._server.replace_record(name, value, version)

    async def stats(self) -> StoreStats:
        await self._reach()
        return await self._server.stats()

    async def ping(self) -> None:
        await self._reach()

    async def aclose(self) -> None:
        self.is_dead = True

    async def _reach(self) -> None:
        if self._server.state == "hangs":
            await asyncio.sleep(EXCHANGE)
            raise StoreUnavailable("the server did not answer within 3 s")
        await asyncio.sleep(0.4 if self._server.state == "slow" else 0.0005)
        if self._server.state == "down" or self.is_dead:
            raise StoreUnavailable("no connection")


class Provider:
    """What answers behind the deployments of one name: its answers depend on the request alone, like the scripted
    model's of the torture test."""

    def __init__(self, name: str, seed: str, numbers: Callable[[], int], history: Writes) -> None:
        self.name = name
        self.state: ProviderState = "up"
        self._seed = seed
        self._numbers = numbers
        self._history = history

    def answer(self, request: Request) -> tuple[Assistant, Usage]:
        """Its tokens are its number."""
        number = FIRST_NUMBER + self._numbers()
        body = to_json(request.messages)
        said_before = dumps(cast("Any", body)).decode()
        accounts = ACCOUNT.findall(said_before)
        account = accounts[0] if accounts else ""
        mark = turn_mark(self._seed, number)
        if edits := repair(request.messages)[1]:
            self._history.write("refused", wire=MESSAGES, body=body, problems=[str(edit) for edit in edits])
        steps = speak(request, account, mark, number, self._seed)
        said = sum(isinstance(message, Assistant) for message in request.messages)
        text = "".join(step.text for step in steps if isinstance(step, Say))
        asked = [step for step in steps if isinstance(step, Call)]
        calls = tuple(
            ToolCall(_id(account, said, at, number), step.name, json.loads(step.raw), raw=step.raw, index=at)
            for at, step in enumerate(asked)
        )
        self._history.write(
            "turn",
            number=number,
            mark=mark,
            account=account,
            wire=MESSAGES,
            body=body,
            sent=said_before,
            text=text,
            calls=[[call.name, call.arguments] for call in calls],
        )
        reasoning = "".join(step.text for step in steps if isinstance(step, Think))
        native = Native("simulated", {"signature": mark}, tuple(call.id for call in calls)) if reasoning else None
        return Assistant(text, calls, reasoning, native), Usage(number, 7)


def _id(account: str, said: int, at: int, number: int) -> str:
    match account[-1:]:
        case "0" | "1" | "2" | "3" | "4" | "5":
            return f"call_{at}"
        case "6" | "7" | "8" | "9":
            return f"toolu_01Qz{number:x}Bk{at}mX91aKd7"
        case _:
            return f"call_{said}_{at}"  # as our decoders number calls without an id


class SimulatedModel:
    """A deployment as one gateway asks it. It reports to its observer as `HTTPModel` does."""

    def __init__(self, provider: Provider, dice: random.Random) -> None:
        self.name = provider.name
        self.origin = "provider"
        self.observer: Observer | None = None
        self.label = ""
        self._provider = provider
        self._dice = dice

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        observer, provider, loop = self.observer, self._provider, asyncio.get_running_loop()
        assert observer is not None
        observer.asked()
        began = loop.time()
        try:
            await self._connect(observer)
            await asyncio.sleep(self._dice.choice((0.3, 0.5, 1.0, 2.0)) * (8.0 if provider.state == "slow" else 1.0))
            observer.answered(loop.time() - began)
            message, usage = provider.answer(request)
            if message.reasoning:
                yield (ReasoningDelta(message.reasoning),)
            if message.text:
                yield (TextDelta(message.text),)
            if provider.state == "breaks" and self._dice.random() < 0.5:
                observer.failed(None)
                raise Unreachable("the connection broke off")
            yield (*map(CallReady, message.calls), UsageReported(usage), Ended(Verdict("whole"), message))
            observer.succeeded()
        finally:
            observer.ended()

    async def _connect(self, observer: Observer) -> None:
        await asyncio.sleep(0.01)
        match self._provider.state:
            case "down":
                error = Unreachable("no connection") if self._dice.random() < 0.5 else Unavailable("503", status=503)
            case "limits" if self._dice.random() < 0.7:
                error = RateLimited("too many", status=429, retry_after=float(self._dice.choice((1, 5, 30))))
            case _:
                return
        observer.failed(error)
        raise error


@dataclass(slots=True)
class SimulatedGateway:
    """A process with one gateway; None while it is dead."""

    app: Gateway | None = None
    working: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    connections: list[Connection] = field(default_factory=list[Connection])


class World:
    def __init__(
        self,
        gateways: int,
        servers: int,
        providers: Sequence[Provider],
        *,
        hold_timeout: float,
        ttl: float,
        now: Callable[[], float],
        dice: random.Random,
    ) -> None:
        self.servers = [Server(now) for _ in range(servers)]
        self.providers = providers
        self._now = now
        self._dice = dice
        self._skews = [dice.uniform(-2.0, 2.0) for _ in range(gateways)]
        self._settings = GatewaySettings(
            (UpstreamSettings("m", "demo"),),
            clients=(ClientProfile("one call at a time", user_agent="serial client"),),
            store="memory:",
            hold_timeout=hold_timeout,
            ttl=ttl,
        )
        self.gateways = [SimulatedGateway() for _ in range(gateways)]
        for number in range(gateways):
            self.start(number)

    def start(self, number: int) -> None:
        """A new process: it knows nothing but its settings."""
        one, skew = self.gateways[number], self._skews[number]
        one.connections = [Connection(server, self._dice) for server in self.servers]
        store: Store = ShardedStore(one.connections)
        one.app = Gateway(self._settings, store, lambda: self._now() + skew)
        one.app.upstreams["m"] = self._pooled()

    def kill(self, number: int) -> None:
        one = self.gateways[number]
        one.app = None
        for connection in one.connections:
            connection.is_dead = True
        for task in one.working:
            task.cancel()
        one.working = set()

    def _pooled(self) -> Upstream:
        loop = asyncio.get_running_loop()
        deployments: list[Deployment] = []
        for provider in self.providers:
            model = RetryingModel(SimulatedModel(provider, self._dice), attempts=3)
            like_http = cast("RetryingModel[HTTPModel]", model)
            deployments.append(Deployment(provider.name, like_http, 1.0, 1, 20.0, loop.time))
        upstreams = {
            each.name: Upstream("m", cast("Any", each.model), "", "provider", serial=False, fallback=("the others",))
            for each in deployments
        }
        pool = Pool(tuple(deployments), upstreams, (), "weighted", sticky=False, interval=None)
        first = upstreams[deployments[0].name]
        return Upstream("m", first.model, "", "provider", serial=False, fallback=first.fallback, pool=pool)

    async def post(
        self, conversation: Conversation, gateway: int, client: Client, data: bytes, marks: Mapping[str, str]
    ) -> Answer:
        """One HTTP request to a gateway, over a connection that breaks when the gateway dies."""
        ASKING.set(conversation.name)
        one = self.gateways[gateway]
        await asyncio.sleep(0.001)
        app = one.app
        if app is None:
            raise NoAnswer("refused")
        answer = _Received()
        leaving = ClientConnection()
        path, query = client.path()
        headers = {"content-type": "application/json", **client.headers, **marks}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": (conversation.name, 1),
            "extensions": {ClientConnection.NAME: leaving},
        }
        bodies = [data]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": bodies.pop()}

        task = asyncio.create_task(app(scope, receive, answer.send))
        one.working.add(task)
        await asyncio.wait({task}, timeout=PATIENCE)
        one.working.discard(task)
        if one.app is not app:
            raise NoAnswer("the connection broke off")
        if not task.done():
            leaving.report()
            raise NoAnswer("timeout")
        task.result()
        return answer.whole()


class _Received:
    """What a gateway sends."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self._parts.append(message.get("body", b""))

    def whole(self) -> Answer:
        return Answer(self._status, self._headers, b"".join(self._parts))
