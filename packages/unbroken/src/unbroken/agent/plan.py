"""`Plan`: what one run does with its agent's settings. It has what the run was given in place of them, the instructions
as they are sent, and the middleware around the model, the tools and the approver."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

from unbroken.agent.limits import Account, Limits
from unbroken.agent.options import Instructions, LimitsOf, ResumeOptions, Settings, Trim, header_of
from unbroken.agent.output import ANSWER, Output
from unbroken.agent.prompts import Language, guidance_text, language_of
from unbroken.agent.toolset import OrderHint, ToolSet, ToolSource
from unbroken.clock import Clock
from unbroken.errors import UserError
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
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import NOT_EXECUTED, Caller, Prepared, ResultCache, ToolCaller, prepare
from unbroken.tools.context import RunContext
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import Choice, Json, OneTool, System, ToolCall

CHANGED_ANSWER = f"{NOT_EXECUTED}: a typed answer is changed in `check_output`, and not in `call_tool`"
MOST_SYSTEMS = 64
"""How many different instructions an agent keeps."""

_ANSWER = OneTool(ANSWER)

WriteSystem: TypeAlias = Callable[[Callable[[], RunContext[Any]], Toolbox, Language], Awaitable[System | None]]


def _system(settings: Settings, text: str, tools: Toolbox, asked_in: Language, rounds: int | None) -> System | None:
    """The instructions, with guidance that states how calls run and the actual round limit."""
    guidance = settings.guidance
    own = [each for each in tools if each.name != ANSWER and each.name not in settings.handoffs]
    if guidance and (own or settings.handoffs):
        asked_in = "zh" if asked_in == "zh" else language_of(text)
        language = guidance if isinstance(guidance, str) else asked_in
        text = f"{text}\n\n{guidance_text(language, own, settings.schedule, settings.several_calls, rounds)}".strip()
    return System.of(text) if text else None


@dataclass(slots=True)
@plain_factories
class Kept:
    """What an agent keeps from run to run."""

    results: ResultCache = field(default_factory=ResultCache)
    """Results of tools with `cache`."""
    order_hint: OrderHint = field(default_factory=OrderHint)
    system: Callable[[Settings, str, Toolbox, Language, int | None], System | None] = field(
        default_factory=lambda: lru_cache(MOST_SYSTEMS)(_system)
    )


@dataclass(slots=True)
class Plan:
    settings: Settings
    """Those of the agent. What a run may have in place of them is below."""
    kept: Kept
    model: Model
    tools: ToolSource | Toolbox
    """The same ones in every turn, or a function."""
    toolsets: tuple[ToolSet, ...]
    """Where these come from; and, if they were given for this run, those of the agent."""
    clock: Clock
    system: System | None
    write_system: WriteSystem | None
    """Writes it before each request, if the instructions are a function, or guidance is added: for the tools of the
    request, and the language of the prompt."""
    language: Language
    choose_limits: LimitsOf | None
    output: Output[Any] | None
    choice: Choice | None
    deps: Any
    store: dict[str, Any]
    trim: Trim | None
    on_approval: OnApproval | None
    output_given: bool
    """The output was given for this run: an agent that takes over has it too."""
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

    def header(self, limits: Limits) -> dict[str, Json]:
        """The settings of the run that a recording has."""
        return header_of(self.settings, limits=limits, choice=self.choice, language=self.language, output=self.output)

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
        policy = self.settings.policy
        caller: Caller = ToolCaller(toolbox, self.clock, self.kept.results, policy.result_limit, policy.tool_errors)
        return wrap_caller(self.middleware, caller, partial(self._prepare, toolbox)) if self.middleware else caller

    def text_of(self, output: Any) -> str:
        """The final output as text."""
        return str(output) if self.output is None else self.output.text_of(output)

    def is_answer(self, call: ToolCall) -> bool:
        """Is it the typed answer, given as a call?"""
        return self.output is not None and call.name == ANSWER

    def _prepare(self, toolbox: Toolbox, call: ToolCall) -> Prepared:
        """A call whose arguments middleware has changed."""
        prepared = prepare(call, toolbox, self.settings.policy.tool_errors)
        if self.is_answer(call):  # it is read from the history when the run is resumed
            prepared.refusal = CHANGED_ANSWER
        return prepared


def make_plan(
    settings: Settings,
    kept: Kept,
    options: ResumeOptions[Any],
    output: Output[Any] | None,
    account: Account,
    tools: ToolSet,
    clock: Clock,
) -> Plan:
    """The plan of a run with these options, which has this type of answer and these tools."""
    option = options.get
    instructions = option("instructions", settings.instructions)
    text = instructions if isinstance(instructions, str) else None
    guided = settings.guidance and (tools.offers_tools or bool(settings.handoffs))
    model = option("model", settings.model)
    asked = connect(model) if isinstance(model, str) else model
    return Plan(
        settings,
        kept,
        model=asked,
        tools=tools.of(asked),
        toolsets=(tools,) if tools is settings.tools else (tools, settings.tools),
        clock=clock,
        system=System.of(text) if text else None,
        write_system=_system_writer(settings, kept, instructions, account) if guided or text is None else None,
        language=_language(settings, text),
        choose_limits=None if option("limits") else settings.choose_limits,
        output=output,
        choice=None if output is not None and not output.has_tool and settings.choice == _ANSWER else settings.choice,
        deps=option("deps", settings.deps),
        store=option("store", {}),
        trim=option("trim") or settings.trim,
        on_approval=settings.on_approval,
        output_given=output is not settings.output,
    )


def _language(settings: Settings, instructions: str | None) -> Language:
    if isinstance(settings.guidance, str):
        return settings.guidance
    return settings.language if instructions is settings.instructions else language_of(instructions or "")


def _system_writer(settings: Settings, kept: Kept, instructions: Instructions, account: Account) -> WriteSystem:
    async def write(context: Callable[[], RunContext[Any]], tools: Toolbox, asked_in: Language) -> System | None:
        text = instructions
        if not isinstance(text, str):
            written = text(context())
            text = await written if inspect.isawaitable(written) else written
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
                raise UserError(f"the function given as instructions= returned {text!r}, and not a text")
        return kept.system(settings, text, tools, asked_in, account.limits.rounds)

    return write
