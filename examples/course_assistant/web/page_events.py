"""Converts the events of a run to those of the page, as JSON, and sends them (`EventStream`). If anything fails, even
the conversion, the last event reports it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from course_assistant.assistant import Answered
from course_assistant.library import CourseLibrary
from course_assistant.quoting import numbers
from course_assistant.sources import Source
from unbroken import CallFinished, CallStarted, Event, RequestSent, RunStarted, TextAdded, TextReplaced, UnbrokenError
from unbroken.events import (
    CallAdopted,
    CallDropped,
    CallWritten,
    LimitReached,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RoundFinished,
    TextFinished,
    event_to_json,
)

LOG = logging.getLogger("course_assistant.web")

PageEvent: TypeAlias = dict[str, Any]
STOPPED_BY_USER: PageEvent = {"event": "stopped"}
STOPPED_BY_SERVER: PageEvent = {
    "event": "failed",
    "error": "ServerStopped",
    "message": "The server was stopped in the middle of the answer: start it again, then repeat the question.",
}
BROKEN: PageEvent = {
    "event": "failed",
    "error": "ServerError",
    "message": "The server could not finish this answer: see its log. Repeat the question, or rephrase it.",
}
SHOWN = (
    RunStarted,
    RequestSent,
    RequestRetried,
    ReasoningAdded,
    ReasoningReplaced,
    TextAdded,
    TextReplaced,
    TextFinished,
    CallWritten,
    CallStarted,
    CallFinished,
    CallAdopted,
    CallDropped,
    RoundFinished,
    LimitReached,
)


async def page_events(
    happening: AsyncGenerator[Event | Answered, None], library: CourseLibrary
) -> AsyncGenerator[bytes, None]:
    """Yields each step, and at the end always either `answered` or `failed`."""
    try:
        async with aclosing(happening) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield encode(_answered(step))
                elif isinstance(step, CallFinished):
                    yield encode({**event_to_json(step), "sources": listed(_found(step, library))})
                elif isinstance(step, SHOWN):
                    yield encode(event_to_json(step))
    except UnbrokenError as error:
        yield encode({"event": "failed", "error": type(error).__name__, "message": str(error)})
    except Exception:  # a defect of ours; the page still gets an end
        LOG.exception("an answer could not be sent")
        yield encode(BROKEN)


def encode(event: PageEvent) -> bytes:
    try:
        return orjson.dumps(event)
    except orjson.JSONEncodeError:
        # Arguments are as the model wrote them: they may contain numbers beyond 64 bits and half surrogate pairs.
        return json.dumps(event, allow_nan=False, separators=(",", ":")).encode()


def listed(sources: Iterable[Source]) -> list[PageEvent]:
    return [
        {"number": source.number, "title": source.title, "link": source.link, "file": source.file} for source in sources
    ]


def _found(call: CallFinished, library: CourseLibrary) -> list[Source]:
    """What the text may cite from now on, while it is still being written."""
    places = [library.place(number) for number in dict.fromkeys(numbers(call.text))] if not call.error else []
    return [place[2] for place in places if place]


def _answered(answered: Answered) -> PageEvent:
    result = answered.result
    usage = result.usage
    return {
        "event": "answered",
        "text": answered.text,
        "sources": listed(answered.sources),
        "found": listed(answered.found),
        "stop_reason": result.stop_reason,
        "rounds": result.rounds,
        "requests": result.requests,
        "calls": len(result.calls),
        "seconds": result.seconds,
        "cost": result.cost,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "estimated": usage.estimated,
        },
    }


class EventStream(Response):
    """Sends events until they end or the client disconnects, and then closes their generator, which Starlette's own
    streaming does not do."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(OSError):  # raised by a server whose client has gone
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(send))
                watching = group.create_task(_end_when_left(receive, sending))
                sending.add_done_callback(lambda _: watching.cancel())
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
