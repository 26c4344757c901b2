"""What an agent can be given (`Settings`, and `Policy` for what is rarely changed), what a recording has of it, and the
options of one run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeAlias, TypedDict, cast

from typing_extensions import TypeVar

from unbroken.agent.limits import Limits, limits_to_json
from unbroken.agent.output import ANSWER, Output
from unbroken.agent.prompts import Language, language_of
from unbroken.agent.toolset import Tools, ToolSet
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.middleware import Middleware, as_middleware
from unbroken.models.connect import connect_later
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import ToolErrors
from unbroken.tools.context import RunContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.lines import Line, read_sampling, sampling_fields
from unbroken.trajectory.recorder import Recorder
from unbroken_wires.messages import UNSET, Choice, Effort, Json, Message, OneTool, Sampling
from unbroken_wires.transcript import Transcript
from unbroken_wires.validation import check_fields, checked
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


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The arguments of `Agent` by their names, and what follows from them."""

    model: Model
    tools: ToolSet
    instructions: Instructions
    language: Language
    """Of the instructions."""
    handoffs: Mapping[str, Any]
    """`Handoff`s by the names of their tools."""
    limits: Limits
    policy: Policy
    choice: Choice | None
    """That of the policy. For the first request only: otherwise a forced call would be forced for ever."""
    name: str = "main"
    output: Output[Any] | None = None
    deps: Any = None
    choose_limits: LimitsOf | None = None
    """Chooses the limits at the start of a run."""
    schedule: Schedule = Schedule.EAGER
    several_calls: bool = True
    on_error: OnError = "continue"
    on_approval: OnApproval | None = None
    sampling: Sampling = UNSET
    reasoning: Effort | None = None
    guidance: bool | Language = True
    trim: Trim | None = None
    """Chooses which part of the history is sent; the history itself stays complete."""
    sinks: tuple[Middleware, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    """The first is the outermost; the recorder is outside of the others."""
    clock: Clock | None = None


# From the arguments of an agent


_USUAL_LIMITS, _USUAL_POLICY = Limits(), Policy()


def read_arguments(
    model: Model | str,
    tools: Tools,
    instructions: Instructions,
    output: Any,
    handoffs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Settings:
    """The settings of a new agent. `options` are its other arguments by name."""
    given = {name: _READ[name](value) if name in _READ else value for name, value in options.items()}
    limits, record, middleware = given.pop("limits", None), given.pop("record", None), given.pop("middleware", ())
    recorder = Recorder(cast("str", record)) if isinstance(record, str | os.PathLike) else record
    policy: Policy = given.pop("policy", None) or _USUAL_POLICY
    toolset = ToolSet(tools)
    return Settings(
        model=connect_later(model) if isinstance(model, str) else model,
        tools=toolset,
        instructions=instructions,
        language=language_of(instructions) if isinstance(instructions, str) else "en",
        handoffs=handoffs,
        policy=policy,
        choice=_choice(policy.choice, toolset.fixed),
        output=None if output is None else Output[Any].of(output),
        limits=limits if isinstance(limits, Limits) else _USUAL_LIMITS,
        choose_limits=None if isinstance(limits, Limits) else limits,
        middleware=(*(() if recorder is None else (recorder,)), *middleware),
        **given,
    )


def _choice(choice: str | None, toolbox: Toolbox | None) -> Choice | None:
    if choice in (None, "auto", "none", "required"):
        return choice
    if toolbox is not None and choice not in toolbox and choice != ANSWER:
        known = f"there are: {', '.join(toolbox.names)}" if len(toolbox) else "this agent has none"
        raise UserError(
            f"Policy(choice={choice!r}): there is no such tool; {known}; or use 'auto', 'none' or 'required'"
        )
    return OneTool(choice)


def _checked_sampling(sampling: Sampling | None) -> Sampling:
    check_fields("Sampling", sampling or UNSET)
    return sampling or UNSET


def _approver(function: OnApproval | None) -> OnApproval | None:
    """Refuses a function that cannot be called with the call as its only argument."""
    if function is None:
        return None
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(
            f"Agent(on_approval={name}): it is called with one argument, on_approval(call): {error}"
        ) from None
    except ValueError:
        pass  # it has no signature
    return function


_READ: dict[str, Callable[[Any], Any]] = {
    "schedule": Schedule,
    "on_approval": _approver,
    "sampling": _checked_sampling,
    "sinks": as_middleware,
}
"""How an argument becomes a setting, if it is not one already."""


# In a recording


def _as_it_is(value: Any) -> Any:
    return value


SAVED: dict[str, tuple[Callable[[Any], Json], Callable[[Any], Any] | None]] = {
    "schedule": (lambda schedule: schedule.value, _as_it_is),
    "limits": (limits_to_json, None),
    "several_calls": (_as_it_is, _as_it_is),
    "on_error": (_as_it_is, _as_it_is),
    "choice": (lambda choice: choice.name if isinstance(choice, OneTool) else choice, None),
    "language": (_as_it_is, None),
    "sampling": (sampling_fields, lambda saved: read_sampling(saved or {})),
    "reasoning": (_as_it_is, _as_it_is),
    "output": (lambda output: None if output is None else output.to_json(), None),
}
"""By the names of `Settings`: how the header of a recording has it, and how that is read as an argument of `Agent`, or
None if it follows from another or takes more than the header to read. The fields of the policy stand among these."""
SAVED_POLICY = [each.name for each in fields(Policy) if each.name not in ("agent_depth", "most_handoffs", "open_calls")]
"""Those that a replay needs."""


def header_of(settings: Settings, **of_the_run: Any) -> dict[str, Json]:
    """What a recording has of the settings: enough to replay the run. `of_the_run`: those that are its own."""
    header: dict[str, Json] = {name: getattr(settings.policy, name) for name in SAVED_POLICY}
    for name, (write, _) in SAVED.items():
        header[name] = write(of_the_run[name] if name in of_the_run else getattr(settings, name))
    return header


def read_header(header: Line) -> dict[str, Any]:
    """The arguments of `Agent` that the header of a recording has, or a hand-off in it."""
    given: dict[str, Any] = {"policy": Policy(**{name: header[name] for name in SAVED_POLICY if name in header})}
    for name, (_, read) in SAVED.items():
        if read is not None and name in header:
            given[name] = read(header[name])
    return given
