"""What stays the same during a run: the model, the tools, and what to do about errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from unbroken.agent.limits import Limits
from unbroken.agent.options import OnError, Policy, Trim
from unbroken.agent.output import ANSWER, OutputType
from unbroken.agent.prompts import Language
from unbroken.agent.toolset import OrderHint
from unbroken.clock import Clock
from unbroken.messages import Choice, Effort, Json, OneTool, Sampling, System
from unbroken.middleware import Ask, Middleware, wrap_approver, wrap_caller, wrap_model
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import Caller, ResultCache, ToolCaller
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken.transcript import Transcript

ToolSource: TypeAlias = Callable[[int, Transcript], Toolbox]
"""The tools of a turn."""


@dataclass(slots=True)
class Plan:
    model: Model
    tools: ToolSource
    clock: Clock
    system: System | None = None
    sampling: Sampling = field(default_factory=Sampling)
    reasoning: Effort | None = None
    schedule: Schedule = Schedule.EAGER
    several_calls: bool = True
    on_error: OnError = "continue"
    on_approval: OnApproval | None = None
    policy: Policy = field(default_factory=Policy)
    choice: Choice | None = None
    """For the first request only: otherwise a forced call would be forced for ever."""
    output: OutputType[Any] | None = None
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

    def __post_init__(self) -> None:
        self.ask = self.model.stream

    def install(self, middleware: Sequence[Middleware]) -> None:
        """Puts the middleware between the run and its model, tools and approver."""
        self.middleware = tuple(middleware)
        self.ask = wrap_model(self.middleware, self.model)
        self.on_approval = wrap_approver(self.middleware, self.on_approval)

    def remove_middleware(self) -> None:
        """Breaks the reference cycle between run and middleware, so that nothing is left for the garbage collector."""
        self.middleware, self.ask = (), self.model.stream

    def caller_of(self, toolbox: Toolbox) -> Caller:
        caller: Caller = ToolCaller(
            toolbox, self.clock, self.results, self.policy.result_limit, self.policy.tool_errors
        )
        return wrap_caller(self.middleware, caller) if self.middleware else caller


def settings_of(plan: Plan, limits: Limits) -> dict[str, Json]:
    """The settings of a run that can be saved: enough to replay it."""
    choice, policy = plan.choice, plan.policy
    return {
        "schedule": plan.schedule.value,
        "limits": _limited(limits),
        "several_calls": plan.several_calls,
        "on_error": plan.on_error,
        "on_all_failed": policy.on_all_failed,
        "final_answer": policy.final_answer,
        "share_all": policy.share_all,
        "tool_errors": policy.tool_errors,
        "choice": choice.name if isinstance(choice, OneTool) else choice,
        "language": plan.language,
        "nudge": policy.nudge,
        "continue_prompt": policy.continue_prompt,
        "result_limit": policy.result_limit,
        "sampling": _sampled(plan.sampling),
        "reasoning": plan.reasoning,
        "cache": policy.cache,
        "output": {"tool": ANSWER, "schema": plan.output.schema} if plan.output is not None else None,
    }


def _limited(limits: Limits) -> dict[str, Json]:
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
    if limits.prices is not None:
        limited["prices"] = asdict(limits.prices)
    return limited


def _sampled(sampling: Sampling) -> dict[str, Json]:
    if sampling == _USUAL:
        return {}
    named = ("max_tokens", "temperature", "top_p", "stop", "seed")
    return {name: value for name in named if (value := getattr(sampling, name)) not in (None, ())}


_USUAL = Sampling()
