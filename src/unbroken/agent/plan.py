"""What stays the same during a run: who answers, what may be called, and what to do when things go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from unbroken.agent.output import OutputType
from unbroken.agent.prompts import Language
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.messages import Choice, Effort, Message, Sampling, System
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.calling import Caller, ResultCache, ToolCaller, in_words
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken.transcript import Transcript

OnError: TypeAlias = Literal["continue", "finish"]
OnAllFailed: TypeAlias = Literal["continue", "stop"]
Trim: TypeAlias = Callable[[tuple[Message, ...]], Sequence[Message]]
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
    cache_prompt: bool = False
    schedule: Schedule = Schedule.EAGER
    several_calls: bool = True
    on_error: OnError = "continue"
    on_all_failed: OnAllFailed = "continue"
    on_approval: OnApproval | None = None
    share_all: bool = False
    choice: Choice | None = None
    """Of the first request only: a choice that forces a call would force one for ever."""
    output: OutputType[Any] | None = None
    language: Language = "en"
    nudge: bool = False
    """Ask a model to go on that announces a call and makes none."""
    continue_prompt: str = ""
    """In these words; else in our own, in the language of the conversation."""
    deps: Any = None
    store: dict[str, Any] = field(default_factory=dict[str, Any])
    result_limit: int = 50_000
    results: ResultCache = field(default_factory=ResultCache)
    """What tools with `cache` gave."""
    caller: Callable[[Caller], Caller] | None = None
    """Wraps what runs the tools: a recording, a durable step."""
    trim: Trim | None = None
    """What is sent of the history; the history itself stays whole."""

    def caller_of(self, toolbox: Toolbox) -> Caller:
        caller = ToolCaller(toolbox, self.clock, self.results, self.result_limit)
        if self.caller is None:
            return caller
        try:
            return self.caller(caller)
        except Exception as error:
            raise UserError(f"the function given as caller= failed: {in_words(error)}") from error
