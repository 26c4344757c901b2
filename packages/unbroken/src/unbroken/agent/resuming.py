"""Resumes runs. A run that waits resumes from its saved result or its recording, one whose process died from its
recording."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

from unbroken.agent.continuation import Continuation
from unbroken.agent.handoffs import final_agent
from unbroken.agent.limits import limits_of
from unbroken.agent.options import Answers, ResumeOptions
from unbroken.agent.output import ANSWER
from unbroken.agent.ready_run import PreparesRuns, ReadyRun
from unbroken.agent.recorded_state import cut_state, lost_usage, unmasked, waiting_state
from unbroken.agent.result import Result, inside_id
from unbroken.agent.run_state import RunState, Waiting
from unbroken.errors import UserError
from unbroken.events import RunFinished
from unbroken.middleware import Middleware, as_middleware
from unbroken.tools.approval import Allow, Approval, Deny, Edit, Wait
from unbroken.tools.results import to_parts
from unbroken.tools.toolbox import Toolbox
from unbroken.tools.value_checks import problem_of_arguments, problem_of_result
from unbroken.trajectory.recorded_run import RecordedRun, combine, refuse_ended
from unbroken.trajectory.recorder import Recorder, already_resumed, refuse_taken
from unbroken.trajectory.recording import Recording, read_recording
from unbroken_wires.messages import Json, ToolCall, ToolResult
from unbroken_wires.transcript import Transcript
from unbroken_wires.validation import check_options

Saved: TypeAlias = Result[Any] | Mapping[str, Any] | str | bytes | os.PathLike[str] | Recording
"""A result, what `to_json` made of it, or a recording."""
FINISHING = 60.0
"""Seconds in which a run that is resumed after its time limit may finish the calls of its last answer."""


def prepare_resume(
    agent: PreparesRuns, saved: Saved, answers: Answers, options: ResumeOptions, output: Any
) -> ReadyRun:
    """Prepares the rest of a run that waits or was cut off."""
    check_options("agent.resume", ResumeOptions, options, also=("answers", "output"))
    if not isinstance(answers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError("resume: the answers are a dict by call id, for example {call.id: Allow()}")
    recording = _recording(saved)
    if recording is not None:
        return _prepare_from(agent, recording, answers, options, output)
    result = saved if isinstance(saved, Result) else Result.from_json(cast("Json", saved))
    recording = find_recording(agent.stack(options), result) if result.stop_reason == "waiting" else None
    if recording is None:
        if result.stop_reason != "waiting":
            raise UserError(f"resume: the run is not waiting, it ended as {result.stop_reason}; continue with history=")
        _refuse_untyped(result.structured and not result.handoffs, output)
        return _prepare_waiting(agent, result.run, result.state(), answers, options, output)
    return _prepare_from(agent, recording, answers, options, output, result)


def _prepare_from(
    agent: PreparesRuns,
    recording: Recording,
    answers: Answers,
    options: ResumeOptions,
    output: Any,
    saved: Result[Any] | None = None,
) -> ReadyRun:
    try:
        with reading(recording):
            return _prepare_recorded(agent, RecordedRun.of(recording), answers, options, output, saved)
    except UserError:
        refuse_taken(recording)  # if another process is resuming the run, what was read may be incomplete
        raise


def prepare_durable(
    agent: PreparesRuns, recorded: RecordedRun, answers: Answers, options: ResumeOptions, journal: Middleware
) -> ReadyRun:
    """Prepares the rest of a run whose recording is in a journal. `journal` is the middleware that records it there.
    Calls of tools that are gone are answered so."""
    with reading(recorded.recording):
        return _prepare_recorded(agent, recorded, answers, options, agent.settings.output, journal=journal)


def prepare_inner(
    agent: PreparesRuns,
    recorded: RecordedRun,
    answers: Answers,
    options: ResumeOptions,
    journal: Middleware,
    saved: Result[Any] | None,
) -> ReadyRun:
    """Prepares the rest of a run inside of another one, whose recording has it."""
    with reading(recorded.recording):
        return _prepare_recorded(agent, recorded, answers, options, agent.settings.output, saved, journal)


def _prepare_waiting(
    agent: PreparesRuns,
    id: str,
    state: RunState,
    answers: Answers,
    options: ResumeOptions,
    output: Any,
    *,
    strict: bool = True,
    earlier: Collection[str] = (),
) -> ReadyRun:
    transcript, waiting, handoffs = state.transcript, state.waiting, state.handoffs
    ready = agent.ready(id, state, options.get("limits") or agent.settings.limits, options, output)
    tools, answering = ready.tools.fixed, final_agent(agent, handoffs)
    if handoffs:
        tools = None if answering is None else answering.settings.tools.fixed
    if tools is not None and answering is not None and answering.settings.handoffs:
        tools = Toolbox(tools, *(handoff.tool for handoff in answering.settings.handoffs.values()))
    answers, ready.inside.answers = _split_answers(state, answers, earlier)
    decisions = _decisions(transcript, answers, tools)
    if strict:
        _refuse_missing(transcript, decisions, tools)
    combined = {id: combine(waiting.decided.get(id), decision) for id, decision in decisions.items()}
    ready.decisions = {**waiting.decided, **combined}
    return ready


def _prepare_recorded(
    agent: PreparesRuns,
    recorded: RecordedRun,
    answers: Answers,
    options: ResumeOptions,
    output: Any,
    saved: Result[Any] | None = None,
    journal: Middleware | None = None,
) -> ReadyRun:
    """Continues where the recording ends, in the same file, or in the journal that it was read from. `saved` is the
    result of a waiting run, from before secrets were masked."""
    recording = recorded.recording
    refuse_ended(recording)
    continuation = Continuation(recorded, answers, watched=journal is not None)
    state = waiting_state(recorded)
    if state is not None:
        if saved is not None:
            unmasked(state, saved)
        ready = _prepare_recorded_waiting(agent, recorded, state, answers, options, output, saved, journal)
        continuation.continue_with_same_calls()
    else:
        if answers:
            raise UserError(f"{recording.path}: the run is not waiting, so there is nothing to answer")
        if journal is None:
            _refuse_untyped(recording.settings.get("output") is not None, output)
        state, limits = cut_state(recorded), options.get("limits") or limits_of(recording)
        ready = agent.ready(recording.run, state, limits, options, output)
        ready.lost, limit, seconds = lost_usage(recorded), limits.seconds, state.used.seconds
        if recorded.answer and limit is not None and seconds >= limit:  # its last answer belongs to the history
            ready.account.extra = seconds - limit + FINISHING
        if not state.transcript.closed:
            continuation.continue_with_same_calls()
    sinks = (*agent.settings.sinks, *as_middleware(options.get("sinks", ())))
    ready.middleware = continued(sinks, agent.settings.middleware, recording, continuation, journal)
    continuation.others = ready.middleware
    ready.continued, ready.past = True, continuation
    return ready


def _prepare_recorded_waiting(
    agent: PreparesRuns,
    recorded: RecordedRun,
    state: RunState,
    answers: Answers,
    options: ResumeOptions,
    output: Any,
    saved: Result[Any] | None,
    journal: Middleware | None,
) -> ReadyRun:
    """With the answers that the recording has, and the new ones."""
    recording = recorded.recording
    if journal is None:
        _refuse_untyped(recording.settings.get("output") is not None and not state.handoffs, output)
    asked = {call.id for call in state.transcript.open}
    said = {id: each for id, each in recorded.decisions.items() if id in asked}
    limits = limits_of(recording) if saved is None else agent.settings.limits
    given: ResumeOptions = {"limits": limits, **options}
    known = {id: combine(said.get(id), answer) for id, answer in answers.items()}
    state.used.seconds = recorded.seconds
    return _prepare_waiting(
        agent,
        recording.run,
        state,
        {**said, **known},
        given,
        output,
        strict=journal is None,
        earlier=said.keys() - known.keys(),
    )


def _refuse_untyped(structured: bool, output: Any) -> None:
    if structured and output is None:
        raise UserError("resume: the run has a structured answer; give its type again with output=")


def _recording(saved: Saved) -> Recording | None:
    """The first character distinguishes a path from the text of a saved result."""
    if isinstance(saved, Recording):
        return saved
    if isinstance(saved, os.PathLike) or (isinstance(saved, str) and not saved.lstrip().startswith(("{", "["))):
        return read_recording(saved)
    return None


def _split_answers(
    state: RunState, answers: Answers, earlier: Collection[str]
) -> tuple[Answers, dict[str, dict[str, Any]]]:
    """The answers to calls of the run itself; and those to calls of agents that run as tools, by the ids of the calls
    that run them. Such a call may have its result by now: then the answer was used. `earlier`: the ids of calls whose
    answers were recorded before, and not given now."""
    waiting = state.waiting
    inside = {call.id: call for call in waiting.pending if call.agent}
    if not inside:
        return answers, {}
    open_calls = [call.id for call in state.transcript.open]
    own, inner = dict[str, Any](), dict[str, dict[str, Any]]()
    for id, answer in answers.items():
        if id in inside and (
            isinstance(answer, bool) or (isinstance(answer, str) and _is_decision(answer, None, inside[id].name))
        ):  # inside it would only fail the call that runs the agent
            raise _ambiguous(answer, inside[id], id)
        places = _places_inside(waiting, id) if id in inside else []
        if len(places) + (id in open_calls) > 1:
            raise UserError(
                f"resume: several waiting calls have the id `{id}`; give the call that runs an agent a result instead: "
                f"{_listed(outer for outer, _ in places)}"
            )
        if places:
            inner.setdefault(places[0][0], {})[places[0][1]] = answer
        elif id in open_calls:
            asks = sorted(each for each in inside if any(outer == id for outer, _ in _places_inside(waiting, each)))
            if asks and id not in earlier and isinstance(answer, Allow | Deny | Edit):
                what = {Allow: "allowed", Deny: "denied", Edit: "edited"}[type(answer)]
                raise UserError(
                    f"resume: call `{id}` cannot be {what} any more: it runs an agent that waits inside; decide about "
                    f"{_listed(asks)}, or give `{id}` a result"
                )
            own[id] = answer
        elif id not in inside:
            known = ", ".join(f"`{call.id}` ({call.name})" for call in waiting.pending)
            raise UserError(f"resume: no call with the id `{id}` is waiting; waiting: {known}")
    return own, inner


def _places_inside(waiting: Waiting, id: str) -> list[tuple[str, str]]:
    """The calls that run agents in which this one waits, and its id there. More than one only if ids have slashes."""
    return [
        (outer, call.id)
        for outer, result in waiting.inner.items()
        for call in result.pending
        if inside_id(outer, call.id) == id
    ]


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(f"`{id}`" for id in ids)


def _decisions(transcript: Transcript, answers: Answers, toolbox: Toolbox | None) -> dict[str, Approval | ToolResult]:
    waiting = {call.id: call for call in transcript.open}
    decisions: dict[str, Approval | ToolResult] = {}
    for id, answer in answers.items():
        call = waiting.get(id)
        if call is None:
            known = ", ".join(f"`{call.id}` ({call.name})" for call in waiting.values()) or "none"
            raise UserError(f"resume: no call with the id `{id}` is waiting; waiting: {known}")
        if isinstance(answer, bool) or (isinstance(answer, str) and _is_decision(answer, toolbox, call.name)):
            raise _ambiguous(answer, call, id)
        if isinstance(answer, Edit) and (problem := problem_of_arguments(answer.arguments)):
            raise UserError(f"resume: the arguments of Edit(…) for call `{id}` ({call.name}) are not JSON: {problem}")
        if isinstance(answer, ToolResult) and (problem := problem_of_result(answer)):
            raise UserError(f"resume: the answer for call `{id}` ({call.name}) is {problem}")
        if isinstance(answer, ToolResult):  # of a call inside an agent it has the id that the outer run shows
            decisions[id] = replace(answer, call_id=id)
        elif isinstance(answer, Allow | Deny | Edit | Wait):
            decisions[id] = answer
        else:
            decisions[id] = ToolResult(id, to_parts(answer), name=call.name)
    return decisions


def _ambiguous(answer: object, call: ToolCall, id: str) -> UserError:
    return UserError(
        f"resume: {answer!r} for call `{id}` ({call.name}) is ambiguous; use Allow(), Deny() or Edit({{…}}), or, if "
        f"that is what the call gave, ToolResult.of(call, …)"
    )


def _is_decision(answer: str, toolbox: Toolbox | None, name: str) -> bool:
    """Does it look like a decision? For a tool that runs at the client it is an ordinary result."""
    tool = toolbox.get(name) if toolbox is not None else None
    if tool is not None and tool.function is None:
        return False
    word, colon, _ = answer.partition(":")
    return word.strip().lower() in (("deny", "edit") if colon else ("allow", "deny"))


def _refuse_missing(
    transcript: Transcript, decisions: Mapping[str, Approval | ToolResult], toolbox: Toolbox | None
) -> None:
    """Without its tool, a waiting call would be answered with an error and could not wait again."""
    if toolbox is None:
        return
    unanswered = [call.name for call in transcript.open if not isinstance(decisions.get(call.id), ToolResult)]
    if missing := [name for name in dict.fromkeys(unanswered) if name not in toolbox and name != ANSWER]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise UserError(f"resume: calls of {names} wait, and this agent has no such tool; add it to Agent(tools=[…])")


@contextmanager
def reading(recording: Recording) -> Generator[None]:
    """Turns anything that a recorder cannot have written into a `UserError`. Refuses a recording without an agent."""
    if "schedule" not in recording.settings:
        raise UserError(f"{recording.path} has no agent that could continue: it was made by a gateway, or by a test")
    try:
        yield
    except UserError as error:
        told = str(error)
        raise (error if str(recording.path) in told else UserError(f"{recording.path}: {told}")) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{recording.path} is damaged and cannot be replayed or resumed ({what})") from error


def find_recording(middleware: Iterable[Middleware], result: Result[Any]) -> Recording | None:
    """The recording of a run whose saved result is resumed. Raises `RunTaken` if the run has continued since."""
    files = [file for each in middleware for file in each.recordings_of(result.run)] if result.run else []
    for file in reversed(files):
        recording = read_recording(file)
        with reading(recording):
            waiting = waiting_state(RecordedRun.of(recording))
        waits_for = result.requests, {call.id for call in result.pending}
        if waiting is not None and _waits_for(waiting) == waits_for and not _has_ended(recording):
            return recording
    if files:
        raise already_resumed(files[-1], result.run)
    return None


def continued(
    sinks: Sequence[Middleware],
    middleware: Sequence[Middleware],
    recording: Recording,
    continuation: Middleware,
    journal: Middleware | None = None,
) -> tuple[Middleware, ...]:
    """The recorder appends to the recording; next to it, `continuation` provides what was recorded of the run."""
    recorder = journal or next((each for each in (*middleware, *sinks) if each.records), None)
    recorder = recorder or Recorder(recording.path.parent)
    resumed = recorder.resume(recording.path, recording.run, recording.size)
    listening = [each for each in sinks if not each.records]
    return (*listening, *replace_recorder(middleware, resumed, continuation))


def replace_recorder(middleware: Sequence[Middleware], *instead: Middleware) -> tuple[Middleware, ...]:
    """Replaces the first middleware that records with these, or puts them outermost if none does."""
    others = [each for each in middleware if not each.records]
    place = next((place for place, each in enumerate(middleware) if each.records), 0)
    return (*others[:place], *instead, *others[place:])


def _waits_for(state: RunState) -> tuple[int, set[str]]:
    return state.used.requests, {call.id for call in state.waiting.pending}


def _has_ended(recording: Recording) -> bool:
    return isinstance(recording.ending, RunFinished) and recording.ending.stop_reason != "waiting"
