"""`Agent`: a model and some tools, ready to be asked. It holds what is the same for every run and starts runs; the loop
runs them (`loop`), and what a run came to is a `Result`."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast

from unbroken.agent.background_loop import BACKGROUND
from unbroken.agent.limits import Account, Limits, limits_of
from unbroken.agent.order_hint import OrderHint
from unbroken.agent.output import ANSWER, OutputType
from unbroken.agent.plan import OnAllFailed, OnError, Plan, Trim
from unbroken.agent.prompt_parts import Prompt, to_user
from unbroken.agent.prompts import Language, guidance_text, language_of
from unbroken.agent.replay_loop import play_again
from unbroken.agent.result import Result
from unbroken.agent.resume_state import (
    continued,
    find_recording,
    reading,
    records_of,
    replace_recorder,
    unmasked,
    verdicts_of,
    waiting_result,
)
from unbroken.agent.run_lifecycle import Performance
from unbroken.agent.streaming import RunStream
from unbroken.agent.toolset import Tools, ToolSet
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.events import CallFinished, CallStarted, Event, Sink
from unbroken.messages import Choice, Effort, Json, Message, OneTool, Sampling, System, ToolMessage, ToolResult
from unbroken.middleware import Middleware, as_middleware
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Wait
from unbroken.tools.caller import ResultCache, ToolErrors
from unbroken.tools.context import CallContext
from unbroken.tools.results import RESULT_LIMIT, ToolFailed, to_parts
from unbroken.tools.schedule import Schedule
from unbroken.tools.tool import AfterCrash, Effect, Tool, tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.continuation import Continuation, combine, find_interruption
from unbroken.trajectory.facts import COUNTED_IN_RUN
from unbroken.trajectory.recorder import Recorder, refuse_taken
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.replay import PlayedClock, PlayedTools, replay
from unbroken.transcript import NO_RESULT, Transcript, repair
from unbroken.validation import check_fields, check_options, checked
from unbroken.wires.chain import validate_tool_chain

Answers: TypeAlias = Mapping[str, Any]
"""By call id: `Allow`, `Deny`, `Edit`, `Wait`, or the result of a call that ran at the client."""

OpenCalls: TypeAlias = Literal["execute", "answer", "error"]

Saved: TypeAlias = Result | Mapping[str, Any] | str | bytes | os.PathLike[str] | Recording
"""A result, what `to_json` made of it, or a recording."""
NOTHING: Answers = {}
FINISHING = 60.0
"""Seconds in which a run that is resumed after its time was up may finish the calls of its last answer."""


class ResumeOptions(TypedDict, total=False):
    """What a run may be given when it goes on."""

    output: Any
    """A type that the answer must have: it comes in `result.output`."""
    deps: Any
    """Whatever tools find in their `CallContext`."""
    store: dict[str, Any]
    """Lives on from run to run, for tools that remember something."""
    trim: Trim | None
    """What is sent of a long history, in place of the agent's own `trim=`."""
    limits: Limits | None
    sinks: Sequence[Sink | Middleware]
    """Functions that get every event of this run, or middleware for it."""


class TurnOptions(ResumeOptions, total=False):
    """Options of one turn of a `Conversation`, which has its own history."""

    run_id: str


class Options(TurnOptions, total=False):
    """Options of one run."""

    history: Sequence[Message] | Transcript | None
    """What was said before. A `Transcript` is continued in place; anything else is copied, and mended if need be."""
    open_calls: OpenCalls | None
    """What becomes of calls in which that history ends, in place of what the agent says."""


LOG = logging.getLogger("unbroken.agent")


@checked
class Agent:
    """Give it a model and tools; `run` goes through as many rounds as it takes and ends with an answer.

    - `tools`: functions, `Tool`s, objects, modules, files, MCP servers; or a function of turn and transcript.
    - `schedule`, `several_calls`: how the calls of one response run, and whether there may be several.
    - `limits`: how far a run may go. Limits do not raise, they end in an answer.
    - `on_error`: after a tool failed, `"continue"` with the model told, or `"finish"` with a final answer.
    - `on_all_failed`: when every call of a round failed, `"continue"`, or `"stop"` at once.
    - `final_answer`: at a limit the model is asked for an answer. Without it the run ends there, with the results of
      its last calls and no text.
    - `on_approval`: asked before a tool with `approve` runs. Without it such calls are denied.
    - `guidance`: add how to call tools well to the instructions; the language is that of the instructions.
    - `choice`: of the first request: `"required"`, `"none"`, or the name of the tool that must be called.
    - `sinks`: functions that get every event of every run. `record`: a folder in which each run is recorded.
    - `middleware`: wraps requests to the model and tool calls, and sees events. The first is the outermost; `record` is
      outside of it.
    - `trim`: a function that chooses what is sent of a long history (see `Conversation`).
    - `nudge`: ask a model to go on that announces a call and makes none; `continue_prompt`: in these words, which are
      also said to one that stays silent.
    - `open_calls`: what becomes of calls without results in which a history ends that is handed in: `"execute"` them
      (the default without a prompt), `"answer"` them as not executed (with one), or raise an `"error"`.
    - `share_all`: identical calls of any tool share one execution.
    - `tool_errors`: what the model reads when a tool raises: the text of the exception (`"full"`, with passwords in
      addresses masked), or its type alone (`"safe"`; the text goes to the log). The words of `ToolFailed` always pass.
    """

    def __init__(
        self,
        model: Model | str,
        tools: Tools = (),
        instructions: str = "",
        *,
        name: str = "main",
        schedule: Schedule | Literal["sequential", "parallel", "eager"] = Schedule.EAGER,
        limits: Limits | None = None,
        several_calls: bool = True,
        on_error: OnError = "continue",
        on_all_failed: OnAllFailed = "continue",
        final_answer: bool = True,
        on_approval: OnApproval | None = None,
        guidance: bool | Language = True,
        choice: Literal["auto", "none", "required"] | str | None = None,
        sampling: Sampling | None = None,
        reasoning: Effort | None = None,
        cache: bool = False,
        sinks: Sequence[Sink | Middleware] = (),
        middleware: Sequence[Middleware] = (),
        record: str | os.PathLike[str] | Recorder | None = None,
        result_limit: int = RESULT_LIMIT,
        trim: Trim | None = None,
        share_all: bool = False,
        tool_errors: ToolErrors = "full",
        nudge: bool = False,
        continue_prompt: str = "",
        open_calls: OpenCalls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.model: Model = connect(model) if isinstance(model, str) else model
        self.name = name
        self.instructions = instructions
        self.schedule = Schedule(schedule)
        self.limits = limits or Limits()
        self._tools = ToolSet(tools)
        self._several_calls = several_calls
        self._on_error: OnError = on_error
        self._on_all_failed: OnAllFailed = on_all_failed
        self._final_answer = final_answer
        self._on_approval = None if on_approval is None else _approver(on_approval)
        self._guidance = bool(guidance)
        self._choice: Choice | None = _choice(choice, self._tools.fixed)
        self._sampling = sampling or Sampling()
        check_fields("Sampling", self._sampling)
        self._reasoning: Effort | None = reasoning
        self._cache = cache
        self._language: Language = guidance if isinstance(guidance, str) else language_of(instructions)
        self._systems: dict[int | None, System | None] = {}
        recorder = Recorder(record) if isinstance(record, str | os.PathLike) else record
        self._sinks = as_middleware(sinks)
        self._middleware = ((recorder,) if recorder is not None else ()) + tuple(middleware)
        if result_limit < 1:
            raise UserError(f"Agent(result_limit={result_limit}): expected a number of characters from 1")
        self._result_limit = result_limit
        self._trim = trim
        self._share_all = share_all
        self._tool_errors: ToolErrors = tool_errors
        self._nudge = nudge
        self._continue_prompt = continue_prompt
        self._open_calls: OpenCalls | None = open_calls
        self._clock = clock
        self._results = ResultCache()
        self.order_hint = OrderHint()

    async def run(self, prompt: Prompt | None = None, **options: Unpack[Options]) -> Result:
        """Ask, and run tools until there is an answer. What may be given besides the prompt stands in `Options`."""
        return await self.prepare(prompt, options)()

    def stream(self, prompt: Prompt | None = None, **options: Unpack[Options]) -> RunStream:
        """The same as `run`, as a stream of events: `async for event in agent.stream(…)`."""
        performance = self.prepare(prompt, options)
        return RunStream(lambda sink: performance((sink,)), performance.messages)

    def run_sync(self, prompt: Prompt | None = None, **options: Unpack[Options]) -> Result:
        """`run` for programs that cannot await: scripts, notebooks, threads."""
        return BACKGROUND.run(self.run(prompt, **options))

    async def resume(self, result: Saved, answers: Answers = NOTHING, **options: Unpack[ResumeOptions]) -> Result:
        """Go on with a run that is `waiting`: from its result, or from what `result.to_json()` gave. `answers` says by
        call id what was decided (`Allow`, `Deny`, `Edit`), or what a call gave that ran at the client.

        A run whose process died, or that failed, goes on from its recording (its path): calls that had finished are
        not run again, and it is recorded on there."""
        return await self.prepare_resume(result, answers, options)()

    def resume_sync(self, result: Saved, answers: Answers = NOTHING, **options: Unpack[ResumeOptions]) -> Result:
        """`resume` for programs that cannot await."""
        return BACKGROUND.run(self.resume(result, answers, **options))

    def stream_resume(self, result: Saved, answers: Answers = NOTHING, **options: Unpack[ResumeOptions]) -> RunStream:
        """The same as `resume`, as a stream of events."""
        performance = self.prepare_resume(result, answers, options)
        return RunStream(lambda sink: performance((sink,)), performance.messages)

    def replay(
        self,
        recording: str | os.PathLike[str] | Recording,
        *,
        clock: PlayedClock = "virtual",
        tools: PlayedTools = "recorded",
        speed: float = 1.0,
        **options: Unpack[ResumeOptions],
    ) -> Result:
        """A recorded run once more, with this agent: its model, and with `tools="recorded"` its tools too, are not
        asked. Raises `ReplayDiverged` where the run goes another way than it went. Options as for `run`; the limits are
        those of the recorded run, if none are given."""
        check_options("agent.replay", ResumeOptions, options, also=("clock", "tools", "speed"))
        recorded = recording if isinstance(recording, Recording) else read_recording(recording)
        with reading(recorded):
            playback = replay(recorded, clock=clock, tools=tools, speed=speed)
            messages, question, limits = playback.messages, playback.question, limits_of(recorded)

        def prepare() -> Performance:
            given: Options = {
                "limits": limits,
                **options,
                "history": messages,
                "run_id": playback.run,
                "open_calls": "execute",
            }
            performance = self.prepare(None if question is None else question.parts, given)
            # Where the recorder was is the recording now. The replay itself is recorded only if its `sinks` do it.
            replayed = replace_recorder(self._middleware, playback)
            performance.middleware = (*self._sinks, *as_middleware(options.get("sinks", ())), *replayed)
            performance.earlier = playback
            return performance

        return play_again(playback, prepare)

    @checked(name="agent.as_tool")
    def as_tool(
        self,
        name: str,
        description: str,
        *,
        effect: Effect = "write",
        overlap: bool | None = None,
        timeout: float | None = None,
        after_crash: AfterCrash | None = None,
    ) -> Tool:
        """This agent as a tool of another: it gets a task in words and gives its answer. What it used counts there.

        Several tasks run side by side if the agent only reads (`effect="read"`) or with `overlap=True`.
        """

        async def delegate(context: CallContext[Any], task: str) -> str:
            def forward(event: Event) -> None:
                if isinstance(event, CallStarted):
                    context.report(f"{event.name} started")
                elif isinstance(event, CallFinished):
                    context.report(f"{event.name} {'failed' if event.error else 'done'}")

            performance = self.prepare(task, {"deps": context.deps, "sinks": (forward,), "run_id": context.key})
            try:
                result = await performance()
            finally:
                context.spend(performance.account.usage)
            if result.pending:
                names = ", ".join(f"`{call.name}`" for call in result.pending)
                raise ToolFailed(f"`{name}` cannot go on: {names} waits for somebody outside, who cannot be asked here")
            return result.text

        made = tool(
            name=name, description=description, effect=effect, overlap=overlap, timeout=timeout, after_crash=after_crash
        )
        return made(delegate)

    async def __aenter__(self) -> Agent:
        """Opens the MCP servers among its tools, so that runs share them."""
        await self._tools.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tools.close()

    def prepare(self, prompt: Prompt | None, options: Options) -> Performance:
        """A run that is ready to go."""
        check_options("agent.run", Options, options, unchecked=("history",), also=("prompt",))
        if options.get("run_id") == "":
            raise UserError("agent.run(run_id=''): the id is empty; give one, or leave it out to get a random one")
        open_calls = options.get("open_calls", self._open_calls)
        # Who asks something new goes on from there; who asks nothing wants to know what the calls give.
        open_calls = open_calls or ("execute" if prompt is None else "answer")
        transcript = _mended(options.get("history"), open_calls)
        if prompt is None and not transcript.messages:
            raise UserError("there is nothing to answer: give a prompt, or a history that ends in one")
        account = Account(options.get("limits") or self.limits)
        performance = self._performance(options.get("run_id") or os.urandom(6).hex(), transcript, account, options)
        if prompt is not None:  # last: whatever is refused leaves the history as it was
            question = to_user(prompt)
            if transcript.closed:
                transcript.add(question)
            else:
                performance.question = question
        return performance

    def prepare_resume(self, saved: Saved, answers: Answers, options: ResumeOptions) -> Performance:
        """The rest of a run that waits, or was cut off, ready to go."""
        check_options("agent.resume", ResumeOptions, options, also=("answers",))
        if not isinstance(answers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise UserError("resume: the answers are a dict by call id, for example {call.id: Allow()}")
        recording = _recording(saved)
        if recording is not None:
            return self._prepare_from(recording, answers, options)
        result = saved if isinstance(saved, Result) else Result.from_json(cast("Json", saved))
        recording = find_recording(self._stack(options), result) if result.stop_reason == "waiting" else None
        if recording is None:
            return self._prepare_waiting(result, answers, options)
        return self._prepare_from(recording, answers, options, result)

    def _prepare_from(
        self, recording: Recording, answers: Answers, options: ResumeOptions, saved: Result | None = None
    ) -> Performance:
        try:
            with reading(recording):
                return self._prepare_recorded(recording, answers, options, saved)
        except UserError:
            refuse_taken(recording)  # what was read while somebody else resumes the run may be half of it
            raise

    def _prepare_waiting(self, result: Result, answers: Answers, options: ResumeOptions) -> Performance:
        if result.stop_reason != "waiting":
            raise UserError(f"resume: the run is not waiting, it ended as {result.stop_reason}; go on with history=")
        _refuse_untyped(result.structured, options)
        transcript = result.transcript()
        limits = options.get("limits") or self.limits
        account = Account(limits, result.rounds, result.requests, result.call_count, result.usage, result.seconds)
        performance = self._performance(result.run, transcript, account, options)
        performance.decisions = dict(result.decided)
        decisions = _decisions(transcript, answers, self._tools.fixed)
        _refuse_missing(transcript, decisions, self._tools.fixed)
        for id, decision in decisions.items():
            performance.decisions[id] = combine(result.decided.get(id), decision)
        performance.before = result
        performance.next_call = result.next_call
        return performance

    def _prepare_recorded(
        self, recording: Recording, answers: Answers, options: ResumeOptions, saved: Result | None = None
    ) -> Performance:
        """It continues where its recording ends, and is recorded there. `saved` is the result of a run that waits, as
        it was before secrets were masked."""
        cut = find_interruption(recording)
        continuation = Continuation(cut, answers)
        waiting = waiting_result(recording)
        if waiting is not None:
            if saved is not None:
                waiting = unmasked(waiting, saved)
            asked = {call.id for call in waiting.transcript().open}
            said = {id: each for id, each in cut.decisions.items() if id in asked}
            limits = limits_of(recording) if saved is None else self.limits
            given: ResumeOptions = {"limits": limits, **options}
            known = {id: combine(said.get(id), answer) for id, answer in answers.items()}
            performance = self._prepare_waiting(waiting, {**said, **known}, given)
            continuation.continue_with_same_calls()
            performance.account.seconds = cut.seconds
        else:
            if answers:
                raise UserError(f"{recording.path}: the run does not wait for anybody, so there is nothing to answer")
            _refuse_untyped(recording.settings.get("output") is not None, options)
            account = Account(options.get("limits") or limits_of(recording), seconds=cut.seconds)
            limit = account.limits.seconds
            if cut.answer and limit is not None and cut.seconds >= limit:  # its last answer belongs to the history
                account.extra = cut.seconds - limit + FINISHING
            performance = self._performance(recording.run, Transcript(cut.messages), account, options)
            performance.question, performance.state = cut.question, cut.state
            if not performance.transcript.closed:
                continuation.continue_with_same_calls()
            performance.records, performance.verdicts = records_of(recording, cut.messages), verdicts_of(recording)
        sinks = (*self._sinks, *as_middleware(options.get("sinks", ())))
        performance.middleware = continued(sinks, self._middleware, recording, continuation)
        performance.next_seq, performance.goes_on = cut.next_seq, True
        performance.next_call = cut.next_call
        performance.events = tuple(event for event in recording.events if type(event) in COUNTED_IN_RUN)
        performance.earlier = continuation
        return performance

    def _performance(self, id: str, transcript: Transcript, account: Account, options: ResumeOptions) -> Performance:
        kind = options.get("output")
        output: OutputType[Any] | None = None if kind is None else OutputType.of(kind)
        plan = partial(self._plan, options=options, output=output, rounds=account.limits.rounds)
        return Performance(id, plan, self._clock, self._tools, transcript, account, self._stack(options), self.name)

    def _stack(self, options: ResumeOptions) -> tuple[Middleware, ...]:
        """All middleware of a run, the outermost first. Sinks are outside of the recorder: a replay has them too."""
        return (*self._sinks, *as_middleware(options.get("sinks", ())), *self._middleware)

    def _system(self, rounds: int | None) -> System | None:
        """The instructions, with guidance that names the real budget; the same words in every run."""
        if rounds not in self._systems:
            text = self.instructions
            if self._guidance and self._tools.offers_tools:
                text = f"{text}\n\n{guidance_text(self._language, rounds)}".strip()
            self._systems[rounds] = System.of(text) if text else None
        return self._systems[rounds]

    def _plan(self, clock: Clock, options: ResumeOptions, output: OutputType[Any] | None, rounds: int | None) -> Plan:
        return Plan(
            model=self.model,
            tools=self._tools.toolbox,
            clock=clock,
            system=self._system(rounds),
            sampling=self._sampling,
            reasoning=self._reasoning,
            cache_prompt=self._cache,
            schedule=self.schedule,
            several_calls=self._several_calls,
            on_error=self._on_error,
            on_all_failed=self._on_all_failed,
            final_answer=self._final_answer,
            on_approval=self._on_approval,
            share_all=self._share_all,
            tool_errors=self._tool_errors,
            choice=self._choice,
            output=output,
            language=self._language,
            deps=options.get("deps"),
            store=options.get("store", {}),
            result_limit=self._result_limit,
            results=self._results,
            order_hint=self.order_hint,
            trim=options.get("trim") or self._trim,
            nudge=self._nudge,
            continue_prompt=self._continue_prompt,
        )


def _refuse_untyped(structured: bool, options: ResumeOptions) -> None:
    if structured and options.get("output") is None:
        raise UserError("resume: the run was asked for an answer of a type; give it again with output=")


def _recording(saved: Saved) -> Recording | None:
    """A path is told from the text of a saved result by its first character."""
    if isinstance(saved, Recording):
        return saved
    if isinstance(saved, os.PathLike) or (isinstance(saved, str) and not saved.lstrip().startswith(("{", "["))):
        return read_recording(saved)
    return None


def _mended(history: Sequence[Message] | Transcript | None, open_calls: OpenCalls) -> Transcript:
    if isinstance(history, Transcript):
        transcript = history
    elif history is None or history == ():
        return Transcript()
    else:
        _refuse_foreign(history)
        messages, edits = repair(history, answer_open=False)
        if edits:
            LOG.warning("The history that was handed in was broken and is mended: %s", "; ".join(map(str, edits)))
        transcript = _transcript(messages)
    if transcript.closed or open_calls == "execute":
        return transcript
    names = ", ".join(f"`{call.id}` ({call.name})" for call in transcript.open)
    if open_calls == "error":
        raise UserError(
            f"history= ends in calls without results: {names}; answer them, or say open_calls='execute' to run them, "
            f"'answer' to tell the model that they did not run"
        )
    LOG.warning("The history that was handed in ends in calls without results, answered as not executed: %s", names)
    for call in transcript.open:
        transcript.answer(ToolResult.of(call, NO_RESULT, error=True))
    return transcript


def _refuse_foreign(history: Sequence[Message]) -> None:
    if isinstance(history, str | bytes) or not isinstance(history, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError(
            f"agent.run(history=…): expected the messages of a Result or a Conversation, or a Transcript, got "
            f"{type(history).__name__}"
        )
    for place, message in enumerate(history):
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            kind = type(message).__name__
            raise UserError(
                f"history= holds no message at {place}, but a value of the type {kind}: it takes what a Result or a "
                f"Conversation has in `messages`; messages of a provider are read by "
                f"`find_wire('openai-chat').decode_request({{'messages': …}}).messages`"
            )


def _transcript(messages: Sequence[Message]) -> Transcript:
    """Also of a history whose last round has only some of its results."""
    last = messages[-1] if messages else None
    if not isinstance(last, ToolMessage) or validate_tool_chain(messages):
        return Transcript(messages)
    transcript = Transcript(messages[:-1])
    for result in last.results:
        transcript.answer(result)
    return transcript


def _decisions(transcript: Transcript, answers: Answers, toolbox: Toolbox | None) -> dict[str, Approval | ToolResult]:
    waiting = {call.id: call for call in transcript.open}
    decisions: dict[str, Approval | ToolResult] = {}
    for id, answer in answers.items():
        call = waiting.get(id)
        if call is None:
            known = ", ".join(f"`{call.id}` ({call.name})" for call in waiting.values()) or "none"
            raise UserError(f"resume: no call with the id `{id}` is waiting; waiting: {known}")
        if isinstance(answer, bool) or (isinstance(answer, str) and _is_decision(answer, toolbox, call.name)):
            raise UserError(
                f"resume: {answer!r} for call `{id}` ({call.name}) may mean two things; say Allow(), Deny() or "
                f"Edit({{…}}), or, if that is what the call gave, ToolResult.of(call, …)"
            )
        if isinstance(answer, Allow | Deny | Edit | Wait | ToolResult):
            decisions[id] = answer
        else:
            decisions[id] = ToolResult(id, to_parts(answer), name=call.name)
    return decisions


def _is_decision(answer: str, toolbox: Toolbox | None, name: str) -> bool:
    """Does it read like a decision? For a tool that runs at the client it is a result like any other."""
    tool = toolbox.get(name) if toolbox is not None else None
    if tool is not None and tool.function is None:
        return False
    word, colon, _ = answer.partition(":")
    return word.strip().lower() in (("deny", "edit") if colon else ("allow", "deny"))


def _refuse_missing(
    transcript: Transcript, decisions: Mapping[str, Approval | ToolResult], toolbox: Toolbox | None
) -> None:
    """Without its tool a call that waits would be answered with an error, and the run could not wait for it again."""
    if toolbox is None:
        return
    unanswered = [call.name for call in transcript.open if not isinstance(decisions.get(call.id), ToolResult)]
    if missing := [name for name in dict.fromkeys(unanswered) if name not in toolbox and name != ANSWER]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise UserError(f"resume: calls of {names} wait, and this agent has no such tool; add it to Agent(tools=[…])")


def _choice(choice: str | None, toolbox: Toolbox | None) -> Choice | None:
    if choice is None or choice == "auto" or choice == "none" or choice == "required":
        return choice
    if toolbox is not None and choice not in toolbox and choice != ANSWER:
        known = f"there are: {', '.join(toolbox.names)}" if len(toolbox) else "this agent has none"
        raise UserError(
            f"Agent(choice={choice!r}): there is no such tool; {known}; or say 'auto', 'none' or 'required'"
        )
    return OneTool(choice)


def _approver(function: OnApproval) -> OnApproval:
    """Refuses a function that cannot be called with the call alone."""
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(
            f"Agent(on_approval={name}): it is called with the call alone, on_approval(call): {error}"
        ) from None
    except ValueError:
        pass  # it has no signature to look at
    return function
