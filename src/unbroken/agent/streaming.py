"""A run as a stream of events: the run goes on in a task of its own, the reader takes what there is. The same for
whatever else goes on for a while, tells what happens and comes to something (`Streamed`).

Whoever stops reading ends the run: leaving `async with`, `aclose`, or just dropping the stream cancels it, and every
call is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from unbroken.agent.result import OutputT, Result
from unbroken.events import Event, Sink
from unbroken.messages import Message
from unbroken.run_view import RunView

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _Mailbox(Generic[Item]):
    """Apart from the stream, so that a run does not keep a stream alive which nobody reads."""

    __slots__ = ("_readers", "events")

    def __init__(self) -> None:
        self.events: deque[Item] = deque()
        self._readers: list[asyncio.Future[None]] = []
        """Those who wait for the next event: one, unless several read the same stream."""

    def put(self, event: Item) -> None:
        self.events.append(event)
        if self._readers:
            self._wake()

    def close(self, task: asyncio.Task[Outcome]) -> None:
        if not task.cancelled():
            task.exception()  # who stopped reading will not fetch it, and need not be warned of it
        self._wake()

    async def filled(self) -> None:
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        await reader

    def _wake(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()


class Streamed(Generic[Item, Outcome]):
    """`async for` gives what happens; afterwards `result` is there. What failed raises its error at the end."""

    def __init__(self, perform: Callable[[Callable[[Item], None]], Awaitable[Outcome]]) -> None:
        self._perform = perform
        self._mailbox: _Mailbox[Item] = _Mailbox()
        self._task: asyncio.Task[Outcome] | None = None
        self._closed = False

    @property
    def result(self) -> Outcome:
        """What it came to. `RuntimeError` before its end, and if it was closed or cancelled before that; the error of
        what failed is raised here too."""
        if self._closed and (self._task is None or self._task.cancelled()):
            raise RuntimeError("the run was ended before it came to a result: its stream was closed")
        if self._task is None or not self._task.done():
            raise RuntimeError("the run has no result before its end: read the stream to the end first")
        if self._task.cancelled():
            raise RuntimeError("the run was cancelled before it came to a result")
        return self._task.result()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        mailbox = self._mailbox
        if self._task is None:
            if self._closed:
                raise StopAsyncIteration
            self._task = asyncio.ensure_future(self._perform(mailbox.put))
            self._task.add_done_callback(mailbox.close)
        while not mailbox.events:
            if self._task.done():
                if not (self._closed and self._task.cancelled()):
                    self._task.result()
                raise StopAsyncIteration
            try:
                await mailbox.filled()
            except asyncio.CancelledError:
                await self.aclose()
                raise
        return mailbox.events.popleft()

    async def aclose(self) -> None:
        """End the run if it still goes; what it said until then can still be read. One that was not begun never is."""
        if self._task is None:
            self._closed = True
        elif not self._task.done():
            self._closed = True
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)


class RunStream(Streamed[Event, Result[OutputT]], Generic[OutputT]):
    """`async for event in agent.stream(…)`. Afterwards `result` is there; a run that failed raises its error at the
    end. `messages` is the history so far, every call answered, at any time and after a cancellation too."""

    def __init__(
        self, perform: Callable[[Sink], Awaitable[Result[OutputT]]], messages: Callable[[], tuple[Message, ...]]
    ) -> None:
        super().__init__(perform)
        self._messages = messages

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history so far, every call in it answered, at any time: keep it when a run was cancelled."""
        return self._messages()


# Who takes events from a stream and stops early ends the run behind it, if there is one.


@asynccontextmanager
async def closing(stream: AsyncIterable[Event]) -> AsyncGenerator[AsyncIterable[Event]]:
    try:
        yield stream
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
        if close is not None:
            await close()


# `collect`: what a run came to, from its events alone: they may come from a stream, a file or another machine.
# `Result` is the run's own account and can be resumed; this is what a reader of the events knows, with all of them.


class Collected(RunView):
    """A `RunView` together with the events that it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """The same as `collect`, for events that are all there."""
        kept = list(events)
        collected = super().of(kept)
        collected.events = kept
        return collected

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collected) and self.events == other.events

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it is compared by what is in it


async def collect(stream: AsyncIterable[Event]) -> Collected:
    """Reads a stream of events to its end. If the stream raises there, as that of a failed run does, so does this;
    of events that were saved, `failed` tells it."""
    return Collected.of([event async for event in stream])
