"""What an agent was given: one value that never changes, from which its runs begin. `SAVED` lists what a recording has
of it, and how an agent gets it back from there."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from unbroken.agent.limits import Limits, limits_to_json
from unbroken.agent.options import Instructions, LimitsOf, OnError, Policy, Trim
from unbroken.agent.output import ANSWER, Output
from unbroken.agent.prompts import Language, language_of
from unbroken.agent.toolset import Tools, ToolSet
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.middleware import Middleware, as_middleware
from unbroken.models.connect import connect_later
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.lines import Line, read_sampling, sampling_fields
from unbroken.trajectory.recorder import Recorder
from unbroken_wires.messages import UNSET, Choice, Effort, Json, OneTool, Sampling
from unbroken_wires.validation import check_fields


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `Agent` by their names, and what follows from them."""

    model: Model
    tools: ToolSet
    instructions: Instructions
    language: Language
    """Of the instructions."""
    handoffs: Mapping[str, Any]
    """The agents that may take over (`Handoff`), by the names of the tools that let them."""
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
    policy: Policy = given.pop("policy", None) or Policy()
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
        limits=limits if isinstance(limits, Limits) else Limits(),
        choose_limits=None if isinstance(limits, Limits) else limits,
        middleware=(*(() if recorder is None else (recorder,)), *middleware),
        **given,
    )


def _choice(choice: str | None, toolbox: Toolbox | None) -> Choice | None:
    if choice is None or choice == "auto" or choice == "none" or choice == "required":
        return choice
    if toolbox is not None and choice not in toolbox and choice != ANSWER:
        known = f"there are: {', '.join(toolbox.names)}" if len(toolbox) else "this agent has none"
        raise UserError(
            f"Policy(choice={choice!r}): there is no such tool; {known}; or use 'auto', 'none' or 'required'"
        )
    return OneTool(choice)


def _sampling(sampling: Sampling | None) -> Sampling:
    if sampling is None:
        return UNSET
    check_fields("Sampling", sampling)
    return sampling


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
    "sampling": _sampling,
    "sinks": as_middleware,
}
"""How an argument becomes a setting, if it is not one already."""


# In a recording


@dataclass(frozen=True, slots=True)
class Saved:
    """How a setting stands in the header of a recording, and how it is read there as an argument of `Agent`."""

    write: Callable[[Any], Json] | None = None
    read: Callable[[Any], Any] | None = None
    is_argument: bool = True
    """If not, it follows from another, or needs more than the header to be read."""


def _output_fields(output: Output[Any] | None) -> Json:
    if output is None:
        return None
    saved: dict[str, Json] = {"tool": ANSWER, "schema": output.schema}
    if output.free_text:
        saved["text"] = True
    return saved if output.via == "auto" else {**saved, "via": output.via}


SAVED = {
    "schedule": Saved(lambda schedule: schedule.value),
    "limits": Saved(limits_to_json, is_argument=False),
    "several_calls": Saved(),
    "on_error": Saved(),
    "choice": Saved(lambda choice: choice.name if isinstance(choice, OneTool) else choice, is_argument=False),
    "language": Saved(is_argument=False),
    "sampling": Saved(sampling_fields, lambda saved: read_sampling(saved or {})),
    "reasoning": Saved(),
    "output": Saved(_output_fields, is_argument=False),
}
"""Beside the policy, whose fields stand among these."""
POLICY = tuple(each.name for each in fields(Policy) if each.name not in {"agent_depth", "most_handoffs", "open_calls"})
"""Those of its fields that a replay needs."""


def header_of(settings: Settings, **of_the_run: Any) -> dict[str, Json]:
    """What a recording has of the settings: enough to replay the run. `of_the_run` has those that are different in
    it."""
    header: dict[str, Json] = {name: getattr(settings.policy, name) for name in POLICY}
    for name, saved in SAVED.items():
        value = of_the_run[name] if name in of_the_run else getattr(settings, name)
        header[name] = value if saved.write is None else saved.write(value)
    return header


def read_header(header: Line) -> dict[str, Any]:
    """The arguments of `Agent` that the header of a recording has, or a hand-off in it."""
    given: dict[str, Any] = {"policy": Policy(**{name: header[name] for name in POLICY if name in header})}
    for name, saved in SAVED.items():
        if saved.is_argument and name in header:
            given[name] = header[name] if saved.read is None else saved.read(header[name])
    return given
