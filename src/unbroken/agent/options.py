"""What an agent and its runs can be given: the options of one run, and `Policy` for what is rarely changed."""

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
"""Chooses what is sent of a long history."""

NOTHING: Answers = {}


@checked
@dataclass(frozen=True, slots=True)
class Policy:
    """What a run does in cases that few programs care about: `Agent(…, policy=Policy(nudge=True))`."""

    on_all_failed: OnAllFailed = "continue"
    """When every call of a round failed: go on, or `"stop"` at once."""
    final_answer: bool = True
    """At a limit the model is asked for an answer. Without it the run ends there, with the results of its last calls
    and no text."""
    choice: Literal["auto", "none", "required"] | str | None = None
    """Of the first request: `"required"`, `"none"`, or the name of the tool that must be called."""
    cache: bool = False
    """Mark what the provider may keep in its cache: tools, instructions, history."""
    result_limit: int = RESULT_LIMIT
    """Characters of a result that the model reads."""
    share_all: bool = False
    """Identical calls of any tool share one execution."""
    tool_errors: ToolErrors = "full"
    """What the model reads when a tool raises: the text of the exception (`"full"`, with passwords in addresses
    masked), or its type alone (`"safe"`; the text goes to the log). The words of `ToolFailed` always pass."""
    nudge: bool = False
    """Ask a model to go on that announces a call and makes none."""
    continue_prompt: str = ""
    """In these words, which are also said to one that stays silent."""
    open_calls: OpenCalls | None = None
    """What becomes of calls without results in which a history ends that is handed in: `"execute"` them (the default
    without a prompt), `"answer"` them as not executed (with one), or raise an `"error"`."""

    def __post_init__(self) -> None:
        if self.result_limit < 1:
            raise UserError(f"Policy(result_limit={self.result_limit}): expected a number of characters from 1")


class ResumeOptions(TypedDict, Generic[DepsT], total=False):
    """What a run may be given when it goes on."""

    deps: DepsT
    """Whatever tools find in their `CallContext`."""
    store: dict[str, Any]
    """Lives on from run to run, for tools that remember something."""
    trim: Trim | None
    """What is sent of a long history, in place of the agent's own `trim=`."""
    limits: Limits | None
    sinks: Sequence[Sink | Middleware]
    """Functions that get every event of this run, or middleware for it."""


class TurnOptions(ResumeOptions[DepsT], Generic[DepsT], total=False):
    """Options of one turn of a `Conversation`, which has its own history."""

    run_id: str


class Options(TurnOptions[DepsT], Generic[DepsT], total=False):
    """Options of one run."""

    history: Sequence[Message] | Transcript | None
    """What was said before. A `Transcript` is continued in place; anything else is copied, and mended if need be."""
    open_calls: OpenCalls | None
    """What becomes of calls in which that history ends, in place of what the agent says."""
