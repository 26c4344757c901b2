"""The options of one run, `Policy` for options that are rarely changed, and the plan that a run makes from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypedDict

from typing_extensions import TypeVar

from unbroken.agent.limits import Limits
from unbroken.agent.output import ANSWER, Output
from unbroken.agent.prompts import Language
from unbroken.agent.toolset import OrderHint, Tools, ToolSet, ToolSource
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.middleware import (
    Ask,
    CheckInput,
    CheckOutput,
    Middleware,
    wrap_approver,
    wrap_caller,
    wrap_check,
    wrap_model,
    wraps,
)
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import NOT_EXECUTED, Caller, Prepared, ResultCache, ToolCaller, ToolErrors, prepare
from unbroken.tools.context import RunContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.messages import UNSET, Choice, Effort, Json, Message, OneTool, Sampling, System, ToolCall
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

CHANGED_ANSWER = f"{NOT_EXECUTED}: a typed answer is changed in `check_output`, and not in `call_tool`"

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


class ReplayOptions(TypedDict, Generic[DepsT], total=False):
    """Options of a replayed run."""

    deps: DepsT
    """What tools find in `CallContext.deps`."""
    store: dict[str, Any]
    """Kept from run to run, for tools that remember something."""
    trim: Trim | None
    """Chooses which part of a long history is sent, in place of the agent's own `trim=`."""
    limits: Limits | None
    sinks: Sequence[Sink | Middleware]
    """Functions that get every event of this run, or middleware for it."""


class ResumeOptions(ReplayOptions[DepsT], Generic[DepsT], total=False):
    """Options of a resumed run. These three are in place of the agent's own."""

    model: Model | str
    instructions: Instructions
    tools: Tools


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


@dataclass(slots=True)
class Plan:
    model: Model
    tools: ToolSource | Toolbox
    """The same ones in every turn, or a function."""
    clock: Clock
    toolsets: tuple[ToolSet, ...] = ()
    """Where these come from; and, if they were given for this run, those of the agent."""
    system: System | None = None
    write_system: Callable[[Callable[[], RunContext[Any]], Toolbox, Language], Awaitable[System | None]] | None = None
    """Writes it before each request, if the instructions are a function, or guidance is added: for the tools of the
    request, and the language of the prompt."""
    choose_limits: LimitsOf | None = None
    """Chooses the limits at the start of the run."""
    sampling: Sampling = UNSET
    reasoning: Effort | None = None
    schedule: Schedule = Schedule.EAGER
    several_calls: bool = True
    on_error: OnError = "continue"
    on_approval: OnApproval | None = None
    policy: Policy = field(default_factory=Policy)
    choice: Choice | None = None
    """For the first request only: otherwise a forced call would be forced for ever."""
    output: Output[Any] | None = None
    output_given: bool = False
    """It was given for this run: an agent that takes over has it too."""
    handoffs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The agents that may take over (`Handoff`), by the names of the tools that let them."""
    language: Language = "en"
    deps: Any = None
    store: dict[str, Any] = field(default_factory=dict[str, Any])
    results: ResultCache = field(default_factory=ResultCache)
    """Results of tools with `cache`."""
    order_hint: OrderHint = field(default_factory=OrderHint)
    trim: Trim | None = None
    """Chooses which part of the history is sent; the history itself stays complete."""
    middleware: tuple[Middleware, ...] = ()
    """The first is the outermost."""
    ask: Ask = field(init=False)
    """Asks the model, through all middleware."""
    preparing: tuple[Middleware, ...] = ()
    """The middleware that changes what is sent."""
    check_input: CheckInput | None = None
    check_output: CheckOutput | None = None
    """Check the prompt and the final output, if any middleware does."""
    client_checks: tuple[Middleware, ...] = ()
    """Those that check calls which run at the client."""

    def __post_init__(self) -> None:
        self.ask = self.model.stream

    def install(self, middleware: Sequence[Middleware]) -> None:
        """Puts the middleware between the run and its model, tools and approver."""
        self.middleware = tuple(middleware)
        self.ask = wrap_model(self.middleware, self.model)
        self.on_approval = wrap_approver(self.middleware, self.on_approval)
        self.check_input = wrap_check(self.middleware, "check_input")
        self.check_output = wrap_check(self.middleware, "check_output")
        self.client_checks = tuple([each for each in self.middleware if wraps(each, "check_client_call")])
        self.preparing = tuple(each for each in self.middleware if wraps(each, "before_request"))

    def remove_middleware(self) -> None:
        """Breaks the reference cycle between run and middleware, so that nothing is left for the garbage collector."""
        self.middleware, self.preparing, self.ask = (), (), self.model.stream
        self.check_input = self.check_output = None
        self.client_checks = ()

    def known_tools(self) -> frozenset[str] | None:
        """The names of all tools that the run or its agent has. None if they are not known."""
        names: set[str] = set()
        for place, toolset in enumerate(self.toolsets):
            found = toolset.all_names(run=place == 0)
            if found is None:
                return None
            names |= found
        return frozenset(names)

    def caller_of(self, toolbox: Toolbox) -> Caller:
        caller: Caller = ToolCaller(
            toolbox, self.clock, self.results, self.policy.result_limit, self.policy.tool_errors
        )
        return wrap_caller(self.middleware, caller, partial(self._prepare, toolbox)) if self.middleware else caller

    def text_of(self, output: Any) -> str:
        """The final output as text."""
        return str(output) if self.output is None else self.output.text_of(output)

    def is_answer(self, call: ToolCall) -> bool:
        """Is it the typed answer, given as a call?"""
        return self.output is not None and call.name == ANSWER

    def _prepare(self, toolbox: Toolbox, call: ToolCall) -> Prepared:
        """A call whose arguments middleware has changed."""
        prepared = prepare(call, toolbox, self.policy.tool_errors)
        if self.is_answer(call):  # it is read from the history when the run is resumed
            prepared.refusal = CHANGED_ANSWER
        return prepared


def settings_of(plan: Plan, limits: Limits) -> dict[str, Json]:
    """The settings of a run that can be saved: enough to replay it."""
    choice, policy = plan.choice, plan.policy
    return {
        "schedule": plan.schedule.value,
        "limits": limits_to_json(limits),
        "several_calls": plan.several_calls,
        "on_error": plan.on_error,
        "on_all_failed": policy.on_all_failed,
        "final_answer": policy.final_answer,
        "share_all": policy.share_all,
        "share_rounds": policy.share_rounds,
        "tool_errors": policy.tool_errors,
        "tool_retries": policy.tool_retries,
        "choice": choice.name if isinstance(choice, OneTool) else choice,
        "language": plan.language,
        "nudge": policy.nudge,
        "continue_prompt": policy.continue_prompt,
        "empty_answer": policy.empty_answer,
        "background": policy.background,
        "wait_for_background": policy.wait_for_background,
        "result_limit": policy.result_limit,
        "sampling": _sampled(plan.sampling),
        "reasoning": plan.reasoning,
        "cache": policy.cache,
        "output": _output(plan.output) if plan.output is not None else None,
    }


def _output(output: Output[Any]) -> dict[str, Json]:
    saved: dict[str, Json] = {"tool": ANSWER, "schema": output.schema}
    if output.free_text:
        saved["text"] = True
    return saved if output.via == "auto" else {**saved, "via": output.via}


def limits_to_json(limits: Limits) -> dict[str, Json]:
    """The limits that are set; `limits_from_json` reads them."""
    limited: dict[str, Json] = {}
    if limits.rounds is not None:
        limited["rounds"] = limits.rounds
    if limits.calls is not None:
        limited["calls"] = limits.calls
    if limits.tokens is not None:
        limited["tokens"] = limits.tokens
    if limits.seconds is not None:
        limited["seconds"] = limits.seconds
    if limits.cost is not None:
        limited["cost"] = limits.cost
    limited["final_seconds"] = limits.final_seconds
    if limits.most_rounds is not None:
        limited["most_rounds"] = limits.most_rounds
    if limits.prices is not None:
        limited["prices"] = asdict(limits.prices)
    return limited


def _sampled(sampling: Sampling) -> dict[str, Json]:
    if sampling is UNSET or sampling == UNSET:
        return {}
    named = ("max_tokens", "temperature", "top_p", "stop", "seed")
    return {name: value for name in named if (value := getattr(sampling, name)) not in (None, ())}
