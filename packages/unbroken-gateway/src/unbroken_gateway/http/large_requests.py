"""Requests with large bodies: they run on a thread with its own event loop, so that their size never delays the others.

To the rest of the gateway such a request looks like one that another replica answers: it has its own cache of turns and
shares the store. The store and the connection to the client belong to the main loop; `on_main_loop` calls them there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from unbroken.asgi import Refused, Send
from unbroken.models.sessions import close_session
from unbroken_gateway.stores import Store, StoreStats
from unbroken_gateway.stores.records import Record
from unbroken_gateway.stores.store import NOTHING, Addition, Limit
from unbroken_wires.wires.json_pieces import IN_PIECES

T = TypeVar("T")

LARGE = 1 << 20
"""A body of this many bytes is large in any case."""
_MEDIUM, _MANY = 64 << 10, 3000
"""A body from 64 KiB on is large if it has this many parts: each takes about 20 us to read, check and write."""
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in b",{[\\")
_MANY_NUMBERS = 40_000
"""The same for commas, which separate numbers: each takes about 1 us."""
LARGE_ANSWER = 64 << 10
"""A provider's answer of this many bytes is read on a thread: 64 KiB of calls take about 10 ms."""
_COPIES = 3
"""A body is in memory three times: as bytes, as values, and as the bytes for the provider."""
_VALUE = 150
"""Approximate bytes that a value takes besides its text."""

MAIN_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("unbroken_gateway_home", default=None)
"""Set in a large request: the loop that everything else runs on."""


def is_large(data: bytes) -> bool:
    if len(data) < _MEDIUM:
        return False
    if len(data) >= LARGE:
        return True
    marks = data.translate(None, _OTHER_BYTES)  # in one pass; few are left
    commas = marks.count(b",")
    if commas >= _MANY_NUMBERS or marks.count(b"{") + marks.count(b"[") >= _MANY:
        return True
    if commas >= 3 * _MANY and data.count(b'",') >= 3 * _MANY:
        return True
    # Half of a surrogate pair is beyond the fast parser and the fast writer: 1 MB of them takes 50 ms.
    return marks.count(b"\\") >= _MANY and data.count(b"\\ud") >= _MANY


class MemoryBudget:
    """The memory that large bodies may take together. A request beyond it is refused at once instead of waiting: the
    requests that hold the memory may wait for slow clients themselves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def change(self, by: int) -> None:
        with self._lock:
            if by > 0 and self._taken + by > self._most:
                raise Refused(
                    503,
                    "the gateway is answering as many large requests as it has memory for: try again",
                    {"retry-after": "1"},
                )
            self._taken += by


class MemoryShare:
    """The memory of one request, until the block ends."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size = 0

    def received(self, size: int) -> None:
        """This many bytes of the body have arrived."""
        if size >= LARGE:
            self._grow(size)

    def holds(self, size: int, values: int) -> None:
        self._grow(_COPIES * size + _VALUE * values)

    def _grow(self, size: int) -> None:
        if size > self._size:
            self._budget.change(size - self._size)
            self._size = size

    def __enter__(self) -> MemoryShare:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._size:
            self._budget.change(-self._size)


class LargeRequests:
    """The thread for large requests. It starts with the first one and ends with `aclose`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the work on the thread and waits for it. If cancelled, it cancels the work and waits for its end."""
        home = asyncio.get_running_loop()
        loop = self._loop or self._start()
        ended: asyncio.Future[None] = home.create_future()
        begun: list[asyncio.Task[None]] = []

        def settle(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                ended.cancel()
            elif (error := task.exception()) is not None:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        def begin() -> None:
            MAIN_LOOP.set(home)
            IN_PIECES.set(True)
            begun.append(loop.create_task(work()))
            begun[0].add_done_callback(lambda task: home.call_soon_threadsafe(settle, task))

        loop.call_soon_threadsafe(begin)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done():
                raise
            loop.call_soon_threadsafe(lambda: begun[0].cancel())
            while not ended.done():
                with suppress(BaseException):
                    await asyncio.shield(ended)
            if not ended.cancelled():
                ended.exception()
            raise

    async def aclose(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close_session(), loop))
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unbroken-large-requests", daemon=True)
        self._thread.start()
        return self._loop


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """The result of work on this many bytes. If they are many, it runs on another thread."""
    return work() if size < LARGE_ANSWER else await asyncio.to_thread(work)


def send_on_main_loop(home: asyncio.AbstractEventLoop, send: Send) -> Send:
    """Wraps `send` so that a request can use it from any loop."""

    async def send_there(message: dict[str, Any]) -> None:
        if asyncio.get_running_loop() is home:
            await send(message)
        else:
            await on_main_loop(home, lambda: send(message))

    return send_there


async def on_main_loop(home: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[T]]) -> T:
    """Awaits the coroutine on the loop that it belongs to."""

    async def there() -> T:
        return await call()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), home))


class StoreOnMainLoop:
    """A store that belongs to another loop."""

    def __init__(self, store: Store, home: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._home = home
        self.parts = store.parts

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return await on_main_loop(self._home, lambda: self._store.get(keys))

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        await on_main_loop(self._home, lambda: self._store.put(entries, ttl, append))

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        return await on_main_loop(self._home, lambda: self._store.add(additions, once))

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        return await on_main_loop(self._home, lambda: self._store.reserve(additions, limits))

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        return await on_main_loop(self._home, lambda: self._store.counters(groups, names))

    async def record(self, name: str, known: int = 0) -> Record | None:
        return await on_main_loop(self._home, lambda: self._store.record(name, known))

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        return await on_main_loop(self._home, lambda: self._store.replace_record(name, value, version))

    async def stats(self) -> StoreStats:
        return await on_main_loop(self._home, self._store.stats)

    async def ping(self) -> None:
        await on_main_loop(self._home, self._store.ping)

    async def aclose(self) -> None:
        """Does nothing: the main loop closes the store."""
