"""What the page is told of a run: its events in JSON, one server-sent event each, while somebody listens.

Only what the page shows goes out: not the history, not the model's reasoning. Whatever goes wrong, also in telling it,
is told as the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from course_assistant.assistant import Answered
from unbroken import CallFinished, CallStarted, Event, RequestSent, TextAdded, TextReplaced, UnbrokenError
from unbroken.events import (
    CallAdopted,
    CallDropped,
    LimitReached,
    RequestRetried,
    RoundFinished,
    TextFinished,
    event_to_json,
)

LOG = logging.getLogger("course_assistant.web")

Told: TypeAlias = dict[str, Any]
STOPPED: Told = {
    "event": "failed",
    "error": "ServerStopped",
    "message": "The server was stopped in the middle of the answer: start it again, then ask again.",
}
SHOWN = (
    RequestSent,
    RequestRetried,
    TextAdded,
    TextReplaced,
    TextFinished,
    CallStarted,
    CallFinished,
    CallAdopted,
    CallDropped,
    RoundFinished,
    LimitReached,
)


BROKEN: Told = {
    "event": "failed",
    "error": "ServerError",
    "message": "The server could not go on with this answer: its log says why. Ask again, or in other words.",
}


async def tell(session_id: str, happening: AsyncGenerator[Event | Answered, None]) -> AsyncGenerator[bytes, None]:
    """The session, each step, and at the end `answered` or `failed`: one of them, always."""
    yield encode({"event": "session", "id": session_id})
    try:
        async with aclosing(happening) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield encode(_answered(step))
                elif isinstance(step, SHOWN):
                    yield encode(event_to_json(step))
    except UnbrokenError as error:
        yield encode({"event": "failed", "error": type(error).__name__, "message": str(error)})
    except Exception:  # a defect of ours; who waits for the answer is told all the same
        LOG.exception("an answer could not be told")
        yield encode(BROKEN)


def encode(told: Told) -> bytes:
    """One server-sent event."""
    try:
        return b"data: %b\n\n" % orjson.dumps(told)
    except orjson.JSONEncodeError:
        # Arguments are as the model wrote them: numbers beyond 64 bits, halves of characters.
        return b"data: %b\n\n" % json.dumps(told, allow_nan=False).encode()


def _answered(answered: Answered) -> Told:
    result = answered.result
    usage = result.usage
    return {
        "event": "answered",
        "text": answered.text,
        "sources": [{"title": source.title, "link": source.link} for source in answered.sources],
        "stop_reason": result.stop_reason,
        "rounds": result.rounds,
        "requests": result.requests,
        "calls": len(result.calls),
        "seconds": result.seconds,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "estimated": usage.estimated,
        },
    }


class OpenStreams:
    """The streams that are being sent. `end` ends them all, for a server that stops."""

    def __init__(self) -> None:
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, sending: asyncio.Task[None]) -> None:
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def end(self) -> None:
        for sending in self._sending:
            sending.cancel()


class EventStream(Response):
    """Sends what is told until it ends or the client leaves. Leaving ends the telling at its next wait, and with it the
    run: nothing goes on that nobody reads. (Starlette's own streaming does not close its generator then.)"""

    media_type = "text/event-stream"

    def __init__(self, told: AsyncGenerator[bytes, None], streams: OpenStreams) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._told = told
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(OSError):  # what a server may raise when it has nobody to send to
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(send))
                watching = group.create_task(_end_when_left(receive, sending))
                sending.add_done_callback(lambda _: watching.cancel())
                self._streams.add(sending)
            if sending.cancelled() and watching.cancelled():
                await send(_part(encode(STOPPED), more=True))
            await send(_part(b"", more=False))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._told) as told:
            with suppress(OSError):
                async for one in told:
                    await send(_part(one, more=True))


async def _end_when_left(receive: Receive, sending: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sending.cancel()


def _part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
