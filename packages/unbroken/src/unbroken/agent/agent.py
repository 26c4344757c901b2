"""`Agent`: a model and some tools. It holds what is the same for every run and starts runs; `loop` runs them, and each
run ends with a `Result`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

from typing_extensions import TypeForm

from unbroken.agent.added_checks import AddedChecks
from unbroken.agent.given_history import read_history
from unbroken.agent.handoffs import Handoff, make_handoff, read_handoffs
from unbroken.agent.limits import Account, Limits
from unbroken.agent.options import (
    NOTHING,
    Answers,
    DepsT,
    Instructions,
    LimitsOf,
    OnError,
    Options,
    Overrides,
    Policy,
    ReplayOptions,
    ResumeOptions,
    Trim,
    read_arguments,
)
from unbroken.agent.output import Output
from unbroken.agent.plan import Kept, make_plan
from unbroken.agent.prompts import Language, Prompt, to_user
from unbroken.agent.ready_run import ReadyRun
from unbroken.agent.replaying import replay_run
from unbroken.agent.result import OutputT, Result
from unbroken.agent.resuming import Saved, prepare_resume
from unbroken.agent.run_state import RunState
from unbroken.agent.streaming import BACKGROUND, RunStream
from unbroken.agent.teams import SAME_DEPS, agent_tool
from unbroken.agent.toolset import Tools, ToolSet, ToolsFor
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.middleware import Middleware, as_middleware
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.schedule import Schedule
from unbroken.tools.tool import AfterCrash, Effect, Tool
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.replay import PlayedClock, PlayedTools
from unbroken_wires.messages import Effort, Sampling
from unbroken_wires.validation import check_options, checked, missing_attribute

T = TypeVar("T")
GivenDepsT = TypeVar("GivenDepsT")
OptionsT = TypeVar("OptionsT", bound=ResumeOptions[Any])


class AgentOptions(TypedDict, Generic[DepsT], total=False):
    """The options of an `Agent` by name, for its type: those whose type does not depend on `output`."""

    name: str
    deps: DepsT | None
    limits: Limits | LimitsOf | None
    schedule: Schedule | Literal["sequential", "parallel", "eager"]
    several_calls: bool
    on_error: OnError
    on_approval: OnApproval | None
    sampling: Sampling | None
    reasoning: Effort | None
    guidance: bool | Language
    trim: Trim | None
    sinks: Sequence[Sink | Middleware]
    middleware: Sequence[Middleware]
    handoffs: Sequence[Agent[Any, Any] | Handoff]
    record: str | os.PathLike[str] | Recorder | None
    policy: Policy | None
    clock: Clock | None


@checked
class Agent(AddedChecks, Generic[DepsT, OutputT]):
    """Give it a model and tools; `run` takes as many rounds as needed and ends with an answer.

    - `tools`: functions, `Tool`s, objects, modules, files, MCP servers; or a function of the run's context.
    - `instructions`: a text, or a function of the run's context that returns it before each request.
    - `output`: a type that the answer must have: a pydantic model, a dataclass, or types made of them. You get it as
      `result.output`, and type checkers know it: this is an `Agent[Deps, Output]`. `Output` chooses how it is given.
    - `deps`: whatever tools find in their `CallContext`, unless a run is given another.
    - `limits`: how far a run may go, or a function of its context. Limits do not raise, they end in an answer.
    - `schedule`, `several_calls`: how the calls of one response run, and whether there may be several.
    - `on_error`: after a tool failed, `"continue"` and let the model see the error, or `"finish"` with a final answer.
    - `on_approval`: called before a tool with `approve` runs. Without it such calls are denied; in a durable run they
      wait.
    - `guidance`: add advice on calling tools to the instructions, in their language.
    - `trim`: a function that chooses which part of a long history is sent (see `Conversation`).
    - `sinks`: functions that get every event of every run. `record`: a folder in which each run is recorded.
    - `middleware`: wraps requests to the model and tool calls, and sees events. The first is the outermost; `record` is
      outside of it.
    - `handoffs`: agents that may take over the run with its history, as they are or as `other.as_handoff(…)`.
    - `policy`: options that are rarely changed (`Policy`).
    """

    @overload
    def __init__(
        self,
        model: Model | str,
        tools: ToolsFor[DepsT] = ...,
        instructions: Instructions = ...,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Model | str,
        tools: ToolsFor[DepsT] = ...,
        instructions: Instructions = ...,
        *,
        output: type[OutputT] | Output[OutputT] | None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, T],
        model: Model | str,
        tools: ToolsFor[GivenDepsT] = ...,
        instructions: Instructions = ...,
        *,
        output: TypeForm[T],
        **options: Unpack[AgentOptions[GivenDepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, T],
        model: Model | str,
        tools: ToolsFor[GivenDepsT] = ...,
        instructions: Instructions = ...,
        *,
        output: Callable[..., T],
        **options: Unpack[AgentOptions[GivenDepsT]],
    ) -> None: ...
    def __init__(
        self,
        model: Model | str,
        tools: Tools = (),
        instructions: Instructions = "",
        *,
        output: Any = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        handoffs = read_handoffs(options.pop("handoffs", ()))
        self.settings = read_arguments(model, tools, instructions, output, handoffs, options)
        self._kept = kept = Kept()
        self.order_hint = kept.order_hint
        """Which tools ran one after another because they declare nothing, and lost time."""
        self._overrides: ContextVar[Overrides | None] = ContextVar(f"overrides of {self.name}", default=None)

    @property
    def name(self) -> str:
        """`main`, if it was given none. Events, recordings and hand-offs name the agent so."""
        return self.settings.name

    @property
    def model(self) -> Model:
        """Answers the requests of runs that are given no other model."""
        return self.settings.model

    if not TYPE_CHECKING:  # type checkers have their own words for it

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    @overload
    async def run(self, prompt: Prompt | None = None, **options: Unpack[Options[DepsT]]) -> Result[OutputT]: ...
    @overload
    async def run(
        self, prompt: Prompt | None = None, *, output: type[T] | Output[T], **options: Unpack[Options[DepsT]]
    ) -> Result[T]: ...
    @overload
    async def run(
        self, prompt: Prompt | None = None, *, output: Any, **options: Unpack[Options[DepsT]]
    ) -> Result[Any]: ...
    async def run(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[Options[DepsT]]
    ) -> Result[Any]:
        """Ask, and run tools until there is an answer. `Options` lists the arguments besides the prompt; `output` is a
        type for this answer, in place of the agent's own."""
        return await self.prepare(prompt, options, output)()

    @overload
    def stream(self, prompt: Prompt | None = None, **options: Unpack[Options[DepsT]]) -> RunStream[OutputT]: ...
    @overload
    def stream(
        self, prompt: Prompt | None = None, *, output: type[T] | Output[T], **options: Unpack[Options[DepsT]]
    ) -> RunStream[T]: ...
    @overload
    def stream(
        self, prompt: Prompt | None = None, *, output: Any, **options: Unpack[Options[DepsT]]
    ) -> RunStream[Any]: ...
    def stream(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[Options[DepsT]]
    ) -> RunStream[Any]:
        """The same as `run`, as a stream of events: `async for event in agent.stream(…)`."""
        kind = self.output_of(output)
        ready = self.prepare(prompt, options, kind)
        return RunStream(ready, ready.messages, kind)

    @overload
    def run_sync(self, prompt: Prompt | None = None, **options: Unpack[Options[DepsT]]) -> Result[OutputT]: ...
    @overload
    def run_sync(
        self, prompt: Prompt | None = None, *, output: type[T] | Output[T], **options: Unpack[Options[DepsT]]
    ) -> Result[T]: ...
    @overload
    def run_sync(
        self, prompt: Prompt | None = None, *, output: Any, **options: Unpack[Options[DepsT]]
    ) -> Result[Any]: ...
    def run_sync(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[Options[DepsT]]
    ) -> Result[Any]:
        """`run` for programs that cannot await: scripts, notebooks, threads."""
        return BACKGROUND.run(self.run(prompt, output=output, **options))

    async def resume(
        self,
        result: Saved,
        answers: Answers = NOTHING,
        *,
        output: type[OutputT] | Output[OutputT] | Any = None,
        **options: Unpack[ResumeOptions[DepsT]],
    ) -> Result[OutputT]:
        """Resume a run that is `waiting`: from its result, or from what `result.to_json()` returned. `answers` has, by
        call id, a decision (`Allow`, `Deny`, `Edit`) or the result of a call that ran at the client.

        A run that failed, or whose process died, is resumed from the path of its recording: finished calls do not run
        again, and the same file is continued."""
        return await self.prepare_resume(result, answers, options, output)()

    def resume_sync(
        self,
        result: Saved,
        answers: Answers = NOTHING,
        *,
        output: type[OutputT] | Output[OutputT] | Any = None,
        **options: Unpack[ResumeOptions[DepsT]],
    ) -> Result[OutputT]:
        """`resume` for programs that cannot await."""
        return BACKGROUND.run(self.resume(result, answers, output=output, **options))

    def stream_resume(
        self,
        result: Saved,
        answers: Answers = NOTHING,
        *,
        output: type[OutputT] | Output[OutputT] | Any = None,
        **options: Unpack[ResumeOptions[DepsT]],
    ) -> RunStream[OutputT]:
        """The same as `resume`, as a stream of events."""
        kind = self.output_of(output)
        ready = self.prepare_resume(result, answers, options, kind)
        return RunStream(ready, ready.messages, kind)

    def replay(
        self,
        recording: str | os.PathLike[str] | Recording,
        *,
        clock: PlayedClock = "virtual",
        tools: PlayedTools = "recorded",
        speed: float = 1.0,
        output: type[OutputT] | Output[OutputT] | Any = None,
        **options: Unpack[ReplayOptions[DepsT]],
    ) -> Result[OutputT]:
        """Replay a recorded run with this agent. Its model is not asked, and with `tools="recorded"` its tools do not
        run. Raises `ReplayDiverged` if the run takes a different course. Options as for `run`; the limits default to
        those of the recorded run."""
        return replay_run(self, recording, clock, tools, speed, options, output)

    @checked(name="agent.as_tool")
    def as_tool(
        self,
        name: str = "",
        description: str = "",
        *,
        effect: Effect = "write",
        overlap: bool | None = None,
        timeout: float | None = None,
        after_crash: AfterCrash | None = None,
        stream_text: bool = False,
        deps: Any = SAME_DEPS,
    ) -> Tool:
        """This agent as a tool of another: it gets a task as text and returns its answer. Approvals, events, usage,
        limits and cancellation pass through: see docs/teams.md.

        Several tasks run side by side if the agent only reads (`effect="read"`) or with `overlap=True`.
        `stream_text=True` also forwards its text as it streams. Its tools get the `deps` of the outer run, unless
        others are given here. `after_crash` is for a run without a recording of this agent's part.
        """
        return agent_tool(
            self,
            name,
            description,
            effect=effect,
            overlap=overlap,
            timeout=timeout,
            after_crash=after_crash,
            stream_text=stream_text,
            deps=deps,
        )

    @checked(name="agent.as_handoff")
    def as_handoff(self, name: str = "", description: str = "", *, filter: Trim | None = None) -> Handoff:
        """This agent for the `handoffs=` of another, which it takes over from: with the name and description of the
        tool that the model calls for it, and a function that chooses which part of the history this agent sees."""
        return make_handoff(self, name, description, filter)

    def hand_off_to(self, *agents: Agent[Any, Any] | Handoff) -> None:
        """Adds agents that may take over: for agents that hand off to each other."""
        self.settings = replace(self.settings, handoffs=read_handoffs([*self.settings.handoffs.values(), *agents]))

    async def __aenter__(self) -> Self:
        """Opens the MCP servers among its tools, so that runs share them."""
        await self.settings.tools.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.settings.tools.close()

    def prepare(self, prompt: Prompt | None, options: Options[DepsT], output: Any = None) -> ReadyRun:
        """Prepares a run; call the result to start it."""
        check_options("agent.run", Options, options, unchecked=("history",), also=("prompt", "output"))
        if options.get("run_id") == "":
            raise UserError("agent.run(run_id=''): the id is empty; give one, or leave it out to get a random one")
        open_calls = options.get("open_calls", self.settings.policy.open_calls)
        # With a new prompt, open calls are answered as not executed; without one, they are executed.
        open_calls = open_calls or ("execute" if prompt is None else "answer")
        transcript = read_history(options.get("history"), open_calls)
        if prompt is None and not transcript.messages:
            raise UserError("there is nothing to answer: give a prompt, or a history that ends in one")
        options = self.overridden(options)
        id = options.get("run_id") or os.urandom(6).hex()
        ready = self.ready(id, RunState(transcript), options.get("limits") or self.settings.limits, options, output)
        if prompt is not None:  # last, so that an error leaves the history unchanged
            question = to_user(prompt)
            if transcript.closed:
                transcript.add(question)
            else:
                ready.state.question = question
        return ready

    def prepare_resume(
        self, saved: Saved, answers: Answers, options: ResumeOptions[DepsT], output: Any = None
    ) -> ReadyRun:
        """Prepares the rest of a run that waits or was cut off."""
        return prepare_resume(self, saved, answers, self.overridden(options), self.output_of(output))

    def ready(
        self, id: str, state: RunState, limits: Limits | Account, options: ResumeOptions[DepsT], output: Any
    ) -> ReadyRun:
        """A run that starts in this state, with this agent's settings and these options. `limits`: or the account of
        the run that this agent takes over."""
        account = Account(limits, state.used) if isinstance(limits, Limits) else limits
        tools = ToolSet(options["tools"]) if "tools" in options else self.settings.tools
        plan = partial(make_plan, self.settings, self._kept, options, self.output_of(output), account, tools)
        return ReadyRun(id, plan, self.settings.clock, tools, state, account, self.stack(options), self.name)

    def output_of(self, output: Any) -> Output[Any] | None:
        """The type of a run's answer: the given one, or that of all runs."""
        return self.settings.output if output is None else Output[Any].of(output)

    @contextmanager
    def override(self, **options: Unpack[Overrides]) -> Generator[None]:
        """Inside of this block, runs of this agent use this model, these instructions, tools, limits or deps, whatever
        the code that starts them says. For tests: `with agent.override(model=TestModel()): …`"""
        check_options("agent.override", Overrides, options)
        token = self._overrides.set(cast("Overrides", {**(self._overrides.get() or {}), **options}))
        try:
            yield
        finally:
            self._overrides.reset(token)

    def overridden(self, options: OptionsT) -> OptionsT:
        """The options, with those of `override`. Limits without prices have the agent's."""
        given = self._overrides.get()
        if given is not None:
            options = cast("OptionsT", {**options, **given})
        limits, prices = options.get("limits"), self.settings.limits.prices
        if limits is None or limits.prices is not None or prices is None:
            return options
        return cast("OptionsT", {**options, "limits": replace(limits, prices=prices)})

    def stack(self, options: ResumeOptions[DepsT]) -> tuple[Middleware, ...]:
        """All middleware of a run, the outermost first. Sinks are outside of the recorder: a replay has them too."""
        return (*self.settings.sinks, *as_middleware(options.get("sinks", ())), *self.settings.middleware)
