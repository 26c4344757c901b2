"""The state of a run as its recording has it: where it waits, or where its process died; and results that are read from
a recording."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from unbroken.agent.aside import estimate
from unbroken.agent.limits import NOTHING_USED, StopReason, Used, limits_of
from unbroken.agent.output import Output
from unbroken.agent.result import Result, result_of
from unbroken.agent.run_state import CallRecord, Counters, Emitted, RunState, Taken, Waiting, read_taken
from unbroken.agent.turns import Ending
from unbroken.errors import UserError
from unbroken.events import CallFinished, CallWritten, RunFinished
from unbroken.tools.caller import with_changed_arguments
from unbroken.tools.handles import BackgroundCall, running
from unbroken.trajectory.counting import COUNTED_IN_RUN
from unbroken.trajectory.lines import Line, read_approval, read_delta, read_pending, read_usage
from unbroken.trajectory.recorded_run import RecordedRun
from unbroken.trajectory.recording import Recording
from unbroken_wires.deltas import AttemptFailed, PartialResponse, UsageReported
from unbroken_wires.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult, Usage
from unbroken_wires.transcript import Transcript, from_json
from unbroken_wires.transcript.saved import read_result
from unbroken_wires.transcript.shorten import characters


def cut_state(recorded: RecordedRun) -> RunState:
    """The state in which the model was asked last: that request is sent again, or its answer is in the recording."""
    messages, background = recorded.messages, recorded.background_calls(interrupted=True)
    state = RunState(
        Transcript(messages),
        used=Used(seconds=recorded.seconds),
        calls=_calls_in(recorded, messages, background),
        verdicts=list(recorded.verdicts),
        question=recorded.question,
        background=background,
        emitted=_emitted(recorded),
    )
    if recorded.counters:
        state.recall(recorded.counters)
    return state


def waiting_state(recorded: RecordedRun) -> RunState | None:
    """The state of the run if it waits, or waited when its recording ended; with what came after that."""
    recording, ending = recorded.recording, _waited(recorded.recording)
    if ending is None:
        return None
    messages = from_json(ending.messages)
    last = messages[-1] if messages else None
    calls = {call.id: call for call in last.calls} if isinstance(last, Assistant) else {}
    background = recorded.background_calls()
    finished = _finished_calls(recording, ending.turn, calls, background)
    if finished and len(finished) == len(calls):  # what follows the last result is not recorded: it is given again
        del finished[_given_again(ending, finished)]
    transcript = Transcript(messages)
    for result in finished.values():
        transcript.answer(result)
    counted: int = recorded.counters.get("calls", 0) if recorded.request is not None else 0
    state = RunState(
        transcript,
        recorded.agent,
        Used(
            ending.rounds,
            ending.requests,
            counted + len(calls) + _calls_inside(recording, ending.turn, finished),
            _used_since(recording, _usage_of(ending), finished),
            ending.seconds,
        ),
        calls=[
            *_calls_in(recorded, messages, background),
            *(
                _record_of(calls[id], result, ending.turn, recorded.ends[id]["seconds"], background)
                for id, result in finished.items()
            ),
        ],
        verdicts=list(recorded.verdicts),
        question=None if recording.requests else recorded.question,
        waiting=Waiting(
            tuple(
                read_pending(call) if call.get("agent") else calls[call["id"]]
                for call in ending.pending
                if call.get("agent") or call["id"] in calls
            ),
            tuple(call["id"] for call in ending.pending if call.get("uncertain")),
            {
                line["call_id"]: read_approval(line)
                for line in recording.of("approval")
                if line["call_id"] in calls and line["decision"] in ("allow", "edit")
            },
            _call_numbers(recording, ending, calls.keys() - finished.keys()),
            _inner_results(recorded, ending, [id for id in calls if id not in finished]),
        ),
        waited=True,
        handoffs=list(handoffs_of(recording)),
        background=background,
        emitted=_emitted(recorded),
    )
    _continue_counting(state, recorded, ending, finished.values())
    return state


def _continue_counting(
    state: RunState, recorded: RecordedRun, ending: RunFinished, given: Iterable[ToolResult]
) -> None:
    """From what was counted when the model was asked last, and what these results have added since."""
    state.continue_counting(recorded.counters)
    for result in given:
        if result.ended_as == "retry":
            state.count_retry(result.name)
    counters = state.counters
    counters.nudge, counters.empty_answers, counters.stop = False, 0, None  # it answered with calls
    counters.attempts, counters.fallback_used = ending.attempts, ending.fallback_used
    counters.tokens = recorded.counters.get("tokens", 0)


def _waited(recording: Recording) -> RunFinished | None:
    """Its last end, if it waits since then."""
    waited = [event for event in recording.events if isinstance(event, RunFinished) and event.stop_reason == "waiting"]
    if not waited or any(line["turn"] > waited[-1].turn for line in recording.of("request")):
        return None
    return waited[-1]


def _given_again(ending: RunFinished, finished: Mapping[str, ToolResult]) -> str:
    """One of the calls that the run waited for: the last that is not in the background."""
    waited = [call["id"] for call in ending.pending]
    last = [id for id, result in finished.items() if id in waited and result.outcome != "running"]
    return (last or [*finished])[-1]


def _emitted(recorded: RecordedRun) -> Emitted:
    counted = [event for event in recorded.recording.events if type(event) in COUNTED_IN_RUN]
    return Emitted(recorded.next_seq, recorded.next_call, counted)


def _finished_calls(
    recording: Recording, turn: int, calls: Mapping[str, ToolCall], background: Sequence[BackgroundCall]
) -> dict[str, ToolResult]:
    """The results, by the id of the call, of those of these calls that have one, in call order. A call in the
    background has its handle."""
    given = _results_as_read(recording, calls)
    ends = {
        event.call_id: event for event in recording.events if isinstance(event, CallFinished) and event.turn == turn
    }
    finished = {id: given.get(id) or _result_of_event(call, ends[id]) for id, call in calls.items() if id in ends}
    for each in background:
        if each.turn == turn and each.call.id in finished:
            finished[each.call.id] = running(each.call, each.handle)
    return finished


def _results_as_read(recording: Recording, calls: Mapping[str, ToolCall]) -> dict[str, ToolResult]:
    """The results of these calls as the model reads them: of one that an approver has edited, with how it ran."""
    edits = {line["call_id"]: line["arguments"] for line in recording.of("approval") if line["decision"] == "edit"}
    given: dict[str, ToolResult] = {}
    for line in recording.of("result"):
        id, result = line["call_id"], read_result(line["result"])
        if id in edits and id in calls and line["key"]:
            result = with_changed_arguments(result, replace(calls[id], arguments=edits[id]))
        given[id] = result
    return given


def _result_of_event(call: ToolCall, event: CallFinished) -> ToolResult:
    """The result of a call that never ran, as its event reported it."""
    return replace(ToolResult.of(call, event.text, error=event.error), ended_as=event.outcome)


def _call_numbers(recording: Recording, ending: RunFinished, waiting: Collection[str]) -> dict[str, int]:
    """The numbers of these calls in their run, and those of calls that wait inside of an agent."""
    written = {
        event.call_id: event.call
        for event in recording.events
        if isinstance(event, CallWritten) and event.turn == ending.turn and event.call_id in waiting
    }
    return written | {call["id"]: call["call"] for call in ending.pending if call.get("agent")}


def _usage_of(ending: RunFinished) -> Usage:
    return read_usage(ending.usage, ending.cost, ending.cache_saving) or NOTHING_USED


def _used_since(recording: Recording, usage: Usage, finished: Collection[str]) -> Usage:
    """The usage of a run that waited, with that of the calls which have ended since."""
    used = usage
    for line in recording.lines:
        if line["line"] == "event" and line["event"] == "run_finished":
            used = usage
        elif line["line"] == "result" and line["call_id"] in finished:
            used += read_usage(line.get("usage"), line.get("cost"), line.get("cache_saving")) or NOTHING_USED
    return used


def _calls_inside(recording: Recording, turn: int, finished: Collection[str]) -> int:
    """The calls of agents that ran as tools in these calls."""
    results = (line for line in recording.of("result") if line["turn"] == turn and line["call_id"] in finished)
    return sum(line.get("inner_calls", 0) for line in results)


def _inner_results(recorded: RecordedRun, ending: RunFinished, open_calls: Sequence[str]) -> dict[str, Result[Any]]:
    """The results of agents that wait inside of these calls, by their ids."""
    if not any(call.get("agent") for call in ending.pending):
        return {}
    found = dict[str, Result[Any]]()
    for id in open_calls:
        inner = recorded.inner.recording(recorded.recording.path, "", ending.turn, id)
        result = waiting_result(inner) if inner is not None else None
        if result is not None:
            found[id] = result
    return found


def _calls_in(
    recorded: RecordedRun, messages: tuple[Message, ...], background: Sequence[BackgroundCall]
) -> list[CallRecord]:
    """The calls of the run that have their results in these messages."""
    found: list[CallRecord] = []
    before = len(recorded.recording.head.get("messages", ()))
    for asked, told in zip(messages[before:], messages[before + 1 :], strict=False):
        if isinstance(asked, Assistant) and isinstance(told, ToolMessage):
            for call, result in zip(asked.calls, told.results, strict=False):
                end: Line = recorded.ends.get(call.id, {})
                found.append(_record_of(call, result, end.get("turn", 0), end.get("seconds", 0.0), background))
    return found


def _record_of(
    call: ToolCall, result: ToolResult, turn: int, seconds: float, background: Sequence[BackgroundCall]
) -> CallRecord:
    """A call that was answered with a handle has its result, if there is one by now."""
    if result.outcome != "running":
        return CallRecord(call, result, turn, seconds)
    for each in background:
        if running(call, each.handle).text == result.text:
            given = result if each.result is None else replace(each.result, call_id=call.id)
            return CallRecord(call, given, each.turn, each.seconds)
    return CallRecord(call, result, 0, 0.0)


def unmasked(state: RunState, saved: Result[Any]) -> None:
    """Gives a waiting run the texts of its saved result, from before secrets were masked."""
    given = {result.call_id: result for result in saved.answered}
    transcript = Transcript(saved.messages)
    for result in state.transcript.answered:
        transcript.answer(given.get(result.call_id, result))
    waiting = state.waiting
    state.transcript, state.question = transcript, saved.question
    waiting.pending, waiting.inner = saved.pending, saved.inner
    waiting.decided = {**waiting.decided, **saved.decided}


def lost_usage(recorded: RecordedRun) -> Usage:
    """What the last request has used, or may have, if its answer was cut off: as reported, or else estimated by its
    characters. An attempt that failed before anything arrived has used nothing."""
    if recorded.request is None or recorded.lost is None:
        return NOTHING_USED
    sent, failed = sum(map(characters, from_json([*recorded.request.messages]))), False
    total, reported, response = NOTHING_USED, None, PartialResponse()
    for line in recorded.lost:
        delta = None if line["line"] == "failed" else read_delta(line, response)
        failed = delta is None or isinstance(delta, AttemptFailed)
        if failed:
            if reported is not None or not response.is_empty:
                total += reported or estimate(sent, response.message)
            reported, response = None, PartialResponse()
        elif isinstance(delta, UsageReported):
            reported = delta.usage if delta.usage.total_tokens else reported
        elif delta is not None:
            response.feed(delta)
    return total if failed else total + (reported or estimate(sent, response.message))


# Results


def handoffs_of(recording: Recording) -> tuple[Taken, ...]:
    """The hand-offs before the last request."""
    states = [line["state"] for line in recording.of("request") if "state" in line]
    return tuple(read_taken((states[-1] if states else recording.head.get("state", {})).get("handoffs")))


def waiting_result(recording: Recording) -> Result[Any] | None:
    """The result of the run if it waits, or waited when its recording ended."""
    state = waiting_state(RecordedRun.of(recording))
    if state is None:
        return None
    return _result(recording, state, Ending("", "waiting", pending=state.waiting.pending), None)


def ended_result(recording: Recording, kind: Output[Any] | None = None) -> Result[Any]:
    """The result of a run that has ended with an answer."""
    ending = recording.ending
    if not isinstance(ending, RunFinished):
        raise UserError(f"{recording.path}: the run has not ended with an answer")
    recorded, messages = RecordedRun.of(recording), from_json(ending.messages)
    background, prices = recorded.background_calls(), limits_of(recording).prices
    usage = _usage_of(ending)
    if ending.cost is None and prices is not None:  # it was recorded before events had a cost
        usage = replace(usage, cost=prices.of(usage))
    emitted = _emitted(recorded)
    emitted.next_call = ending.calls
    state = RunState(
        Transcript(messages),
        recorded.agent,
        Used(ending.rounds, ending.requests, ending.calls, usage, ending.seconds),
        Counters(ending.attempts, ending.fallback_used),
        calls=_calls_in(recorded, messages, background),
        verdicts=list(recorded.verdicts),
        handoffs=list(handoffs_of(recording)),
        background=background,
        emitted=emitted,
    )
    stop = Ending(ending.text, cast("StopReason", ending.stop_reason), cut_off=ending.cut_off)
    return _result(recording, state, stop, kind)


def _result(recording: Recording, state: RunState, ending: Ending, kind: Output[Any] | None) -> Result[Any]:
    structured = recording.settings.get("output") is not None if ending.pending else kind is not None
    output = kind.read_text(ending.text) if kind is not None else None if structured else ending.text
    usage, seconds = state.used.usage, state.used.seconds
    return result_of(
        recording.run, state, ending, usage, seconds, cost=usage.cost, output=output, structured=structured
    )
