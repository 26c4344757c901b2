"""A provider that is not there: scripts served over real HTTP, in the protocols of all four wires, on 127.0.0.1.

The bytes are those of `ScriptedModel`, so a test with this server differs from one with the model only by the network.
It is strict with what it is asked (`strict`) and never breaks by itself; whoever wants broken bytes wraps the chunks.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeAlias, cast

from aiohttp import web

from unbroken.errors import ProviderError, UnbrokenError, UserError
from unbroken.messages import Request
from unbroken.models.script import Line, Script, Step, Uses
from unbroken.models.scripted import play_bytes
from unbroken.testing.refusals import refusal
from unbroken.testing.strict import check_request
from unbroken.wires import WIRES, find_wire

Object: TypeAlias = dict[str, Any]
Chunks: TypeAlias = Iterator[tuple[float, bytes]]
"""What is sent: seconds to wait, then bytes. It may raise a `ProviderError`, which is sent with its status, or a
`ConnectionResetError`, which closes the connection."""


class ScriptedServer:
    """`async with ScriptedServer("Hello.") as server:` and point a client to `server.base_url(wire)`.

    Each request takes the next answer; `scripts` gives models scripts of their own. What came is kept: `requests` as
    decoded, `bodies` as JSON, `headers` (names in lower case), `wires`. With an `api_key` other keys are refused (401),
    with `models` other models (404); `strict` refuses what the provider would refuse (400, see `check_request`).
    `wrap` stands between the script and the socket: a function of the chunks that gives chunks.
    """

    def __init__(
        self,
        *answers: Line,
        scripts: Mapping[str, Sequence[Line]] | None = None,
        loop_last: bool = False,
        api_key: str = "",
        models: Sequence[str] = (),
        chunk_delay: float = 0.0,
        strict: bool = True,
        wrap: Callable[[Chunks], Chunks] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.bodies: list[Object] = []
        self.headers: list[dict[str, str]] = []
        self.wires: list[str] = []
        self.url = ""
        """Where it listens: `http://127.0.0.1:PORT`."""
        self._script = Script(answers, loop_last)
        self._scripts = {model: Script(lines, loop_last) for model, lines in (scripts or {}).items()}
        self._api_key = api_key
        self._models = (*models, *(model for model in self._scripts if model not in models)) if models else ()
        self._chunk_delay = chunk_delay
        self._strict = strict
        self._wrap = wrap
        self._runner: web.AppRunner | None = None

    def base_url(self, wire: str = "openai-chat") -> str:
        """What a client of this wire takes for its base URL: the clients of OpenAI want the `/v1` in it."""
        return f"{self.url}/v1" if find_wire(wire).name.startswith("openai") else self.url

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        for path, wire in _PATHS.items():
            app.router.add_post(path, self._handler(wire))
        app.router.add_get("/{version:v1|v1beta|v1alpha}/models", self._list_models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _handler(self, wire: str) -> Callable[[web.Request], Any]:
        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                request = self._read(wire, http, await http.read())
                steps = self._steps(wire, request)
            except ProviderError as error:
                return _refuse(wire, error)
            except UserError as error:
                return _refuse(wire, ProviderError(str(error), status=400))
            except Exception as error:  # noqa: BLE001 - a script's function may raise anything; the client is told
                what = f"the script's function raised {type(error).__name__}: {error}"
                return _refuse(wire, ProviderError(what, status=400))
            chunks = play_bytes(steps, wire, request, self._chunk_delay)
            return await self._send(wire, http, request, self._wrap(chunks) if self._wrap else chunks)

        return handle

    def _read(self, wire: str, http: web.Request, data: bytes) -> Request:
        """The request, kept for the test to look at; refused as the provider would."""
        if self._api_key and _key(http) != self._api_key:
            raise ProviderError("the API key is missing or wrong", status=401)
        try:
            body = cast("Object", json.loads(data))  # `decode_request` refuses what is none
        except ValueError as error:
            raise ProviderError(f"the body is not JSON: {error}", status=400) from None
        request = find_wire(wire).decode_request(body)
        if wire == "gemini":  # there the model and the stream stand in the address
            stream = http.match_info["method"] == "streamGenerateContent"
            request = replace(request, model=http.match_info["model"], stream=stream)
        self.requests.append(request)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        self.wires.append(wire)
        if self._models and request.model not in self._models:
            raise ProviderError(f"the model {request.model!r} does not exist", status=404)
        if self._strict and (problems := check_request(wire, body)):
            raise ProviderError("; ".join(problems), status=400)
        return request

    def _steps(self, wire: str, request: Request) -> list[Step]:
        steps = self._scripts.get(request.model, self._script).answer(request, "the scripted server")
        quiet = wire == "openai-chat" and request.stream and not _asks_for_usage(self.bodies[-1])
        return [step for step in steps if not (quiet and isinstance(step, Uses))]

    async def _send(self, wire: str, http: web.Request, request: Request, chunks: Chunks) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream" if request.stream else "application/json"
        if wire == "gemini" and request.stream and http.query.get("alt") != "sse":
            response.content_type = "application/json"
            chunks = _as_array(chunks)
        try:
            async for data in _in_time(chunks):
                if not response.prepared:
                    await response.prepare(http)
                await response.write(data)
        except ProviderError as error:
            if error.status and not response.prepared:
                return _refuse(wire, error)
            _hang_up(http)
        except (ConnectionError, UnbrokenError):
            _hang_up(http)
        return response

    async def _list_models(self, http: web.Request) -> web.Response:
        """In the shapes of all wires at once: OpenAI and Anthropic read `data`, Gemini `models`."""
        ids = self._models or tuple(self._scripts) or ("scripted",)
        data = [{"id": id, "object": "model", "type": "model", "created": 0, "owned_by": "unbroken"} for id in ids]
        models = [{"name": f"models/{id}"} for id in ids]
        return web.json_response({"object": "list", "data": data, "models": models, "has_more": False})


@contextmanager
def serve(*answers: Line, **options: Any) -> Generator[ScriptedServer]:
    """The same server for code that is not asynchronous: it runs in a thread of its own. Options: `ScriptedServer`."""
    server = ScriptedServer(*answers, **options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


_PATHS = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic-messages",
    "/{version:v1|v1beta|v1alpha}/models/{model}:{method:generateContent|streamGenerateContent}": "gemini",
}
assert set(_PATHS.values()) == set(WIRES)


async def _in_time(chunks: Chunks) -> AsyncIterator[bytes]:
    for pause, data in chunks:
        if pause:
            await asyncio.sleep(pause)
        if data:
            yield data


def _as_array(chunks: Chunks) -> Chunks:
    """Without `alt=sse`, Gemini streams one JSON array."""
    opened = False
    for pause, data in chunks:
        yield pause, b""
        for event in data.split(b"\n\n"):
            if event:
                yield 0.0, (b",\n" if opened else b"[") + event.removeprefix(b"data: ")
                opened = True
    yield 0.0, b"]" if opened else b"[]"


def _key(http: web.Request) -> str:
    """The key, wherever the clients of the four wires put it."""
    bearer = http.headers.get("authorization", "").removeprefix("Bearer ")
    keys = (http.headers.get("x-api-key"), http.headers.get("x-goog-api-key"), http.headers.get("api-key"))
    return next((key for key in keys if key), "") or http.query.get("key", "") or bearer


def _asks_for_usage(body: Object) -> bool:
    options: Object = body.get("stream_options") or {}
    return bool(options.get("include_usage"))


def _refuse(wire: str, error: ProviderError) -> web.Response:
    headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
    return web.json_response(refusal(wire, error.status, str(error)), status=error.status, headers=headers)


def _hang_up(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.close()  # what was written still goes out; the end of the body does not
