"""Results that are read from a recording: of a run that waits, or that has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from unbroken.agent.handoffs import Taken, read_taken
from unbroken.agent.limits import NOTHING_USED, StopReason, limits_of
from unbroken.agent.output import Output
from unbroken.agent.result import Result
from unbroken.agent.run import CallRecord
from unbroken.errors import UserError
from unbroken.events import AgentChanged, CallFinished, CallWritten, RunFinished
from unbroken.tools.caller import with_changed_arguments
from unbroken.tools.handles import BackgroundCall, running
from unbroken.trajectory.counting import COUNTED_IN_RUN
from unbroken.trajectory.lines import Line, read_approval, read_pending, read_usage, read_verdict
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.run_state import RunState
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult, Usage, User
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.saved import read_result


def waiting_result(recording: Recording, state: RunState | None = None) -> Result[Any] | None:
    """The result of the run if it waits, or waited when its recording ended; with what came after that. `state`: its
    state, if that is known already."""
    waited = [event for event in recording.events if isinstance(event, RunFinished) and event.stop_reason == "waiting"]
    if not waited or any(line["turn"] > waited[-1].turn for line in recording.of("request")):
        return None
    ending = waited[-1]
    messages = from_json(ending.messages)
    last = messages[-1] if messages else None
    calls = {call.id: call for call in last.calls} if isinstance(last, Assistant) else {}
    state = state or RunState.of(recording)
    background = state.background_calls()
    finished = _finished_calls(recording, ending.turn, calls, background)
    seconds = {event.call_id: event.seconds for event in recording.events if isinstance(event, CallFinished)}
    states: list[Line] = [line["state"] for line in recording.of("request") if "state" in line]
    counted: int = states[-1]["calls"] if states else 0
    structured = recording.settings.get("output") is not None
    return Result(
        text=ending.text,
        stop_reason="waiting",
        messages=messages,
        calls=(
            *records_of(recording, messages, background),
            *(CallRecord(calls[id], result, ending.turn, seconds[id]) for id, result in finished.items()),
        ),
        rounds=ending.rounds,
        requests=ending.requests,
        usage=(used := _used_since(recording, _usage_of(ending), finished)),
        cost=used.cost,
        seconds=ending.seconds,
        pending=tuple(
            read_pending(call) if call.get("agent") else calls[call["id"]]
            for call in ending.pending
            if call.get("agent") or call["id"] in calls
        ),
        uncertain=tuple(call["id"] for call in ending.pending if call.get("uncertain")),
        answered=tuple(finished.values()),
        decided={
            line["call_id"]: read_approval(line)
            for line in recording.of("approval")
            if line["call_id"] in calls and line["decision"] in ("allow", "edit")
        },
        output=None if structured else ending.text,
        structured=structured,
        run=recording.run,
        call_count=counted + len(calls) + _calls_inside(recording, ending.turn, finished),
        attempts=ending.attempts,
        fallback_used=ending.fallback_used,
        verdicts=verdicts_of(recording),
        question=_question(recording),
        background=background,
        numbers=_call_numbers(recording, ending, calls),
        agent=_agent_of(recording),
        handoffs=handoffs_of(recording),
        inner=_inner_results(state, ending, [id for id in calls if id not in finished]),
    )


def _finished_calls(
    recording: Recording, turn: int, calls: Mapping[str, ToolCall], background: Sequence[BackgroundCall]
) -> dict[str, ToolResult]:
    """The results, by the id of the call, of those of these calls that have one. A call in the background has its
    handle."""
    given = _results_as_read(recording, calls)
    finished = {
        event.call_id: given.get(event.call_id) or _result_of_event(calls[event.call_id], event)
        for event in recording.events
        if isinstance(event, CallFinished) and event.call_id in calls and event.turn == turn
    }
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


def _call_numbers(recording: Recording, ending: RunFinished, calls: Collection[str]) -> dict[str, int]:
    """The numbers of these calls in their run, and those of calls that wait inside of an agent."""
    written = {
        event.call_id: event.call
        for event in recording.events
        if isinstance(event, CallWritten) and event.turn == ending.turn and event.call_id in calls
    }
    return written | {call["id"]: call["call"] for call in ending.pending if call.get("agent")}


def handoffs_of(recording: Recording) -> tuple[Taken, ...]:
    """The hand-offs before the last request."""
    states = [line["state"] for line in recording.of("request") if "state" in line]
    return read_taken((states[-1] if states else recording.head.get("state", {})).get("handoffs"))


def _agent_of(recording: Recording) -> str:
    """The agent that answered last."""
    changed = [event.agent for event in recording.events if isinstance(event, AgentChanged)]
    return changed[-1] if changed else recording.agent_name


def _usage_of(ending: RunFinished) -> Usage:
    return read_usage(ending.usage, ending.cost, ending.cache_saving) or Usage()


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


def _inner_results(state: RunState, ending: RunFinished, open_calls: Sequence[str]) -> dict[str, Result[Any]]:
    """The results of agents that wait inside of these calls, by their ids."""
    if not any(call.get("agent") for call in ending.pending):
        return {}
    found = dict[str, Result[Any]]()
    for id in open_calls:
        inner = state.inner.recording(state.recording.path, "", ending.turn, id)
        result = waiting_result(inner) if inner is not None else None
        if result is not None:
            found[id] = result
    return found


def ended_result(recording: Recording, output: Output[Any] | None = None) -> Result[Any]:
    """The result of a run that has ended with an answer, from its recording."""
    ending = recording.ending
    if not isinstance(ending, RunFinished):
        raise UserError(f"{recording.path}: the run has not ended with an answer")
    messages, background = from_json(ending.messages), RunState.of(recording).background_calls()
    prices = limits_of(recording).prices
    usage = _usage_of(ending)
    if ending.cost is None and prices is not None:  # it was recorded before events had a cost
        usage = replace(usage, cost=prices.of(usage))
    return Result(
        text=ending.text,
        stop_reason=cast("StopReason", ending.stop_reason),
        messages=messages,
        calls=records_of(recording, messages, background),
        rounds=ending.rounds,
        requests=ending.requests,
        usage=usage,
        cost=usage.cost,
        seconds=ending.seconds,
        output=output.read_text(ending.text) if output is not None else ending.text,
        structured=output is not None,
        cut_off=ending.cut_off,
        run=recording.run,
        call_count=ending.calls,
        attempts=ending.attempts,
        fallback_used=ending.fallback_used,
        verdicts=verdicts_of(recording),
        next_call=ending.calls,
        agent=_agent_of(recording),
        handoffs=handoffs_of(recording),
        background=background,
        events=tuple(event for event in recording.events if type(event) in COUNTED_IN_RUN),
    )


def _result_of_event(call: ToolCall, event: CallFinished) -> ToolResult:
    """The result of a call that never ran, as its event reported it."""
    return replace(ToolResult.of(call, event.text, error=event.error), ended_as=event.outcome)


def unmasked(recorded: Result[Any], saved: Result[Any]) -> Result[Any]:
    """A waiting run with everything in its recording, and with the unmasked texts of its saved result."""
    given = {result.call_id: result for result in saved.answered}
    return replace(
        recorded,
        messages=saved.messages,
        pending=saved.pending,
        answered=tuple(given.get(result.call_id, result) for result in recorded.answered),
        decided={**recorded.decided, **saved.decided},
        inner=saved.inner,
        question=saved.question,
    )


def records_of(
    recording: Recording, messages: tuple[Message, ...], background: Sequence[BackgroundCall]
) -> tuple[CallRecord, ...]:
    """The calls of the run that have their results in these messages."""
    ends = {event.call_id: event for event in recording.events if isinstance(event, CallFinished)}
    found: list[CallRecord] = []
    before = len(recording.head.get("messages", ()))
    for asked, told in zip(messages[before:], messages[before + 1 :], strict=False):
        if isinstance(asked, Assistant) and isinstance(told, ToolMessage):
            for call, result in zip(asked.calls, told.results, strict=False):
                end = ends.get(call.id)
                if result.outcome == "running":
                    found.append(_background_record(call, result, background))
                else:
                    found.append(CallRecord(call, result, end.turn if end else 0, end.seconds if end else 0.0))
    return tuple(found)


def _background_record(call: ToolCall, handle: ToolResult, known: Sequence[BackgroundCall]) -> CallRecord:
    """A call that was answered with a handle, with its result if it has one by now."""
    for each in known:
        if running(call, each.handle).text == handle.text:
            result = handle if each.result is None else replace(each.result, call_id=call.id)
            return CallRecord(call, result, each.turn, each.seconds)
    return CallRecord(call, handle, 0, 0.0)


def verdicts_of(recording: Recording) -> tuple[Verdict, ...]:
    """What was wrong with each incomplete answer."""
    return tuple(
        replace(read_verdict(line["verdict"]), turn=line["turn"])
        for line in recording.of("delta")
        if line["delta"] == "attempt_failed" or (line["delta"] == "ended" and line["verdict"]["kind"] != "whole")
    )


def _question(recording: Recording) -> User | None:
    """The prompt that follows the open calls of a given history."""
    saved = recording.head.get("question")
    if not saved or recording.requests:
        return None
    message = from_json([saved])[0]
    return message if isinstance(message, User) else None
