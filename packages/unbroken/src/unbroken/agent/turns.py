"""What comes out of a turn of the model: a response, the round of its calls, and what the rules make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from unbroken.agent.limits import StopReason
from unbroken.tools.caller import Prepared
from unbroken.tools.execution import Batch
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant, ToolCall, ToolResult

Refuse: TypeAlias = Callable[[Prepared, int], str]
"""Why a call at this place of its message may not run; empty if it may."""

Unfinished: TypeAlias = Literal["", "announced", "awaited"]
"""Why a text is not the last word: it announces a call, or results of earlier calls are still to come."""


@dataclass(slots=True)
class Turn:
    """The outcome of one request. `stop` is why no round may follow."""

    message: Assistant
    verdict: Verdict
    stop: StopReason | None = None
    closed: bool = False
    """No calls were possible in it."""
    unfinished: Unfinished = ""
    value: tuple[Any, ...] = ()
    """The value of a typed answer, once it is read."""


@dataclass(slots=True)
class Round:
    """The calls of a message, and how they ended."""

    calls: Sequence[Prepared]
    earlier: Sequence[ToolResult]
    """Results that the history had already."""
    given: Sequence[ToolResult | None]
    """Those of the other calls. None stands for one that waits for a decision from outside."""
    batch: Batch
    verdict: Verdict | None
    """How the response ended; None for the calls of a given history."""

    @property
    def results(self) -> list[ToolResult]:
        return [*self.earlier, *filter(None, self.given)]


@dataclass(frozen=True, slots=True)
class Again:
    """What the model wrote is not the answer: it is asked again."""

    why: Literal["paused", "silent", "announced", "misfit", "refused"]
    reply: str = ""
    """What the model reads after that."""
    keeps: bool = True
    """What it wrote stays in the history."""


@dataclass(frozen=True, slots=True)
class Instead:
    """The run ends with this text of ours in place of the model's."""

    text: str


@dataclass(slots=True)
class Ending:
    text: str
    stop_reason: StopReason
    finish: str | None = None
    """The provider's own finish reason of its last answer."""
    pending: tuple[ToolCall, ...] = ()
    """Calls that wait for a decision from outside."""
    cut_off: bool = False
    """It ended without an answer of the model."""
