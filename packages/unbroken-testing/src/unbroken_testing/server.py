"""A fake provider: scripts served over real HTTP, in the protocols of all wires, on 127.0.0.1.

The bytes are those of `ScriptedModel`, so a test with this server differs from one with the model only by the network.
It checks requests strictly (`strict`) and never breaks by itself; `faulty` breaks its responses.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast, get_args

from aiohttp import web

from unbroken.errors import ProviderError, UnbrokenError, UserError
from unbroken.models.scripted import Line, Script, Step, Uses, play_bytes, steps_of
from unbroken_testing.scenario import FOREVER, Chunks, Reply, Reset, Sent, Stray
from unbroken_wires.messages import Json, Request
from unbroken_wires.validation import checked
from unbroken_wires.wires import DEFAULT_WIRE, WIRES, find_wire
from unbroken_wires.wires.event_shapes import Bound
from unbroken_wires.wires.http_api import Operation
from unbroken_wires.wires.json_access import as_dict, as_text
from unbroken_wires.wires.rules import Asked as AskedRequest
from unbroken_wires.wires.rules import Refusal, refusals, rules_for

# Checks whether a provider would refuse a request. The checkers themselves are in the packages of the wires.


def check_request(
    wire: str,
    body: Json,
    *,
    provider: str = "",
    model: str = "",
    headers: Mapping[str, str] | None = None,
) -> list[str]:
    """Everything for which a provider would refuse the request, one line each. Empty: it is accepted. `provider` is the
    name of a profile (default: the wire's own provider); `model` and `headers` are those of the request, if the body
    does not name the model, or if a rule depends on a header."""
    return [refusal.message for refusal in find_refusals(wire, body, provider, model, headers or {})]


def find_refusals(wire: str, body: Json, provider: str, model: str, headers: Mapping[str, str]) -> list[Refusal]:
    if problems := check_shape(wire, body):
        return [Refusal("shape", 400, problem) for problem in problems]
    fields, found = as_dict(body), find_wire(wire)
    named = model or as_text(fields.get("model"))
    rules = rules_for(found.rules(), provider or found.http.provider, named)
    asked = AskedRequest(fields, named, headers, bool(fields.get("stream")))
    problems = found.for_tests().check_request(fields)
    return [Refusal("history", 400, problem) for problem in problems] or refusals(rules, asked)


def check_shape(wire: str, body: Json) -> list[str]:
    """Only what no server can read: there are no messages, or a field has a wrong type."""
    check = find_wire(wire).for_tests().check_shape
    return check(as_dict(body)) if isinstance(body, dict) else ["the body is not a JSON object"]


Object: TypeAlias = dict[str, Any]


@checked
class ScriptedServer:
    """`async with ScriptedServer("Hello.") as server:` and point a client to `server.base_url(wire)`.

    Each request takes the next answer; `scripts` maps models to scripts. Requests are kept: `requests` as
    decoded, `bodies` as JSON, `headers` (names in lower case), `wires`; and what was sent for each of them: `sent`.
    Requests that ask no model, because the path is wrong or the body is not JSON, are in `strays`.

    With an `api_key` other keys are refused (401), with `models` other models (404); `strict` refuses what the provider
    would refuse for this model, in its own words (see `check_request`); `provider` is the name of its profile, if it is
    not the wire's own. Requests without messages, or with fields of a wrong type, are always
    refused. `wrap` is applied between the script and the socket: a function of the chunks that returns chunks.
    `on_sent` is called when a request has been answered, `on_stray` for each of the strays.
    """

    prefixes = ("",)
    """The prefix of its paths."""

    def __init__(
        self,
        *answers: Line,
        scripts: Mapping[str, Sequence[Line]] | None = None,
        loop_last: bool = False,
        api_key: str = "",
        models: Sequence[str] = (),
        chunk_delay: float = 0.0,
        strict: bool = True,
        provider: str = "",
        wrap: Callable[[Chunks], Chunks] | None = None,
        port: int = 0,
        on_sent: Callable[[Sent], None] | None = None,
        on_stray: Callable[[Stray], None] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.bodies: list[Object] = []
        self.headers: list[dict[str, str]] = []
        self.wires: list[str] = []
        self.sent: list[Sent] = []
        self.strays: list[Stray] = []
        self.url = ""
        """Its address: `http://127.0.0.1:PORT`."""
        self._script = self._script_of(answers, loop_last)
        self._scripts = {model: self._script_of(lines, loop_last) for model, lines in (scripts or {}).items()}
        self._api_key = api_key
        self._models = (*models, *(model for model in self._scripts if model not in models)) if models else ()
        self._chunk_delay = chunk_delay
        self._strict = strict
        self._provider = provider
        self._wrap = wrap
        self._port = port
        self._on_sent = on_sent
        self._on_stray = on_stray
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()

    def base_url(self, wire: str = DEFAULT_WIRE) -> str:
        """The base URL for a client of this wire: clients of OpenAI need the `/v1` in it."""
        return self.url + find_wire(wire).http.base_path

    async def start(self) -> None:
        """Starts listening and sets `url`. `UserError` if the port is not available. `async with` calls it too."""
        app = web.Application(client_max_size=1 << 30)
        for prefix in self.prefixes:
            app.router.add_post(f"{prefix}/{{path:(?:{_ROOTS}).*}}", self._handle)
            app.router.add_get(prefix + "/{version:v1|v1beta|v1alpha}/models", self._list_models)
        # No middleware: aiohttp keeps those for ever, and with them the server and everything it has kept.
        app.router.add_route("*", "/{anything:.*}", self._refuse_path)
        # A response that stalls is over when its client has gone.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        self._stopping = asyncio.Event()
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            what = f"listening on port {self._port} failed: {error.strerror or error}"
            raise UserError(f"{what}; choose another, or 0 for any free one") from None
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Closes connections and stops listening; requests are kept. Does nothing if it is not listening."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _script_of(self, lines: Sequence[Line], loop_last: bool) -> Script:
        return Script(_checked(lines), loop_last)

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        path = f"/{http.match_info['path']}"
        for wire, each in WIRES.items():
            operation = each.http.find(path)
            if operation is not None and operation.wanted == "answer":
                return await self._answer(wire, operation, http)
        return await self._refuse_path(http)

    async def _answer(self, wire: str, operation: Operation, http: web.Request) -> web.StreamResponse:
        data = await http.read()
        sent: Sent | None = None
        try:
            request, body = self._decode(wire, operation, http, data)
            sent = self._keep(wire, http, request, body, len(data))
            self._check(wire, request, body)
            bound = self._bound(wire, request, body, _key(http))
            reply = self._reply(sent, request, http)
        except Exception as error:  # noqa: BLE001 - a script's function may raise anything; the client gets the error
            refused = _as_refusal(error)
            if sent is None:
                self._stray(http, refused.status, str(refused))
            return self._refuse(wire, refused, sent)
        if bound is not None:
            reply.chunks = ((pause, bound.sign(data)) for pause, data in reply.chunks)
        if self._wrap is not None:
            reply.chunks = self._wrap(reply.chunks)
        return await self._send(http, reply, sent)

    async def _refuse_path(self, request: web.Request) -> web.Response:
        """Answers a wrong path with the right address."""
        if request.method != "POST" and request.path.endswith(_ENDINGS):
            status, words = 405, "requests to a model use POST"
        else:
            bases = f"{self.url}/v1 for clients of OpenAI, {self.url} for others"
            status, words = 404, f"there is no such path; the base URL is {bases}"
        self._stray(request, status, words)
        message = f"{request.method} {request.path}: {words}"
        return web.json_response(find_wire(DEFAULT_WIRE).error_body(status, message), status=status)

    def _stray(self, http: web.Request, status: int, words: str) -> None:
        self.strays.append(Stray(http.method, http.path, status, words))
        if self._on_stray is not None:
            self._on_stray(self.strays[-1])

    def _decode(self, wire: str, operation: Operation, http: web.Request, data: bytes) -> tuple[Request, Object]:
        if self._api_key and _key(http) != self._api_key:
            raise ProviderError("the API key is missing or wrong", status=401)
        try:
            body = cast("Object", json.loads(data))  # `decode_request` refuses what is none
        except ValueError as error:
            raise ProviderError(f"the body is not JSON: {error}", status=400) from None
        request = find_wire(wire).decode_request(body)
        if operation.model:
            request = replace(request, model=operation.model)
        if operation.stream is not None:
            request = replace(request, stream=operation.stream)
        return request, body

    def _keep(self, wire: str, http: web.Request, request: Request, body: Object, size: int) -> Sent:
        """Keeps the request for the test."""
        self.requests.append(request)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        self.wires.append(wire)
        self.sent.append(Sent(len(self.sent), wire, request.model, request.stream, size))
        return self.sent[-1]

    def _check(self, wire: str, request: Request, body: Object) -> None:
        """Refuses what the provider would refuse."""
        if self._models and request.model not in self._models:
            raise ProviderError(f"the model {request.model!r} does not exist", status=404)
        if not self._strict:
            if problems := check_shape(wire, body):
                raise ProviderError("; ".join(problems), status=400)
        elif refused := find_refusals(wire, body, self._provider, request.model, self.headers[-1]):
            words = "; ".join([refusal.message for refusal in refused])
            raise ProviderError(words, status=refused[0].status)

    def _bound(self, wire: str, request: Request, body: Object, key: str) -> Bound | None:
        """Refuses thinking behind something else than it was written behind, or of the account of another key."""
        binds = find_wire(wire).for_tests().bound
        if not self._strict or binds is None:
            return None
        bound = binds(body, request.model, key)
        if bound.problem:
            raise ProviderError(bound.problem, status=400)
        return bound

    def _reply(self, sent: Sent, request: Request, http: web.Request) -> Reply:
        steps = self._steps(sent, request)
        return self._framed(play_bytes(steps, sent.wire, request, self._chunk_delay), request.stream, sent, http)

    def _steps(self, sent: Sent, request: Request) -> list[Step]:
        steps = self._script_for(request).answer(request, "the scripted server")
        quiet = request.stream and not find_wire(sent.wire).http.wants_usage(self.bodies[sent.number])
        steps = [step for step in steps if not (quiet and isinstance(step, Uses))]
        sent.steps = tuple(steps)
        return steps

    def _script_for(self, request: Request) -> Script:
        return self._scripts.get(request.model, self._script)

    def _framed(self, chunks: Chunks, stream: bool, sent: Sent, http: web.Request, array: bool = False) -> Reply:
        if stream and (array or find_wire(sent.wire).http.wants_array(http.query_string)):
            return Reply(_as_array(chunks), headers={"Content-Type": "application/json"})
        kind = find_wire(sent.wire).framing.content_type if stream else "application/json"
        return Reply(chunks, headers={"Content-Type": kind})

    async def _send(self, http: web.Request, reply: Reply, sent: Sent) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        try:
            async for data in self._in_time(reply.chunks):
                if not response.prepared:
                    sent.status = reply.status
                    await response.prepare(http)
                sent.data += data
                await response.write(data)
            sent.status = reply.status
        except Reset:
            await _reset(http)
        except ProviderError as error:
            if error.status and not response.prepared:
                return self._refuse(sent.wire, error, sent)
            _hang_up(http)
        except (ConnectionError, UnbrokenError):
            _hang_up(http)
        finally:
            self._end(sent)
        return response

    def _end(self, sent: Sent) -> None:
        if not sent.over:
            sent.over = True
            if self._on_sent is not None:
                self._on_sent(sent)

    async def _in_time(self, chunks: Chunks) -> AsyncIterator[bytes]:
        for pause, data in chunks:
            if pause == FOREVER:
                await self._stopping.wait()
                raise ConnectionResetError("the server stops")
            if pause:
                await asyncio.sleep(pause)
            if data:
                yield data

    def _refuse(self, wire: str, error: ProviderError, sent: Sent | None) -> web.Response:
        headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
        body = json.dumps(find_wire(wire).error_body(error.status, str(error))).encode()
        if sent is not None:
            sent.status = error.status
            sent.refused = "" if sent.fault else str(error)
            sent.data += body
            self._end(sent)
        return web.Response(body=body, status=error.status, headers=headers, content_type="application/json")

    async def _list_models(self, http: web.Request) -> web.Response:
        """The list in the formats of all wires at once: OpenAI and Anthropic read `data`, Gemini `models`."""
        ids = self._models or tuple(self._scripts) or ("scripted",)
        data = [{"id": id, "object": "model", "type": "model", "created": 0, "owned_by": "unbroken"} for id in ids]
        models = [{"name": f"models/{id}"} for id in ids]
        self._stray(http, 200, "the list of models")
        return web.json_response({"object": "list", "data": data, "models": models, "has_more": False})


S = TypeVar("S", bound=ScriptedServer)


def serve(*answers: Line, **options: Any) -> AbstractContextManager[ScriptedServer]:
    """The same server for synchronous code: it runs in a separate thread. Options: `ScriptedServer`."""
    return in_thread(ScriptedServer(*answers, **options))


@contextmanager
def in_thread(server: S) -> Generator[S]:
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


_ROOTS = "|".join(sorted({f"{wire.http.base_path}{wire.http.path}".split("/")[1] for wire in WIRES.values()}))
"""How the paths of the wires begin: `v1|v1beta|api`."""
_ENDINGS = tuple(ending for wire in WIRES.values() for ending in wire.http.endings)


def _checked(lines: Sequence[Line]) -> Sequence[Line]:
    """A mistake in the script is raised where the script is written, not sent to the client."""
    if isinstance(lines, str):
        raise UserError(f"the script {lines!r} is a string: give a list of answers")
    for number, line in enumerate(lines, 1):
        if not callable(line) and not all(isinstance(step, get_args(Step)) for step in steps_of(line)):
            what = "give a string, a step, a list of these, or a function of the request"
            raise UserError(f"answer {number} of the script is {line!r}: {what}")
    return lines


def _as_array(chunks: Chunks) -> Chunks:
    opened = False
    for pause, data in chunks:
        yield pause, b""
        for event in data.split(b"\n\n"):
            value = event.rpartition(b"data: ")[2]
            if value and value != b"[DONE]":
                yield 0.0, (b",\n" if opened else b"[") + value
                opened = True
    yield 0.0, b"]" if opened else b"[]"


def _as_refusal(error: Exception) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, UserError):
        return ProviderError(str(error), status=400)
    return ProviderError(f"the script's function raised {type(error).__name__}: {error}", status=400)


def _key(http: web.Request) -> str:
    """The key, wherever the clients of each wire put it."""
    bearer = http.headers.get("authorization", "").removeprefix("Bearer ")
    keys = (http.headers.get("x-api-key"), http.headers.get("x-goog-api-key"), http.headers.get("api-key"))
    return next((key for key in keys if key), "") or http.query.get("key", "") or bearer


def _hang_up(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.close()  # what was written is still sent; the end of the body is not


async def _reset(http: web.Request) -> None:
    transport = http.transport
    if transport is None:
        return
    while transport.get_write_buffer_size():  # what was written is sent first
        await asyncio.sleep(0.001)
    connection: socket.socket = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
