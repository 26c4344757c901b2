"""Durable runs that are watched over HTTP: agents, a server in a thread or a process, and a client that reads events
as a browser does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import loaded_command
from terminals import environment

from unbroken import Agent, ScriptedModel, client_tool, tool
from unbroken.models.scripted import Answer, Call, Say
from unbroken_durable import Journal, Worker, open_journal
from unbroken_durable.web import RunsApp, runs_app
from unbroken_durable.web_keys import Keys
from unbroken_gateway import GatewaySettings, running
from unbroken_gateway.http.uvicorn_server import App
from unbroken_wires.messages import Assistant, Request, User

ANSWER = "Order 7 was refunded, and 你好 to all."


@tool(approve=True)
def refund(order: int, note: str = "") -> str:
    """Refunds an order."""
    return f"refunded {order} {note}".strip()


@tool(effect="read")
def look(order: int) -> str:
    """Looks at an order."""
    return f"order {order} is late"


pick = client_tool("pick", "The user picks one.", {"type": "object", "properties": {}})


def script(request: Request) -> Answer:
    """Does what the question names, one after the other."""
    first = next(message for message in request.messages if isinstance(message, User)).parts[0]
    words = getattr(first, "text", "").split()
    asked = sum(isinstance(message, Assistant) for message in request.messages)
    steps = [word for word in words if word in ("look", "refund", "pick", "hostile")]
    if "fail" in words:
        raise RuntimeError("no such model")
    if asked >= len(steps):
        return [Say(ANSWER, chunks=8, over=0.02 if "slowly" not in words else 1.0)]
    match steps[asked]:
        case "pick":
            return [Call("pick", id="pick-1")]
        case "hostile":
            return ["Look: <img src=x onerror=alert(1)> ", Call("refund", order=10**18 + 1, note=HOSTILE, id="h-1")]
        case name:
            return [f"Step {asked + 1}. ", Call(name, order=7, id=f"{name}-{asked}")]


HOSTILE = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202e\u2028"


def agents() -> dict[str, Agent]:
    return {"support": Agent(ScriptedModel(script), [refund, look, pick])}


def journal_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}"


@contextmanager
def serving(
    folder: Path, keys: Keys | None = None, wrap: Callable[[RunsApp], App] | None = None, url: str = "", **options: Any
) -> Generator[str]:
    """`runs_app` behind the gateway's server; yields its address. `wrap` puts something around the app."""

    def make(settings: GatewaySettings) -> App:
        app = runs_app(url or journal_url(folder), keys=keys, **options)
        return app if wrap is None else wrap(app)

    with running(GatewaySettings((), port=0, stop_timeout=5), app=make) as address:
        yield address


@asynccontextmanager
async def working(folder: Path, url: str = "") -> AsyncGenerator[Journal]:
    """The journal, and a worker that drives its runs."""
    async with await open_journal(url or journal_url(folder)) as journal:
        worker = Worker(agents(), journal)
        task = asyncio.create_task(worker.run())
        try:
            yield journal
        finally:
            worker.stop()
            await task


class Told(NamedTuple):
    """An event of an SSE stream."""

    id: str
    event: str
    data: str


def parse(text: str) -> list[Told]:
    """Complete events only, as a browser takes them."""
    told: list[Told] = []
    blocks = text.split("\n\n")
    for block in blocks[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "data" in fields:
            told.append(Told(fields.get("id", ""), fields.get("event", ""), fields["data"]))
    return told


async def read_events(
    session: aiohttp.ClientSession, url: str, after: str = "", most: int | None = None, **headers: str
) -> list[Told]:
    """Reads the stream to its end, or until it has `most` events, and then cuts it."""
    sent = {**headers, **({"last-event-id": after} if after else {})}
    text = ""
    async with session.get(url, headers=sent) as answer:
        if answer.status == 204:
            return []
        assert answer.status == 200, await answer.text()
        decoder_rest = b""
        async for data in answer.content.iter_any():
            decoder_rest += data
            text = decoder_rest.decode("utf-8", "ignore")
            if most is not None and len(parse(text)) >= most:
                return parse(text)[:most]
    return parse(text)


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of the awaitable that `condition` returns."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
        return found


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.request(method, url, data=data, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


class Server:
    """`unbroken runs serve` in a process that can be killed, always on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = self._start()

    def _start(self) -> loaded_command.Started:
        options = ("--journal", journal_url(self._folder), "--port", str(self.port))
        with open(os.devnull, "r+b") as nothing:
            streams = (nothing.fileno(), nothing.fileno(), nothing.fileno())
            return loaded_command.start("runs", "serve", *options, streams=streams, env=environment())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()
