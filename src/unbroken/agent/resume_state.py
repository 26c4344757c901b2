"""What a recording knows of a run that goes on: the result of one that waits, and the calls that were made before."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

from unbroken.agent.result import Result
from unbroken.agent.run import CallRecord
from unbroken.errors import UserError
from unbroken.events import CallFinished, CallWritten, RunFinished
from unbroken.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult, Usage, User
from unbroken.middleware import Middleware
from unbroken.trajectory.lines import Line, read_approval, read_usage, read_verdict
from unbroken.trajectory.recorder import Recorder, already_resumed
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.transcript import from_json
from unbroken.transcript.saved import read_result
from unbroken.verdicts import Verdict


@contextmanager
def reading(recording: Recording) -> Generator[None]:
    """Whatever stands in it that no recorder has written becomes an error of ours. What has no agent is refused."""
    if "schedule" not in recording.settings:
        raise UserError(f"{recording.path} has no agent that could go on: it was made by a gateway, or by a test")
    try:
        yield
    except UserError as error:
        told = str(error)
        raise (error if str(recording.path) in told else UserError(f"{recording.path}: {told}")) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{recording.path} is damaged and cannot be played or gone on with ({what})") from error


def find_recording(middleware: Iterable[Middleware], result: Result) -> Recording | None:
    """The recording of a run whose saved result is resumed. `RunTaken` if the run has moved on since."""
    files = [file for each in middleware for file in each.recordings_of(result.run)] if result.run else []
    for file in reversed(files):
        recording = read_recording(file)
        with reading(recording):
            waiting = waiting_result(recording)
        if waiting is not None and _waits_for(waiting) == _waits_for(result) and not _has_ended(recording):
            return recording
    if files:
        raise already_resumed(files[-1], result.run)
    return None


def continued(
    sinks: Sequence[Middleware], middleware: Sequence[Middleware], recording: Recording, continuation: Middleware
) -> tuple[Middleware, ...]:
    """The recorder appends to the recording. Right behind it, `continuation` gives the run what was recorded of it."""
    recorder = next((each for each in (*middleware, *sinks) if each.records), None) or Recorder(recording.path.parent)
    resumed = recorder.resume(recording.path, recording.run, recording.size)
    listening = [each for each in sinks if not each.records]
    return (*listening, *replace_recorder(middleware, resumed, continuation))


def replace_recorder(middleware: Sequence[Middleware], *instead: Middleware) -> tuple[Middleware, ...]:
    """With these in the place of the first that records, or outermost if none does."""
    others = [each for each in middleware if not each.records]
    place = next((place for place, each in enumerate(middleware) if each.records), 0)
    return (*others[:place], *instead, *others[place:])


def _waits_for(result: Result) -> tuple[int, set[str]]:
    return result.requests, {call.id for call in result.pending}


def _has_ended(recording: Recording) -> bool:
    return isinstance(recording.ending, RunFinished) and recording.ending.stop_reason != "waiting"


def waiting_result(recording: Recording) -> Result | None:
    """The run as it waited for somebody, if it does, or did when it was last heard of; with what came after that."""
    waited = [event for event in recording.events if isinstance(event, RunFinished) and event.stop_reason == "waiting"]
    if not waited or any(line["turn"] > waited[-1].turn for line in recording.of("request")):
        return None
    ending = waited[-1]
    messages = from_json(ending.messages)
    last = messages[-1] if messages else None
    calls = {call.id: call for call in last.calls} if isinstance(last, Assistant) else {}
    given = {line["call_id"]: read_result(line["result"]) for line in recording.of("result")}
    finished = {
        event.call_id: given.get(event.call_id) or _told(calls[event.call_id], event)
        for event in recording.events
        if isinstance(event, CallFinished) and event.call_id in calls and event.turn == ending.turn
    }
    seconds = {event.call_id: event.seconds for event in recording.events if isinstance(event, CallFinished)}
    waiting = {call["id"] for call in ending.pending}
    states: list[Line] = [line["state"] for line in recording.of("request") if "state" in line]
    return Result(
        text=ending.text,
        stop_reason="waiting",
        messages=messages,
        calls=(
            *records_of(recording, messages),
            *(CallRecord(calls[id], result, ending.turn, seconds[id]) for id, result in finished.items()),
        ),
        rounds=ending.rounds,
        requests=ending.requests,
        usage=read_usage(ending.usage) or Usage(),
        seconds=ending.seconds,
        pending=tuple(call for call in calls.values() if call.id in waiting),
        uncertain=tuple(call["id"] for call in ending.pending if call.get("uncertain")),
        answered=tuple(finished.values()),
        decided={
            line["call_id"]: read_approval(line)
            for line in recording.of("approval")
            if line["call_id"] in calls and line["decision"] in ("allow", "edit")
        },
        structured=recording.settings.get("output") is not None,
        run=recording.run,
        call_count=(states[-1]["calls"] if states else 0) + len(calls),
        attempts=ending.attempts,
        fallback_used=ending.fallback_used,
        verdicts=verdicts_of(recording),
        question=_question(recording),
        numbers={
            event.call_id: event.call
            for event in recording.events
            if isinstance(event, CallWritten) and event.turn == ending.turn and event.call_id in calls
        },
    )


def _told(call: ToolCall, event: CallFinished) -> ToolResult:
    """The result of a call that never ran, as its event reported it."""
    return replace(ToolResult.of(call, event.text, error=event.error), ended_as=event.outcome)


def unmasked(recorded: Result, saved: Result) -> Result:
    """A run that waits, with what its recording knows of it, in the words of its saved result."""
    given = {result.call_id: result for result in saved.answered}
    return replace(
        recorded,
        messages=saved.messages,
        pending=saved.pending,
        answered=tuple(given.get(result.call_id, result) for result in recorded.answered),
        decided={**recorded.decided, **saved.decided},
        question=saved.question,
    )


def records_of(recording: Recording, messages: tuple[Message, ...]) -> tuple[CallRecord, ...]:
    """The calls of the run that have their results in these messages."""
    ends = {event.call_id: event for event in recording.events if isinstance(event, CallFinished)}
    found: list[CallRecord] = []
    before = len(recording.head.get("messages", ()))
    for asked, told in zip(messages[before:], messages[before + 1 :], strict=False):
        if isinstance(asked, Assistant) and isinstance(told, ToolMessage):
            for call, result in zip(asked.calls, told.results, strict=False):
                end = ends.get(call.id)
                found.append(CallRecord(call, result, end.turn if end else 0, end.seconds if end else 0.0))
    return tuple(found)


def verdicts_of(recording: Recording) -> tuple[Verdict, ...]:
    """What was wrong with each answer that was not whole."""
    return tuple(
        replace(read_verdict(line["verdict"]), turn=line["turn"])
        for line in recording.of("delta")
        if line["delta"] == "attempt_failed" or (line["delta"] == "ended" and line["verdict"]["kind"] != "whole")
    )


def _question(recording: Recording) -> User | None:
    """What is still to be asked, once calls have run in which the history ended."""
    saved = recording.head.get("question")
    if not saved or recording.requests:
        return None
    message = from_json([saved])[0]
    return message if isinstance(message, User) else None
