"""A recorded run that waits for somebody, as the result that it was: `agent.resume` goes on with it."""

from __future__ import annotations

from unbroken.agent.result import Result
from unbroken.errors import UserError
from unbroken.events import CallFinished, RunFinished
from unbroken.messages import Assistant, ToolResult, Usage
from unbroken.trajectory.lines import Line, read_approval
from unbroken.trajectory.recording import Recording
from unbroken.transcript import from_json
from unbroken.transcript.saved import read_result


def waiting_result(recording: Recording) -> Result:
    """What a recorded run came to that waits for somebody."""
    ending = recording.ending
    if not isinstance(ending, RunFinished) or ending.stop_reason != "waiting":
        why = ending.stop_reason if isinstance(ending, RunFinished) else "it did not end"
        raise UserError(f"{recording.path}: the run does not wait for anybody ({why}); go on with history=")
    messages = from_json(ending.messages)
    last = messages[-1]
    calls = {call.id: call for call in last.calls} if isinstance(last, Assistant) else {}
    given = {line["call_id"]: read_result(line["result"]) for line in recording.of("result")}
    answered = tuple(
        given.get(event.call_id) or ToolResult.of(calls[event.call_id], event.text, error=event.error)
        for event in recording.events
        if isinstance(event, CallFinished) and event.call_id in calls and event.turn == ending.turn
    )
    waiting = {call["id"] for call in ending.pending}
    states: list[Line] = [line["state"] for line in recording.of("request") if "state" in line]
    return Result(
        text=ending.text,
        stop_reason="waiting",
        messages=messages,
        rounds=ending.rounds,
        requests=ending.requests,
        usage=Usage(**ending.usage),
        seconds=ending.seconds,
        pending=tuple(call for call in calls.values() if call.id in waiting),
        answered=answered,
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
    )
