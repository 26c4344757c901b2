"""The events of a durable run as they are sent to clients: as they are, as the AI SDK's UI message stream,
and as AG-UI events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from unbroken.agent.streaming import Buffered
from unbroken.agent.ui_messages import ui_messages
from unbroken.events import Event, RunFailed, RunFinished, RunStarted
from unbroken_durable.event_feeds import BLOCK
from unbroken_durable.journal import Journal

RETRY = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""
ALIVE = b": still here\n\n"


async def event_stream(first: bytes, following: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """`first`: what was taken from `following` before."""
    async with aclosing(following):
        yield RETRY + first
        async for data in following:
            yield data


def ui_stream(journal: Journal, run_id: str, approvals: bool) -> AsyncGenerator[bytes]:
    """The run from its beginning, as one message of the AI SDK. It ends when the run has ended, or waits."""
    return _encoded(ui_messages(one_message(journal, run_id), message_id=run_id, approvals=approvals))


def ag_ui_stream(journal: Journal, run_id: str) -> AsyncGenerator[bytes]:
    """The run from its beginning, as one run of AG-UI. It ends when the run has ended, or waits. Raises `UserError` if
    the package for it is not installed."""
    from unbroken.agent.ag_ui import ag_ui_events  # noqa: PLC0415 - an optional extra

    return _encoded(ag_ui_events(one_message(journal, run_id)))


async def _encoded(lines: Buffered[str]) -> AsyncGenerator[bytes]:
    async with lines:
        async for line in lines:
            yield line.encode()


async def one_message(journal: Journal, run_id: str) -> AsyncGenerator[Event]:
    """The events of a run as if one process had driven it: ends and beginnings between two drives are left out. Ends
    when the run has ended, or when it waits."""
    end: RunFinished | RunFailed | None = None
    """The end of a drive; the next event shows that the run went on."""
    started = False
    async for event in journal.events(run_id):
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


class Outgoing:
    """A stream on its way to a client. What is there at the same time is sent together; `end` ends it early."""

    def __init__(self, stream: AsyncGenerator[bytes]) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._ready = asyncio.Event()
        """There is something to send, or nothing more will come."""
        self._taken = asyncio.Event()
        self._ended = False
        self._reading = asyncio.create_task(self._read(stream))
        self._reading.add_done_callback(lambda _: self._ready.set())

    async def _read(self, stream: AsyncGenerator[bytes]) -> None:
        """Not further ahead of the client than a block."""
        async with aclosing(stream):
            async for part in stream:
                self._parts.append(part)
                self._size += len(part)
                self._ready.set()
                if self._size >= BLOCK:
                    self._taken.clear()
                    await self._taken.wait()

    async def pieces(self, every: float | None) -> AsyncGenerator[bytes]:
        """With a comment whenever nothing was sent for `every` seconds."""
        try:
            while not self._ended:
                if self._parts:
                    data, self._parts, self._size = b"".join(self._parts), [], 0
                    self._taken.set()
                    yield data
                elif self._reading.done():
                    self._reading.result()
                    return
                else:
                    self._ready.clear()
                    try:
                        async with asyncio.timeout(every):
                            await self._ready.wait()
                    except TimeoutError:
                        yield ALIVE
        finally:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def end(self) -> None:
        self._ended = True
        self._ready.set()
