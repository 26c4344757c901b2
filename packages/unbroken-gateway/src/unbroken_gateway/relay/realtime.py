"""Passes a WebSocket through to a provider: the Realtime API of OpenAI, at `/v1/realtime?model=ALIAS`.

The provider gets its own key, never the client's. Messages go both ways as they are, one at a time, so a side that does
not read slows the other down and nothing piles up here. If the alias has several deployments and one refuses the
connection, the next is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from unbroken.asgi import Receive, Refused, Send
from unbroken.errors import ProviderError, StreamError, Unreachable
from unbroken.models.http import HTTPModel
from unbroken_gateway.relay.passthrough import base_of, failed_by
from unbroken_gateway.relay.references import Reference, objects, other_models, provider_references
from unbroken_gateway.spending.passed_usage import read_usage, usage_in
from unbroken_gateway.stores import StoreUnavailable
from unbroken_wires.messages import Usage
from unbroken_wires.wires.json_access import Object, as_dict, as_text
from unbroken_wires.wires.jsontext import loads

PATH = "/v1/realtime"
RULE = "GET /v1/realtime"
CONNECTING = 10.0
CLOSED, GOING_AWAY, POLICY_VIOLATION = 1000, 1001, 1008
DONE = "response.done"
_REPORTING = (DONE, "conversation.item.input_audio_transcription.completed")
"""The events that report usage."""

_BYTES_PER_TOKEN = 4
_AUDIO_IN, _AUDIO_OUT = 6400, 3200
"""Characters of base64 that are a token: a tenth of a second of 24 kHz from a client, half of that from the model."""
_IMAGE_TOKENS = 1000

Check = Callable[[Sequence[Reference], Sequence[str]], Awaitable[None]]
"""Gets what a message of the client refers to and the fields that choose another model; raises `Refused`."""


class Answers:
    """Follows the answers on a connection, so that one that is left before its usage can be estimated: each has the
    complete conversation as its input."""

    def __init__(self, begin: Callable[[int], Awaitable[None]]) -> None:
        """`begin` gets the tokens of the conversation when an answer begins; it may raise `Refused`."""
        self._begin = begin
        self._read = 0.0
        """Tokens of the conversation so far."""
        self._written = 0.0
        self._is_open = False

    def sent(self, body: Object) -> None:
        """A message of the client."""
        for _, node in objects(body, frozenset()):
            for name, value in node.items():
                if isinstance(value, str) and name not in ("type", "event_id"):
                    self._read += _tokens(name, value)

    async def received(self, body: Object) -> None:
        """A message of the provider."""
        kind = as_text(body.get("type"))
        if kind == "response.created":
            self._is_open, self._written = True, 0.0
            await self._begin(ceil(self._read))
        elif kind == DONE:
            usage = read_usage(as_dict(as_dict(body.get("response")).get("usage")))
            self._read = float(usage.total_tokens) if usage is not None else self._read + self._written
            self._is_open, self._written = False, 0.0
        elif kind.endswith(".delta"):
            size = len(as_text(body.get("delta")))
            self._written += size / (_AUDIO_OUT if kind.endswith("audio.delta") else _BYTES_PER_TOKEN)

    def left(self) -> Usage | None:
        """What the answer that is not complete has probably used; None if there is none."""
        return Usage(ceil(self._read), ceil(self._written), estimated=True) if self._is_open else None


def _tokens(name: str, value: str) -> float:
    if name == "audio":
        return len(value) / _AUDIO_IN
    return _IMAGE_TOKENS if name == "image_url" else len(value) / _BYTES_PER_TOKEN


class _WithoutRedirects(open_websocket):
    """The key would be sent there too."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def connect(
    models: Sequence[HTTPModel], headers: Mapping[str, str], protocols: Sequence[str], most: int
) -> tuple[HTTPModel, ClientConnection, list[str]]:
    """The first of these models that accepts, its connection, and the kinds of the failures before it."""
    failed: list[str] = []
    for model in models:
        try:
            return model, await _connect(model, headers, protocols, most), failed
        except ProviderError as error:
            kind = failed_by(error.status) or ("" if error.status else "unreachable")
            if model is models[-1] or not kind:
                raise
            failed.append(kind)
    raise AssertionError("there is at least one model")


async def _connect(
    model: HTTPModel, headers: Mapping[str, str], protocols: Sequence[str], most: int
) -> ClientConnection:
    base, observer, began = base_of(model), model.observer, time.perf_counter()
    path = f"{base.path.rstrip('/')}/realtime"
    url = (
        base.with_scheme("wss" if base.scheme == "https" else "ws")
        .with_path(path)
        .with_query(model=model.endpoint.model)
    )
    if model.proxy_headers:
        raise Refused(502, f"{PATH} cannot be passed through a proxy that needs a password")
    if observer is not None:
        observer.asked()
    try:
        connection = await _WithoutRedirects(
            str(url),
            subprotocols=[Subprotocol(name) for name in protocols],
            additional_headers={**await model.headers(), **headers},
            user_agent_header=None,
            compression=None,
            max_size=most,
            max_queue=1,
            open_timeout=CONNECTING,
            close_timeout=2.0,
            proxy=None if model.proxy is None else str(model.proxy),
        )
    except InvalidStatus as refused:
        error = model.failure(refused.response.status_code, dict(refused.response.headers.raw_items()))
    except (WebSocketException, OSError, EOFError) as lost:  # a TimeoutError is an OSError
        kind = type(lost).__name__
        error = Unreachable(f"provider `{model.endpoint.provider}` cannot be reached for {PATH}: {kind}")
    else:
        if observer is not None:
            observer.answered(time.perf_counter() - began)
        return connection
    if observer is not None:
        observer.failed(error)
        observer.ended()
    raise error


async def relay(
    model: HTTPModel,
    provider: ClientConnection,
    receive: Receive,
    send: Send,
    check: Check | None,
    admit_again: Callable[[], Awaitable[None]],
    charge: Callable[[Usage, bool], None],
    answers: Answers | None = None,
    *,
    look_every: float,
) -> None:
    """Returns when either side has closed the connection, or `admit_again` raises `Refused`: it is called every
    `look_every` seconds. `charge` gets what the provider reports, and whether that is of an answer; `answers` follows
    all messages."""
    up = asyncio.create_task(_to_provider(provider, receive, send, check, answers))
    down = asyncio.create_task(_to_client(model, provider, send, charge, answers))
    code, reason = CLOSED, ""
    try:
        while True:
            done, _ = await asyncio.wait((up, down), timeout=look_every, return_when=asyncio.FIRST_COMPLETED)
            if done:
                code, reason = done.pop().result()
                break
            try:
                await admit_again()
            except (Refused, StoreUnavailable) as error:
                code, reason = POLICY_VIOLATION, _reason(error)
                break
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        with suppress(OSError):
            await provider.close()
        if model.observer is not None:
            model.observer.succeeded()
            model.observer.ended()
    with suppress(OSError, RuntimeError):  # the client may be gone
        await send({"type": "websocket.close", "code": code, "reason": reason})


async def _to_provider(
    provider: ClientConnection, receive: Receive, send: Send, check: Check | None, answers: Answers | None
) -> tuple[int, str]:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return CLOSED, ""
        data: bytes | None = message.get("bytes")
        text: str = message.get("text") or (data or b"").decode("utf-8", "replace")
        if check is not None:
            try:
                body = as_dict(loads(text.encode()))
                await check([*_references(body)], [*other_models(body)])
            except StreamError:
                return POLICY_VIOLATION, "a message is not JSON"
            except Refused as error:
                return POLICY_VIOLATION, _reason(error)
        if answers is not None:
            answers.sent(_read(text))
        try:
            await provider.send(text)
        except ConnectionClosed:
            return GOING_AWAY, ""


def _read(text: str) -> Object:
    try:
        return as_dict(loads(text.encode("utf-8", "replace")))
    except StreamError:
        return {}


def _references(body: Object) -> Iterator[Reference]:
    """Also those of a session and of a response. Their `conversation` is no id: a response is part of the one of this
    connection (`auto`), or of none."""
    for part in (body, as_dict(body.get("session")), as_dict(body.get("response"))):
        yield from provider_references({name: value for name, value in part.items() if name != "conversation"})


def _reason(error: Exception) -> str:
    """A WebSocket may give 123 bytes."""
    return str(error).encode("utf-8", "replace")[:120].decode("utf-8", "ignore")


async def _to_client(
    model: HTTPModel,
    provider: ClientConnection,
    send: Send,
    charge: Callable[[Usage, bool], None],
    answers: Answers | None,
) -> tuple[int, str]:
    try:
        async for message in provider:
            if isinstance(message, bytes):
                await send({"type": "websocket.send", "bytes": message})
            else:
                if '"usage"' in message and (usage := usage_in(message.encode(), _REPORTING)) is not None:
                    charge(usage, _read(message).get("type") == DONE)
                if answers is not None:
                    await answers.received(_read(message))
                # Providers quote keys in their errors.
                shown = model.masked(message) if '"error"' in message else message
                await send({"type": "websocket.send", "text": shown})
    except ConnectionClosed:
        pass
    except Refused as error:
        return POLICY_VIOLATION, _reason(error)
    code = provider.close_code
    return (code if code and (code == CLOSED or 3000 <= code < 5000) else GOING_AWAY), ""
