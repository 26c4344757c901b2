"""The background calls of a recorded run: what a resumed run continues, and what the result of a run reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unbroken.tools.caller import fingerprint
from unbroken.tools.handles import BackgroundCall
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken_wires.messages import ToolCall, ToolResult
from unbroken_wires.transcript.saved import read_result


def background_calls(recording: Recording, *, interrupted: bool = False) -> tuple[BackgroundCall, ...]:
    """In the order of their calls.

    `interrupted`: as they were when the model was asked last. The calls of its answer are left out, because the resumed
    run runs that round again; and a call that was cancelled with its process has no result."""
    reading = _Reading()
    for line in recording.lines:
        reading.take(line)
    calls = sorted(reading.calls.values(), key=lambda call: call.place)
    if not interrupted:
        return tuple(replace(call, delivered=call.handle in reading.arrived) for call in calls)
    return tuple(
        replace(call, delivered=call.handle in reading.known, result=None if _is_open(call, reading) else call.result)
        for call in calls
        if call.turn != reading.turn
    )


class _Reading:
    def __init__(self) -> None:
        self.turn = 0
        """That of the last request."""
        self.calls: dict[int, BackgroundCall] = {}
        """By number."""
        self.arrived: set[str] = set()
        """The handles of those whose results are in the history."""
        self.known: set[str] = set()
        """Those of them that were when the model was asked last."""
        self.returned: dict[int, ToolResult] = {}
        """The recorded results of calls, by number: the line may come before the call went to the background."""
        self._written: dict[int, tuple[int, ToolCall]] = {}
        """Turn and call, by number."""
        self._nth: dict[int, int] = {}
        self._started: dict[int, dict[str, object]] = {}

    def take(self, line: Line) -> None:
        match line["line"]:
            case "request":
                self.turn, self.known = line["turn"], set(self.arrived)
            case "result" if line.get("call") in self._written:
                number, result = line["call"], read_result(line["result"])
                self.returned[number] = result
                if number in self.calls:
                    self.calls[number] = replace(self.calls[number], result=result)
            case "event":
                self._take_event(line)
            case _:
                pass

    def _take_event(self, line: Line) -> None:
        match line["event"]:
            case "call_written":
                call = ToolCall(line["call_id"], line["name"], line["arguments"])
                self._written[line["call"]] = line["turn"], call
            case "tool_calls_detected":
                self._nth |= _count_identical(line["calls"])
            case "call_started":
                self._started[line["call"]] = line["arguments"]
            case "call_backgrounded":
                self._go_to_background(line["call"], line["handle"])
            case "call_finished":
                self._end(line)
            case "result_arrived":
                self.arrived.add(line["handle"])
            case "call_adopted":
                self.calls.pop(line["adopted"], None)
            case "call_dropped":
                self.calls.pop(line["call"], None)
            case _:
                pass

    def _go_to_background(self, number: int, handle: str) -> None:
        turn, call = self._written[number]
        for known in self.calls.values():
            if known.handle == handle and known.turn == turn:  # it shares the execution of that call
                shared_by = (*known.shared_by, (number, call))
                self.calls[known.number] = replace(known, shared_by=shared_by)
                return
        self.calls[number] = BackgroundCall(
            handle,
            call,
            turn,
            number,
            self.returned.get(number),
            nth=self._nth.get(number, 1),
            arguments=self._started.get(number),
        )

    def _end(self, line: Line) -> None:
        call = self.calls.get(line["call"])
        if call is not None:
            told = replace(ToolResult.of(call.call, line["text"], error=line["error"]), ended_as=line["outcome"])
            result = self.returned.get(line["call"]) or told
            self.calls[line["call"]] = replace(call, seconds=line["seconds"], result=result)


def _is_open(call: BackgroundCall, reading: _Reading) -> bool:
    """Was it cancelled when its run stopped, and not before?"""
    cancelled = call.result is not None and call.result.outcome == "cancelled"
    return cancelled and call.number not in reading.returned and call.handle not in reading.known


def _count_identical(calls: Iterable[Line]) -> dict[int, int]:
    """By number: the number of a call among the identical calls of its message."""
    made: dict[str, int] = {}
    found: dict[int, int] = {}
    for each in calls:
        mark = fingerprint(ToolCall(each["id"], each["name"], each["arguments"]))
        found[each["call"]] = made[mark] = made.get(mark, 0) + 1
    return found
