"""The state of one call while its batch runs. Data only; `execution` changes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

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
