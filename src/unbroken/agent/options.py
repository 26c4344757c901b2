"""The options of one run, and `Policy` for options that are rarely changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict

from typing_extensions import TypeVar

from unbroken.agent.limits import Limits
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.messages import Message
from unbroken.middleware import Middleware
from unbroken.tools.caller import ToolErrors
from unbroken.tools.results import RESULT_LIMIT
from unbroken.transcript import Transcript
from unbroken.validation import checked

DepsT = TypeVar("DepsT", default=Any)
"""What tools find in `CallContext.deps`."""

Answers: TypeAlias = Mapping[str, Any]
"""By call id: `Allow`, `Deny`, `Edit`, `Wait`, or the result of a call that ran at the client."""

OnError: TypeAlias = Literal["continue", "finish"]
OnAllFailed: TypeAlias = Literal["continue", "stop"]
OpenCalls: TypeAlias = Literal["execute", "answer", "error"]
Trim: TypeAlias = Callable[[tuple[Message, ...]], Sequence[Message]]
"""Chooses which part of a long history is sent."""

NOTHING: Answers = {}


@checked
@dataclass(frozen=True, slots=True)
class Policy:
    """Options that few programs need: `Agent(…, policy=Policy(nudge=True))`."""

    on_all_failed: OnAllFailed = "continue"
    """If every call of a round failed: continue, or `"stop"` at once."""
    final_answer: bool = True
    """Ask the model for an answer at a limit. Otherwise the run ends there, with the results of its last calls and no
    text."""
    choice: Literal["auto", "none", "required"] | str | None = None
    """Tool choice of the first request: `"required"`, `"none"`, or the name of the tool that must be called."""
    cache: bool = False
    """Mark tools, instructions and history for the provider's cache."""
    result_limit: int = RESULT_LIMIT
    """Maximum characters of a result that the model reads."""
    share_all: bool = False
    """Identical calls of any tool share one execution."""
    tool_errors: ToolErrors = "full"
    """What the model reads when a tool raises: the text of the exception (`"full"`, with passwords in addresses
    masked), or its type alone (`"safe"`; the text goes to the log). The text of `ToolFailed` is always passed on."""
    nudge: bool = False
    """Ask the model to continue if it announces a call and makes none."""
    continue_prompt: str = ""
    """The text of that request, which is also used after an empty answer."""
    open_calls: OpenCalls | None = None
    """What to do if the given history ends in calls without results: `"execute"` them (the default without a prompt),
    `"answer"` them as not executed (the default with one), or raise an `"error"`."""

    def __post_init__(self) -> None:
        if self.result_limit < 1:
            raise UserError(f"Policy(result_limit={self.result_limit}): expected a number of characters from 1")


class ResumeOptions(TypedDict, Generic[DepsT], total=False):
    """Options of a resumed run."""

    deps: DepsT
    """What tools find in `CallContext.deps`."""
    store: dict[str, Any]
    """Kept from run to run, for tools that remember something."""
    trim: Trim | None
    """Chooses which part of a long history is sent, in place of the agent's own `trim=`."""
    limits: Limits | None
    sinks: Sequence[Sink | Middleware]
    """Functions that get every event of this run, or middleware for it."""


class TurnOptions(ResumeOptions[DepsT], Generic[DepsT], total=False):
    """Options of one turn of a `Conversation`, which has its own history."""

    run_id: str


class Options(TurnOptions[DepsT], Generic[DepsT], total=False):
    """Options of one run."""

    history: Sequence[Message] | Transcript | None
    """The earlier messages. A `Transcript` is continued in place; anything else is copied, and repaired if needed."""
    open_calls: OpenCalls | None
    """What to do with open calls at the end of that history, in place of the agent's own `Policy`."""
