"""The events of watched runs as bytes of an SSE stream: each run is read and encoded once for all who watch it, and one
look at the journal finds what is new of all of them.

A feed holds the latest events, up to a bound. A reader that starts before them reads the journal first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing

from unbroken.errors import UserError
from unbroken.events import NAMES, Event, event_to_json
from unbroken_durable.changes import Waiter
from unbroken_durable.journal import PAGE, Journal
from unbroken_durable.records import ENDED, RunRow, State
from unbroken_durable.run_lines import RunEvents
from unbroken_wires.wires.jsontext import dumps

BLOCK = 32 * 1024
"""Bytes that are sent at once; a single event may have more."""
KEPT = 64 * 1024 * 1024
"""Bytes of all feeds together."""
LINGER = 5.0
"""Seconds for which a feed is kept after the last one who watched has left: clients whose network is bad come back."""


def event_bytes(event: Event) -> bytes:
    """One event of an SSE stream: its number, its name, and all of it as JSON."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, NAMES[type(event)].encode(), dumps(event_to_json(event)))


class _Feed:
    """One run."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.watchers: set[asyncio.Event] = set()
        self.chunks = 0
        """How many appends were read."""
        self.state: State | None = None
        """The state after them; None: nothing was read yet."""
        self.error: Exception | None = None
        """Why it cannot be read."""
        self._reader = RunEvents(row.run_id)
        self._numbers: list[int] = []
        self._events: list[bytes] = []
        self._size = 0
        self._trimmed = False
        """There were earlier events."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def add(self, row: RunRow, data: list[bytes], most: int) -> None:
        for event in self._reader.feed(data):
            self._numbers.append(event.seq)
            self._events.append(event_bytes(event))
            self._size += len(self._events[-1])
        self.chunks += len(data)
        self.state = row.state if row.chunks == self.chunks else self.state or "running"
        self.trim(most)

    def trim(self, most: int) -> None:
        """Drops the oldest events if there are more bytes than this; then half as many stay, so that it is rare."""
        if self._size <= most:
            return
        count = 0
        while self._size > most // 2 and count < len(self._events) - 1:
            self._size -= len(self._events[count])
            count += 1
        del self._events[:count], self._numbers[:count]
        self._trimmed = self._trimmed or count > 0

    def is_behind(self, number: int) -> bool:
        """Whether events after this number are not kept any more."""
        return self._trimmed and number < self._numbers[0] - 1

    def block(self, after: int, most: int) -> tuple[bytes, int] | None:
        """Events after this number, up to so many bytes, and the last one's number; None if there are none."""
        start = end = bisect_right(self._numbers, after)
        size = 0
        while end < len(self._events) and size < most:
            size += len(self._events[end])
            end += 1
        return (b"".join(self._events[start:end]), self._numbers[end - 1]) if end > start else None

    def ring(self) -> None:
        for watcher in self.watchers:
            watcher.set()


class EventFeeds:
    """The feeds of a journal. `kept_of_one`: bytes that one of them keeps; `block`: bytes that are sent at once."""

    def __init__(self, journal: Journal, *, kept_of_one: int = 8 * 1024 * 1024, block: int = BLOCK) -> None:
        self._journal = journal
        self._kept_of_one = kept_of_one
        self._block = block
        self._feeds: dict[int, _Feed] = {}
        """By the numbers of the runs."""
        self._following: asyncio.Task[None] | None = None
        self._changed: Waiter | None = None

    async def watch(self, row: RunRow, after: int) -> AsyncGenerator[bytes]:
        """The events of the run after this number, as `Journal.events` has them, several at once if they are there."""
        feed = self._enter(row)
        news = asyncio.Event()
        feed.watchers.add(news)
        self._follow()
        try:
            while True:
                news.clear()
                if feed.error is not None:
                    raise feed.error.with_traceback(None)  # others raise it too
                if feed.state is not None and feed.is_behind(after):
                    async with aclosing(self._catch_up(feed, after)) as earlier:
                        async for data, number in earlier:
                            after = number
                            yield data
                elif feed.state is not None and (block := feed.block(after, self._block)):
                    data, after = block
                    yield data
                elif feed.has_ended:
                    return
                else:
                    await news.wait()
        finally:
            feed.watchers.discard(news)
            if not feed.watchers:
                self._wake()
                asyncio.get_running_loop().call_later(LINGER, self._drop, feed)

    def _enter(self, row: RunRow) -> _Feed:
        feed = self._feeds.get(row.number)
        if feed is None:
            feed = self._feeds[row.number] = _Feed(row)
            for each in self._feeds.values():
                each.trim(self._most)
        elif feed.has_ended and (row.chunks, row.state) != (feed.chunks, feed.state):
            feed.state = None  # it failed, and was driven again while nobody watched
        return feed

    async def _catch_up(self, feed: _Feed, after: int) -> AsyncGenerator[tuple[bytes, int]]:
        """Events before those that the feed holds, each with its number."""
        async for event in self._journal.events(feed.row.run_id, after):
            yield event_bytes(event), event.seq
            if not feed.is_behind(event.seq):
                return

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    @property
    def _most(self) -> int:
        return min(self._kept_of_one, KEPT // max(len(self._feeds), 1))

    def _drop(self, feed: _Feed) -> None:
        if not feed.watchers and self._feeds.get(feed.row.number) is feed:
            del self._feeds[feed.row.number]

    # Reading

    def _follow(self) -> None:
        self._wake()
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._read())

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.ring()

    async def _read(self) -> None:
        try:
            while any(feed.watchers for feed in self._feeds.values()):
                with self._journal.listening() as self._changed:
                    while lagging := await self._lagging():
                        for feed in lagging:
                            await self._read_page(feed)
                    await self._changed.wait()
        except Exception as error:  # noqa: BLE001 - everybody who watches gets it
            for feed in [*self._feeds.values()]:
                self._fail(feed, error)

    async def _lagging(self) -> list[_Feed]:
        """Feeds of which the journal has more."""
        watched = {number: feed for number, feed in self._feeds.items() if feed.watchers}
        if not watched:
            return []
        found = await self._journal.work(lambda database: database.progress([*watched]))
        return [feed for number, feed in watched.items() if found.get(number, ())[1:] != (feed.chunks, feed.state)]

    async def _read_page(self, feed: _Feed) -> None:
        run_id, after = feed.row.run_id, feed.chunks
        try:
            row, data = await self._journal.work(lambda database: database.chunks(run_id, after, PAGE))
            if not data and row.chunks > after:
                raise UserError(f"run `{run_id}` cannot be read: append {after} is not in the journal")
            feed.add(row, data, self._most)
        except Exception as error:  # noqa: BLE001 - watchers of this run get it
            self._fail(feed, error)
        feed.ring()

    def _fail(self, feed: _Feed, error: Exception) -> None:
        self._feeds.pop(feed.row.number, None)
        feed.error = error
        feed.ring()
