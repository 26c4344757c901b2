"""What the loop asks the rules of an agent, and what they may answer.

A rule is a function of the run that belongs to one feature. It decides; what follows from that is done by the loop,
unless the rule is asynchronous: those run code of the user, or wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.agent.limits import StopReason
from unbroken.agent.response_reader import Refuse, Turn
from unbroken.agent.run import Again, Ending, Run
from unbroken.tools.caller import Prepared
from unbroken.tools.order import Order
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import ToolResult


@dataclass(frozen=True, slots=True)
class Instead:
    """The run ends with this text of ours in place of the model's."""

    text: str


@dataclass(slots=True)
class Round:
    """The calls of a message, and how they ended."""

    calls: Sequence[Prepared]
    results: Sequence[ToolResult]
    """Those that there are: some calls may wait."""
    order: Order
    waits: bool
    """Some calls wait for a decision from outside."""
    failed: bool
    """A call ran and failed."""
    out_of_time: bool
    """The time limit was reached meanwhile, which the account reports before the next request."""
    verdict: Verdict | None
    """How the response ended; None for the calls of a given history."""


Unfinished: TypeAlias = Literal["", "announced", "awaited"]
"""Why a text is not the last word: it announces a call, or results of earlier calls are still to come."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an agent, by what they are asked. Each list is in the order in which it is asked."""

    # May this call run?

    may_run: tuple[Callable[[Run, bool], Refuse | None], ...]
    """Asked for each message: which of its calls are refused, if any. A call that is allowed while the message is
    being written is not refused when it is complete. True: no calls were allowed in this response."""
    in_message: tuple[Callable[[Run, Prepared, Sequence[Prepared]], str], ...]
    """Why a call may not run beside those before it in its message. Such a call must not start earlier."""
    bind: tuple[Callable[[Run, dict[int, Prepared], Toolbox], Awaitable[None]], ...]
    """The message is complete: waits for what its calls refer to."""
    check_calls: tuple[Callable[[Run, Sequence[Prepared]], Awaitable[None]], ...]
    """Refuses calls by code of the user."""

    # Is this the answer?

    unfinished: tuple[Callable[[Run, Turn, Toolbox], Unfinished], ...]
    """Will the model be asked again, whatever this text says?"""
    heard: tuple[Callable[[Run, Turn], None], ...]
    """A response without calls is complete. Raises if the run ends with it."""
    hold: tuple[Callable[[Run, Turn], Awaitable[bool]], ...]
    """Does something come before any answer? Then it has come when this returns."""
    judge: tuple[Callable[[Run, Turn], Again | Instead | None], ...]
    """The first that is not None decides. Raises if the run ends with an error."""
    check_answer: tuple[Callable[[Run, Turn], Awaitable[Again | None]], ...]
    """The same by code of the user, which may replace the answer."""

    # What comes between rounds?

    begin: tuple[Callable[[Run], Awaitable[None]], ...]
    """Nothing has been asked yet."""
    offer: tuple[Callable[[Run], Sequence[Tool]], ...]
    """Tools beside those of the agent."""
    prepare: tuple[Callable[[Run, Toolbox], None], ...]
    """These are the tools of the next round."""
    recall: tuple[Callable[[Run, Sequence[Prepared]], Awaitable[None]], ...]
    """The run continues with the last message of its history, which has these calls."""
    change: tuple[Callable[[Run, StopReason | None], Awaitable[StopReason | None]], ...]
    """A round is over. Afterwards the run may have another agent, and other rules."""
    deliver: tuple[Callable[[Run], Awaitable[StopReason | None]], ...]
    """The next request has what came meanwhile."""

    # May the run go on?

    limit: tuple[Callable[[Run], StopReason | None], ...]
    """Asked before each request."""
    remark: tuple[Callable[[Run, Sequence[Prepared], list[ToolResult | None]], list[ToolResult | None]], ...]
    """What the model reads beside the results of a round."""
    after_round: tuple[Callable[[Run, Round], StopReason | None], ...]
    """The first that is not None ends the rounds."""

    # How does it end without an answer?

    settle: tuple[Callable[[Run, StopReason], Awaitable[None]], ...]
    """No more calls are allowed."""
    ending: tuple[Callable[[Run, StopReason], Ending | None], ...]
    """The first that is not None ends the run; otherwise one more request asks for an answer."""
    leave: tuple[Callable[[Run, StopReason, str], Awaitable[str]], ...]
    """A limit leaves this text as the answer, or none: the text as it may be. Raises if there has to be another."""
    close: tuple[Callable[[Run, BaseException | None], Awaitable[None]], ...]
    """The run is over; the error is what ended it."""
