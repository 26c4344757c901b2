"""The events of a durable run as they are sent to those who watch it: as they are, as the AI SDK's UI message stream,
and as AG-UI events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from unbroken.agent.streaming import closing
from unbroken.agent.ui_messages import ui_messages
from unbroken.durable.journal import Journal
from unbroken.events import NAMES, Event, RunFailed, RunFinished, RunStarted, event_to_json
from unbroken.wires.jsontext import dumps

RETRY = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""
ALIVE = b": still here\n\n"


def event_bytes(event: Event) -> bytes:
    """One event of an SSE stream: its number, its name, and all of it as JSON."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, NAMES[type(event)].encode(), dumps(event_to_json(event)))


async def event_stream(first: Event | None, events: AsyncIterator[Event]) -> AsyncGenerator[bytes]:
    """`first`: an event that was taken from `events` before."""
    async with closing(events) as following:
        yield RETRY if first is None else RETRY + event_bytes(first)
        async for event in following:
            yield event_bytes(event)


async def ui_stream(journal: Journal, run_id: str, approvals: bool) -> AsyncGenerator[bytes]:
    """The run from its beginning, as one message of the AI SDK. It ends when the run has ended, or waits."""
    events = one_message(journal, run_id)
    async with aclosing(ui_messages(events, message_id=run_id, approvals=approvals)) as lines:
        async for line in lines:
            yield line.encode()


def ag_ui_stream(journal: Journal, run_id: str) -> AsyncGenerator[bytes]:
    """The run from its beginning, as one run of AG-UI. It ends when the run has ended, or waits. Raises `UserError` if
    the package for it is not installed."""
    from unbroken.agent.ag_ui import ag_ui_events  # noqa: PLC0415 - an optional extra

    async def stream() -> AsyncGenerator[bytes]:
        async with aclosing(ag_ui_events(one_message(journal, run_id))) as lines:
            async for line in lines:
                yield line.encode()

    return stream()


async def one_message(journal: Journal, run_id: str) -> AsyncGenerator[Event]:
    """The events of a run as if one process had driven it: ends and beginnings between two drives are left out. Ends
    when the run has ended, or when it waits."""
    end: RunFinished | RunFailed | None = None
    """The end of a drive; the next event shows that the run went on."""
    started = False
    async with closing(journal.events(run_id)) as events:
        async for event in events:
            end = None
            if isinstance(event, RunStarted):
                if not started:
                    started = True
                    yield event
            elif isinstance(event, RunFailed | RunFinished):
                end = event
                if isinstance(event, RunFinished) and await _waits_for(journal, run_id, event):
                    break
            else:
                yield event
    if end is not None:
        yield end


async def _waits_for(journal: Journal, run_id: str, event: RunFinished) -> bool:
    """Is this the event with which the run began to wait, and does it wait still?"""
    if event.stop_reason != "waiting":
        return False
    row = await journal.run(run_id)
    return row.state == "waiting" and [call["call"] for call in row.pending] == [call["call"] for call in event.pending]


async def with_signs_of_life(
    stream: AsyncGenerator[bytes], every: float | None, stopping: asyncio.Event
) -> AsyncGenerator[bytes]:
    """The stream, with a comment whenever nothing was sent for `every` seconds. Ends early if the server stops: those
    who watch connect again."""
    stopped = asyncio.ensure_future(stopping.wait())
    following: asyncio.Future[bytes] | None = None
    try:
        while not stopping.is_set():
            following = following or asyncio.ensure_future(anext(stream))
            await asyncio.wait([following, stopped], timeout=every, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                if not stopping.is_set():
                    yield ALIVE
                continue
            try:
                data = following.result()
            except StopAsyncIteration:
                return
            finally:
                following = None
            yield data
    finally:
        stopped.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        await stream.aclose()
