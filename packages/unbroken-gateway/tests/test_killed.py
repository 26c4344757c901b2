"""The example of the serial calls with a gateway that is killed (SIGKILL) at every step and restarted: the client only
repeats its last request, and the ending is the same."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import valkey_server
from child_processes import Child, run_gateway
from gateway_client import CITIES, IDS, PROVIDERS, QUESTION, THREE_CALLS, Client, plain, result_of, run

from unbroken.models.scripted import Answer
from unbroken_testing import Pause, Say, ScriptedServer
from unbroken_testing.scenario import FOREVER
from unbroken_wires.messages import Assistant, Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import fit
from unbroken_wires.wires.jsontext import dumps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whether a process is gone is read from /proc")

ENDING = "It is sunny everywhere."
COMPLETE = [
    User.of(QUESTION),
    Assistant("Let me look.", tuple(ToolCall("", "get_weather", {"city": city}) for city in CITIES)),
    ToolMessage(tuple(ToolResult("", (Text(f"Sunny in {city}."),)) for city in CITIES)),
]


class Model:
    """The upstream's script: what the request asks for, unless it has to answer something else first."""

    def __init__(self) -> None:
        self.instead: list[Answer] = []

    def __call__(self, request: Request) -> Answer:
        if self.instead:
            return self.instead.pop(0)
        return ENDING if any(isinstance(message, ToolMessage) for message in request.messages) else THREE_CALLS


class Gateways:
    """One gateway process after another, on one store."""

    def __init__(self, upstream: dict[str, str], store: str) -> None:
        self._settings: dict[str, Any] = {"upstreams": [upstream | {"serial": True}], "store": store}
        self._running: Child | None = None
        self.killed = 0

    async def start(self) -> str:
        """Its address."""
        self._running = await asyncio.to_thread(Child, run_gateway, **self._settings)
        return self._running.told

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running = None
            self.killed += 1

    async def restart(self) -> str:
        self.kill()
        return await self.start()

    def close(self) -> None:
        self.kill()


@asynccontextmanager
async def asking(client: Client) -> AsyncGenerator[aiohttp.ClientResponse]:
    """A request in flight whose response is not read."""
    path, query = client.path()
    async with (
        aiohttp.ClientSession(read_bufsize=1 << 10) as session,
        session.post(f"{client.url}{path}?{query}", data=dumps(client.body())) as response,
    ):
        yield response


async def first_words(client: Client) -> None:
    async with asking(client) as response:
        heard = b""
        while b"look" not in heard:
            heard += await response.content.readany()


@asynccontextmanager
async def under_way(client: Client) -> AsyncGenerator[None]:
    """A request that gets no answer while this lasts, and none after it."""

    async def ask() -> None:
        async with asking(client) as response:
            await response.read()

    task = asyncio.create_task(ask())
    yield
    with pytest.raises(aiohttp.ClientError):
        await task


async def until_asked(upstream: ScriptedServer, times: int) -> None:
    while len(upstream.requests) < times:
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("wire", "upstream_wire", "store"),
    [
        ("openai-chat", "openai-chat", "sqlite"),
        ("gemini", "openai-responses", "valkey"),
        pytest.param("openai-chat", "openai-chat", "valkey", marks=pytest.mark.slow),
        pytest.param("gemini", "openai-responses", "sqlite", marks=pytest.mark.slow),
        *(
            pytest.param(*pair, store, marks=pytest.mark.slow)
            for pair in (("anthropic-messages", "anthropic-messages"), ("openai-responses", "gemini"))
            for store in ("sqlite", "valkey")
        ),
    ],
)
def test_a_gateway_that_is_killed_at_every_step_completes_the_turn(
    store: str, wire: str, upstream_wire: str, tmp_path: Path
) -> None:
    address = f"sqlite:{tmp_path / 'kept.db'}" if store == "sqlite" else valkey_server.empty_url()
    model = Model()

    async def story() -> None:
        async with ScriptedServer(model) as upstream:
            row = {"alias": "m", "model": f"{PROVIDERS[upstream_wire]}:big-model", "wire": upstream_wire}
            gateways = Gateways(row | {"base_url": upstream.base_url(upstream_wire)}, address)
            try:
                client = Client("", wire, stream=True)
                client.messages.append(User.of(QUESTION))

                # before the request
                client.url = await gateways.start()
                gateways.kill()
                with pytest.raises(aiohttp.ClientError):
                    await client.ask()

                # before the model has answered anything
                model.instead = [[Pause(FOREVER)]]
                client.url = await gateways.start()
                async with under_way(client):
                    await until_asked(upstream, 1)
                    gateways.kill()

                # in the middle of the stream, when the client has received some of it
                model.instead = [[Say("Let me look."), Pause(FOREVER)]]
                client.url = await gateways.start()
                await first_words(client)

                # when everything was sent, before the client has read the call
                client.url = await gateways.restart()
                await first_words(client)
                while not upstream.sent[-1].over:
                    await asyncio.sleep(0.002)
                asked = len(upstream.requests)
                assert asked == 3

                # after the answer: from now on the model is not asked until the turn is complete
                client.url = await gateways.restart()
                replies = [await client.ask()]
                asked = len(upstream.requests)
                for _ in CITIES[1:]:
                    # between two calls
                    client.url = await gateways.restart()
                    client.messages.append(ToolMessage((result_of(replies[-1].response.calls[0]),)))
                    # while the next one is being sent
                    async with asking(client):
                        gateways.kill()
                    client.url = await gateways.start()
                    replies.append(await client.ask())
                assert len(upstream.requests) == asked

                # while the model answers the complete turn
                model.instead = [[Pause(FOREVER)]]
                client.url = await gateways.restart()
                client.messages.append(ToolMessage((result_of(replies[-1].response.calls[0]),)))
                async with under_way(client):
                    await until_asked(upstream, asked + 1)
                    gateways.kill()
                client.url = await gateways.start()
                last = await client.ask()
            finally:
                gateways.close()
            rule = find_wire(wire).id_rule
            assert [reply.ids for reply in replies] == [[fit(id, rule) if rule else id] for id in IDS]
            assert (last.response.text, last.calls) == (ENDING, [])
            for request in upstream.requests[asked:]:
                assert [plain(message) for message in request.messages] == COMPLETE
            assert len(upstream.requests) == asked + 2
            assert gateways.killed == 11

    run(story)
