"""Signs of life for a client while a model writes what the client cannot be sent yet: the arguments of a call, for
instance, which it gets only when they are complete.

Clients give up on a stream that is silent for minutes. Nothing is sent before the model has begun to answer: until then
the request may still fail with a status of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from unbroken.models.model import ResponseLimit


class KeepAlive:
    """Calls `say` whenever nothing was sent for `every` seconds (0: never), and when the provider sends a sign of life
    itself.

    `say` runs in a task of its own. Before anything else is sent, it is waited for (`settle`), so that the client gets
    one after the other.
    """

    def __init__(self, every: float, say: Callable[[], Awaitable[None]], limit: ResponseLimit | None) -> None:
        self.answering = False
        """The model has begun to answer."""
        self._every = every
        self._say = say
        self._limit = limit
        self._read = 0
        self._saying: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._sent_at = 0.0

    def __enter__(self) -> Self:
        self.restart()
        if self._limit is not None:
            self._limit.on_alive = self._speak
        if self._every > 0:
            self._sent_at = self._loop.time()
            self._timer = self._loop.call_later(self._every / 2, self._tick)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._limit is not None:
            self._limit.on_alive = None
        if self._saying is not None:
            self._saying.cancel()

    def restart(self) -> None:
        """The request is retried: the model has not begun to answer."""
        self.answering = False
        self._read = 0 if self._limit is None else self._limit.taken

    def sent(self) -> None:
        """Something was sent to the client."""
        self._sent_at = self._loop.time()

    @property
    def saying(self) -> bool:
        return self._saying is not None

    async def settle(self) -> None:
        """Returns once nothing is being sent."""
        if self._saying is not None:
            await self._saying

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every / 2, self._tick)
        if self._loop.time() - self._sent_at >= self._every:
            self._speak()

    def _speak(self) -> None:
        begun = self.answering or (self._limit is not None and self._limit.taken > self._read)
        if begun and self._saying is None:
            self._sent_at = self._loop.time()
            self._saying = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._say()
        finally:
            self._saying = None
