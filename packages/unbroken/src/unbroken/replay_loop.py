"""An event loop that can run something before everything that is ready. Only a replay needs it, to deliver an input at
its recorded place: in an ordinary loop it would come after all that became ready earlier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, cast


class ReplayLoop(asyncio.SelectorEventLoop):
    """Works like its base class until `enters_first` is set or a method is called."""

    enters_first = False
    """If set, a new task runs its first step before everything that is already ready."""

    def __init__(self, selector: Any = None) -> None:
        self._entering: list[asyncio.Handle] = []
        """The first steps that were moved to the front."""
        super().__init__(selector)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        if self.enters_first:
            self._put_last_first(enters=True)
        return task

    def wake_first(self, future: asyncio.Future[None]) -> None:
        """Resumes the task that waits for `future` as soon as the current callback returns: before everything that is
        ready, except the first steps of new tasks."""
        before = len(self._handles)
        future.set_result(None)
        if len(self._handles) > before:  # else its task does not wait yet, and will not have to
            self._put_last_first(enters=False)

    def call_entered(self, callback: Callable[[], object]) -> None:
        """Calls it once no new task has its first step before it: now, if there is none."""
        if self._handles and self._handles[0] in self._entering:
            self.call_soon(callback)
            self._put_last_first(enters=False)
        else:
            callback()

    @property
    def _handles(self) -> deque[asyncio.Handle]:
        """What is ready. asyncio has no public way to change its order."""
        return cast("Any", self)._ready

    def _put_last_first(self, enters: bool) -> None:
        """Moves the handle that became ready last to the front, behind the first steps that are there already."""
        last = self._handles.pop()
        leading = list(takewhile(self._entering.__contains__, self._handles))
        self._handles.insert(len(leading), last)
        self._entering = [*leading, last] if enters else leading
