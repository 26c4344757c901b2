"""A run as a stream of events: the run is a task of its own, and the reader takes its events. `Streamed` does the same
for any other task that emits events and has a result.

If you stop reading, the run ends: leaving `async with`, `aclose`, or dropping the stream cancels it, and every call is
answered. `run_sync` uses one background event loop per process, because a connection belongs to one loop: so
connections are reused from call to call.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from concurrent.futures import CancelledError, TimeoutError
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from unbroken.agent.output import Output
from unbroken.agent.partial_output import Partial, PartialOutput
from unbroken.agent.result import OutputT, Result
from unbroken.clock import TimeLimit
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import Event, RunFailed, Sink
from unbroken.middleware import Middleware
from unbroken.models.model import close
from unbroken.models.sessions import close_session
from unbroken.run_view import RunView
from unbroken_wires.messages import Message
from unbroken_wires.validation import is_number

Item = TypeVar("Item")
Read = TypeVar("Read")
Outcome = TypeVar("Outcome")
_END: Final = object()


HAS_READER = "the stream has a reader already, which gets all of it; for a second one pass a function as `sinks=`"
READ_OUT = "the stream was read to its end already, and keeps nothing: keep what you read"
OTHER_LOOP = (
    "the stream was begun in another event loop, and only that one can read it: begin and read it inside of one "
    "asyncio.run(…)"
)


class Readable(Generic[Item]):
    """What `async for` reads, by one reader at a time. A read that is cancelled loses nothing, so
    `asyncio.wait_for(anext(stream), 5)` may be repeated."""

    _over = False
    """It was read to its end."""

    def __aiter__(self) -> Self:
        if self._over:
            raise UserError(READ_OUT)
        return self

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        raise NotImplementedError

    def heartbeat(self, seconds: float) -> AsyncGenerator[Item | None]:
        """The same items, and None whenever nothing came for so many seconds: the time for a sign of life."""
        if not is_number(seconds) or not 0 < seconds < inf:
            raise UserError(f"heartbeat({seconds!r}): give the seconds between two signs of life, a number above 0")
        return self._beating(seconds)

    async def _beating(self, seconds: float) -> AsyncGenerator[Item | None]:
        items = aiter(self)
        while True:
            limit = TimeLimit(seconds)
            try:
                with limit:
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not limit.expired:
                    raise
                yield None
            else:
                yield item

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Buffered(Readable[Item]):
    """What `fetch` returns, several items at a time, and whether they are the last. If it is cancelled, it has taken
    nothing."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[tuple[Iterable[Item], bool]]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._fetch = fetch
        self._close = close
        self._items: deque[Item] = deque()
        self._ended = self._fetching = False

    async def __anext__(self) -> Item:
        while not self._items:
            if self._ended:
                self._over = True
                raise StopAsyncIteration
            if self._fetching:
                raise UserError(HAS_READER)
            self._fetching = True
            try:
                items, self._ended = await self._fetch()
                self._items.extend(items)
            finally:
                self._fetching = False
        return self._items.popleft()

    async def aclose(self) -> None:
        """If you stop reading, the run ends."""
        self._ended = True
        self._items.clear()
        if self._close is not None:
            await self._close()


def translate(
    stream: AsyncIterable[Read],
    take: Callable[[Read], Iterable[Item]],
    end: Callable[[], Iterable[Item]] = tuple,
    *,
    reports_failure: bool = False,
) -> Buffered[Item]:
    """The events of a stream as something else: `take` makes items of each event, `end` what follows the last one.
    `reports_failure`: the event of a failure is the last one; otherwise the stream then raises its error."""
    events = aiter(stream)

    async def fetch() -> tuple[Iterable[Item], bool]:
        event: Any = await anext(events, _END)
        items = () if event is _END else take(event)
        if event is _END or (reports_failure and isinstance(event, RunFailed)):
            return chain(items, end()), True
        return items, False

    return Buffered(fetch, partial(close, events))


class _Mailbox(Generic[Item]):
    """Separate from the stream, so that a run does not keep an unread stream alive."""

    __slots__ = ("_reader", "events")

    def __init__(self) -> None:
        self.events: deque[Item] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Item) -> None:
        self.events.append(event)
        if self._reader is not None:
            self._wake()

    def close(self, task: asyncio.Task[Outcome]) -> None:
        if not task.cancelled():
            task.exception()  # a reader that stopped will not fetch it, so no warning is needed
        self._wake()

    def filled(self) -> asyncio.Future[None]:
        """What a reader awaits. One that is cancelled has cancelled it, and makes room for the next."""
        if self._reader is not None and not self._reader.done():
            raise UserError(HAS_READER)
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)


class Streamed(Readable[Item], Generic[Item, Outcome]):
    """`async for` yields the events; afterwards `result` is set. A failure raises its error at the end."""

    def __init__(self, perform: Callable[[Callable[[Item], None]], Awaitable[Outcome]]) -> None:
        self._perform = perform
        self._mailbox: _Mailbox[Item] = _Mailbox()
        self._task: asyncio.Task[Outcome] | None = None
        self._closed = False

    @property
    def result(self) -> Outcome:
        """The result. Raises `RuntimeError` before the end, and if it was closed or cancelled before; raises the error
        of a failure."""
        if self._closed and (self._task is None or self._task.cancelled()):
            raise RuntimeError("the run has no result: its stream was closed before the end")
        if self._task is None or not self._task.done():
            raise RuntimeError("the run has no result before its end: read the stream to the end first")
        if self._task.cancelled():
            raise RuntimeError("the run has no result: it was cancelled")
        return self._task.result()

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        return self._next(self._mailbox, self._perform)

    async def _next(
        self, mailbox: _Mailbox[Read], perform: Callable[[Callable[[Read], None]], Awaitable[Outcome]]
    ) -> Read:
        """What arrives next in the mailbox. The first reader starts the work, which fills it."""
        if self._task is None:
            if self._closed:
                self._over = True
                raise StopAsyncIteration
            self._task = asyncio.ensure_future(perform(mailbox.put))
            self._task.add_done_callback(mailbox.close)
        elif self._task.get_loop() is not asyncio.get_running_loop():
            raise UserError(OTHER_LOOP)
        while not mailbox.events:
            if self._task.done():
                if not (self._closed and self._task.cancelled()):
                    self._task.result()
                self._over = True
                raise StopAsyncIteration
            await mailbox.filled()
        return mailbox.events.popleft()

    async def aclose(self) -> None:
        """Ends the run if it is still active; its events so far can still be read. A run that has not started never
        will."""
        task = self._task
        if task is None:
            self._closed = True
        elif not task.done():
            self._closed = True
            if task.get_loop() is asyncio.get_running_loop():
                task.cancel()
                await asyncio.wait([task])
            else:  # another loop cannot wait for it
                self.__del__()

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)


class RunStream(Streamed[Event, Result[OutputT]], Generic[OutputT]):
    """`async for event in agent.stream(…)`. Afterwards `result` is set; a run that failed raises its error at the end.
    `messages` is the history so far, with every call answered, even after a cancellation."""

    def __init__(
        self,
        perform: Callable[[Sequence[Sink], Sequence[Middleware]], Awaitable[Result[OutputT]]],
        messages: Callable[[], tuple[Message, ...]],
        output: Output[Any] | None = None,
    ) -> None:
        """`perform` gets sinks, and middleware that is outside of all other."""
        super().__init__(lambda put: perform((put,), ()))
        self._perform_with = perform
        self._messages = messages
        self._output = output
        self._reads_values = False
        """It is read with `outputs`."""

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        if self._reads_values:
            raise UserError("the stream is read with stream.outputs(); events go to `sinks=` instead")
        return self._next(self._mailbox, self._perform)  # not `super()`: it is called for each event

    def outputs(self) -> Buffered[OutputT]:
        """The structured answer as it is written, in place of the events: `async for report in stream.outputs()`. Each
        value is valid and has more of the answer than the one before; the last is `result.output`."""
        output, perform_with = self._output, self._perform_with
        if output is None:
            raise UserError("stream.outputs(): the run has no type; give it one with output=")
        if self._task is not None or self._closed or self._reads_values:
            raise UserError("stream.outputs(): the stream was read already; events go to `sinks=` instead")
        self._reads_values = True

        def perform(put: Callable[[Partial], None]) -> Awaitable[Result[OutputT]]:
            return perform_with((), (PartialOutput(output, put),))

        values = _Mailbox[Partial]()
        last: Partial | None = None

        async def fetch() -> tuple[Iterable[OutputT], bool]:
            nonlocal last
            try:
                last = await self._next(values, perform)
            except StopAsyncIteration:
                result = self.result
                has_more = result.stop_reason not in ("waiting", "vetoed") and last != Partial(result.output)
                return ((result.output,) if has_more else ()), True
            return (last.value,), False

        return Buffered(fetch, self.aclose)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history so far, with every call answered: use it to continue after a cancellation."""
        return self._messages()


# `collect`: the outcome of a run from its events alone, which may come from a stream, a file or another machine. A
# `Result` can be resumed; `Collected` has what the events contain, and the events themselves.


class Collected(RunView):
    """A `RunView` with the events that it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """The same as `collect`, for a complete list of events."""
        kept = list(events)
        collected = super().of(kept)
        collected.events = kept
        return collected

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collected) and self.events == other.events

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it is compared by what is in it


async def collect(stream: AsyncIterable[Event]) -> Collected:
    """Reads a stream of events to its end. Raises what the stream raises, like that of a failed run; for saved events,
    check `failed`."""
    return Collected.of([event async for event in stream])


T = TypeVar("T")


class Background:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of the work. An interrupt cancels the work first and is then raised."""
        loop = self._running_loop()
        if threading.current_thread() is self._thread:
            work.close()
            raise UserError("run_sync was called from an async tool and would wait for itself; use `await agent.run`")
        stop = asyncio.Event()
        future = asyncio.run_coroutine_threadsafe(_until(stop, work), loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            # The run answers every call before it ends; a second interrupt does not wait for that.
            loop.call_soon_threadsafe(stop.set)
            with suppress(CancelledError, TimeoutError, UnbrokenError):
                future.result(timeout=10)
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="unbroken-loop", daemon=True)
                self._thread.start()
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self._forget)
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_close_all(), loop).result(timeout=5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)
        loop.close()

    def _forget(self) -> None:
        """After a fork the thread no longer exists."""
        self._loop = self._thread = None
        self._lock = threading.Lock()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """A `SystemExit` in a task (`sys.exit` in a handler) is raised for its caller; the loop keeps running."""
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Cancels the task itself, not its future, which would be done before the work has ended."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
    return await task


async def _close_all() -> None:
    await close_session()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


BACKGROUND = Background()
