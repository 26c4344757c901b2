"""The state of one call while its batch runs, and the watchdog for calls that do not end after their cancellation or
time-out.

One timer serves all calls of a batch. `execution` changes the state and decides what to do about such calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

from unbroken.clock import SLACK, Deadline, deadline
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.caller import Prepared
from unbroken.tools.context import CallContext

State: TypeAlias = Literal["waiting", "asking", "running", "pending", "done", "withdrawn"]


@dataclass(slots=True, eq=False)
class Entry:
    """`state` is `asking` while the approver is asked, `pending` while an outside decision is awaited."""

    prepared: Prepared
    state: State = "waiting"
    approved: bool = False
    original: Prepared | None = None
    """The call as the model made it, if its arguments were edited."""
    task: asyncio.Task[Any] | None = None
    started_at: float | None = None
    seconds: float = 0.0
    twin: Entry | None = None
    """The identical call whose execution this one shares."""
    sharers: tuple[Entry, ...] = ()
    result: ToolResult | None = None
    stopped: str = ""
    """Why it was cancelled, for the model to read."""
    context: CallContext[Any] | None = None
    overdue: float = inf
    """When it is given up if it does not end after its cancellation."""
    orphaned: bool = False
    """Its message broke off. It continues without events until it is known whether the retried message contains it."""
    told: bool = False
    """Its end was reported."""

    @property
    def call(self) -> ToolCall:
        return self.prepared.call

    @property
    def started(self) -> bool:
        return self.started_at is not None or self.finished

    @property
    def finished(self) -> bool:
        return self.state in ("done", "withdrawn")


GRACE = 5.0
"""Seconds that a call has to end after it was cancelled: some tools clean up, some ignore it."""


class Watch:
    """`ring` is called when the first of the calls may be overdue."""

    __slots__ = ("_loop", "_next", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._next: Deadline | None = None

    def expect(self, entry: Entry, seconds: float, usual: bool = True) -> None:
        """The call has to end within this many seconds."""
        entry.overdue = self._loop.time() + seconds
        if self._next is None or entry.overdue < self._next.due:
            self.end()
            self._next = deadline(self._loop, seconds, self._ring, usual)

    def overdue(self, entries: Iterable[Entry]) -> list[Entry]:
        """The calls that are overdue; the others stay watched."""
        self._next = None
        now = self._loop.time()
        late: list[Entry] = []
        for entry in entries:
            if entry.overdue - now <= SLACK:
                late.append(entry)
            elif entry.overdue < inf:
                self.expect(entry, entry.overdue - now, usual=False)
        return late

    def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
