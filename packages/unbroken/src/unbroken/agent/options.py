"""The options of one run, and `Policy` for options of an agent that are rarely changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict

from typing_extensions import TypeVar

from unbroken.agent.limits import Limits
from unbroken.agent.toolset import Tools
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.middleware import Middleware
from unbroken.models.model import Model
from unbroken.tools.caller import ToolErrors
from unbroken.tools.context import RunContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken_wires.messages import Message
from unbroken_wires.transcript import Transcript
from unbroken_wires.validation import checked
from unbroken_wires.wires.chain import StoredHistory

DepsT = TypeVar("DepsT", default=Any)
"""What tools find in `CallContext.deps`."""

Answers: TypeAlias = Mapping[str, Any]
"""By call id: `Allow`, `Deny`, `Edit`, `Wait`, or the result of a call that ran at the client."""

OnError: TypeAlias = Literal["continue", "finish"]
OnAllFailed: TypeAlias = Literal["continue", "stop"]
OpenCalls: TypeAlias = Literal["execute", "answer", "error"]
Trim: TypeAlias = (
    Callable[[RunContext[Any], tuple[Message, ...]], Sequence[Message] | Awaitable[Sequence[Message]]]
    | Callable[[tuple[Message, ...]], Sequence[Message] | Awaitable[Sequence[Message]]]
)
"""Chooses which part of a long history is sent: of the messages, or of the run's context and the messages."""
Instructions: TypeAlias = str | Callable[[RunContext[Any]], str | Awaitable[str]]
"""A text, or a function of the run's context, called before each request."""
LimitsOf: TypeAlias = Callable[[RunContext[Any]], Limits | Awaitable[Limits]]
"""A function of the run's context, called at the start of a run."""

NOTHING: Answers = {}


@checked
@dataclass(frozen=True, slots=True)
class Policy:
    """Options that few programs need: `Agent(…, policy=Policy(nudge=True))`."""

    on_all_failed: OnAllFailed = "continue"
    """If every call of a round ran and failed: continue, or `"stop"` at once. Calls that never ran (an unknown tool,
    arguments that do not fit, a denial) and calls that ask for a retry do not count: the model gets another round."""
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
    share_rounds: bool = False
    """A call that was made in an earlier round of the run is answered from that result, unless its tool has
    `dedupe=False` or `repeat`, or needs an approval, or it is a read and a call that may change something ran since."""
    tool_errors: ToolErrors = "full"
    """What the model reads when a tool raises: the text of the exception (`"full"`, with passwords in addresses
    masked), or its type alone (`"safe"`; the text goes to the log). The text of `ToolFailed` is always passed on."""
    tool_retries: int = 3
    """How often each tool may raise `Retry` in a run; then it is not called any more."""
    agent_depth: int = 5
    """How many agents may run inside of each other as tools: a call that would go deeper is not executed."""
    most_handoffs: int = 8
    """How often a run may be handed off to another agent: a hand-off after that is not executed."""
    nudge: bool = False
    """Ask the model to continue if it announces a call and makes none."""
    background: float | None = None
    """Seconds after which a call that still runs is answered with a handle and continues in the background; 0 means at
    once. A tool may have its own number. None: only tools that have one go to the background."""
    wait_for_background: bool = True
    """If the model answers while calls are in the background: wait for their results, and ask again. Otherwise the run
    ends, and they are cancelled."""
    continue_prompt: str = ""
    """The text of that request, which is also used after an empty answer."""
    empty_answer: str | None = None
    """The answer of a run whose model gives none, even when it is asked to continue. None: `ChainBroken` is raised."""
    open_calls: OpenCalls | None = None
    """What to do if the given history ends in calls without results: `"execute"` them (the default without a prompt),
    `"answer"` them as not executed (the default with one), or raise an `"error"`."""

    def __post_init__(self) -> None:
        if self.result_limit < 1:
            raise UserError(f"Policy(result_limit={self.result_limit}): expected a number of characters from 1")
        if self.tool_retries < 0:
            raise UserError(f"Policy(tool_retries={self.tool_retries}): expected a number from 0")
        for name in ("agent_depth", "most_handoffs"):
            if (value := getattr(self, name)) < 0:
                raise UserError(f"Policy({name}={value}): expected a number from 0")
        if self.background is not None and self.background < 0:
            raise UserError(f"Policy(background={self.background:g}): expected seconds from 0, or None for none")


class _ReplayedToo(TypedDict, Generic[DepsT], total=False):
    deps: DepsT
    """What tools find in `CallContext.deps`."""
    limits: Limits | None


class Overrides(_ReplayedToo[DepsT], Generic[DepsT], total=False):
    """Options of `agent.override`. All are in place of the agent's own."""

    model: Model | str
    instructions: Instructions
    tools: Tools


class ReplayOptions(_ReplayedToo[DepsT], Generic[DepsT], total=False):
    """Options of a replayed run."""

    store: dict[str, Any]
    """Kept from run to run, for tools that remember something."""
    trim: Trim | None
    """Chooses which part of a long history is sent, in place of the agent's own `trim=`."""
    sinks: Sequence[Sink | Middleware]
    """Functions that get every event of this run, or middleware for it."""


class ResumeOptions(ReplayOptions[DepsT], Overrides[DepsT], Generic[DepsT], total=False):
    """Options of a resumed run."""


class TurnOptions(ResumeOptions[DepsT], Generic[DepsT], total=False):
    """Options of one turn of a `Conversation`, which has its own history."""

    run_id: str


class Options(TurnOptions[DepsT], Generic[DepsT], total=False):
    """Options of one run."""

    history: Sequence[Message] | StoredHistory | Transcript | None
    """The earlier messages, or stored messages of pydantic-ai. A `Transcript` is continued in place; anything else is
    copied, and repaired if needed."""
    open_calls: OpenCalls | None
    """What to do with open calls at the end of that history, in place of the agent's own `Policy`."""
