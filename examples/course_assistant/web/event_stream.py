"""Converts the events of a run to server-sent events for the page.

Only what the page shows is sent: not the history, not the model's reasoning. If anything fails, even the conversion,
the last event reports it.
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

PageEvent: TypeAlias = dict[str, Any]
STOPPED: PageEvent = {
    "event": "failed",
    "error": "ServerStopped",
    "message": "The server was stopped in the middle of the answer: start it again, then repeat the question.",
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


BROKEN: PageEvent = {
    "event": "failed",
    "error": "ServerError",
    "message": "The server could not finish this answer: see its log. Repeat the question, or rephrase it.",
}


async def events_of(session_id: str, happening: AsyncGenerator[Event | Answered, None]) -> AsyncGenerator[bytes, None]:
    """Yields the session, each step, and at the end always either `answered` or `failed`."""
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
    except Exception:  # a defect of ours; the page still gets an end
        LOG.exception("an answer could not be sent")
        yield encode(BROKEN)


def encode(event: PageEvent) -> bytes:
    """One server-sent event."""
    try:
        return b"data: %b\n\n" % orjson.dumps(event)
    except orjson.JSONEncodeError:
        # Arguments are as the model wrote them: they may contain numbers beyond 64 bits and half surrogate pairs.
        return b"data: %b\n\n" % json.dumps(event, allow_nan=False).encode()


def _answered(answered: Answered) -> PageEvent:
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
    """The streams that are being sent. `end` ends them all when the server stops."""

    def __init__(self) -> None:
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, sending: asyncio.Task[None]) -> None:
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def end(self) -> None:
        for sending in self._sending:
            sending.cancel()


class EventStream(Response):
    """Sends the events until they end or the client disconnects. A disconnect closes the generator, and with it the
    run, so that nothing continues that nobody reads. (Starlette's own streaming does not close its generator.)"""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], streams: OpenStreams) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(OSError):  # raised by a server whose client has gone
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
        async with aclosing(self._events) as events:
            with suppress(OSError):
                async for one in events:
                    await send(_part(one, more=True))


async def _end_when_left(receive: Receive, sending: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sending.cancel()


def _part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
