"""What has happened in a run by the lines of its recording: one fold, which whoever resumes the run reads, or gives its
result (`agent.recorded_state`).

`take` gets one line after the other, and after each the state is that of a run whose process died there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Self

from unbroken.errors import RunTaken, UserError
from unbroken.events import RunFinished
from unbroken.tools.approval import Allow, Approval, Deny, Edit
from unbroken.tools.caller import fingerprint
from unbroken.tools.handles import BackgroundCall
from unbroken.trajectory.inner_runs import InnerLines
from unbroken.trajectory.line_checks import is_state
from unbroken.trajectory.lines import Line, read_approval, read_usage, read_verdict
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Message, ToolCall, ToolResult, Usage, User
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.saved import read_result


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """The result of a call, the tokens it used itself, how long it took, and how many calls an agent inside made."""

    result: ToolResult
    usage: Usage | None
    seconds: float
    calls: int = 0


class RecordedRun:
    """One run. `RecordedRun.of(recording)` is it as it was at the end of its recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        saved, head = recording.head.get("question"), recording.head
        question = from_json([saved])[0] if saved else None
        self.question = question if isinstance(question, User) else None
        """What was to be asked, if the model had not been asked yet."""
        self.counters = _counters_of(head)
        """What the run had used and noted when the model was asked last."""
        self.request: RecordedRequest | None = None
        """The last one."""
        self.turn = 0
        """That of the last call that was started in the turn of its answer."""
        self.results: dict[str, RecordedResult] = {}
        """The results of calls, by their keys."""
        self.by_id: dict[tuple[int, str], RecordedResult] = {}
        """The same, by their turns and ids."""
        self.begun: Counter[tuple[int, str]] = Counter()
        """How often each call was started, by its turn and its id."""
        self.alike: set[tuple[int, str]] = set()
        """Calls that were started, by their turn, name and arguments."""
        self.started: dict[str, ToolCall] = {}
        """Calls of the last answer that were started, by their ids."""
        self.changed: dict[tuple[int, str], Line] = {}
        """The arguments with which middleware let calls run, by their turns and ids."""
        self.numbers: dict[tuple[int, str], int] = {}
        """The numbers of calls, by their turns and ids; of those with the same id the last."""
        self.started_numbers: set[int] = set()
        self.finished_numbers: set[int] = set()
        self.inner = InnerLines()
        """The runs of agents that ran as tools."""
        self.agents: set[str] = set()
        """The names of the tools that run agents."""
        self.loose: dict[int, ToolCall] = {}
        """The calls of the last answer that were neither dropped nor adopted, by their numbers."""
        self.unfinished: set[tuple[int, str]] = set()
        """Calls of all turns that were started and have no result, by turns and ids: some were in the background."""
        self.uncertain: set[str] = set()
        """Those of the last answer that have no result, and that nobody has allowed to run again, by their ids."""
        self.asked_about: set[str] = set()
        """Those of them that the run has been waiting for since."""
        self.decisions: dict[str, Approval | ToolResult] = {}
        """Approvals for calls of the last answer, and results from the client, by their ids."""
        self.agent = recording.agent_name
        """The agent that answered last."""
        self.verdicts: list[Verdict] = []
        """What was wrong with each incomplete answer."""
        self.ends: dict[str, Line] = {}
        """The last `call_finished` of each id."""
        self.vetoes: dict[int, str] = {}
        """With what a check of a call has ended the run, by the turn of the call."""
        self._requests = iter(recording.requests)
        self._history: list[Line] = head.get("messages", [])
        self._prompt: Line = self._history[-1] if self._history else {}
        self._noted: list[Line] = []
        self._next_history: list[Line] | None = None
        """What the next request is sent with, if the recording notes it."""
        self._arriving: list[Line] = []
        """What has arrived of an answer, and how it failed."""
        self._complete: dict[int, list[Line]] = {}
        """The deltas of answers, by their turns."""
        self._starts: dict[tuple[int, str], float] = {}
        self._replaced = False
        """A check has replaced the prompt."""
        self._written: dict[int, tuple[int, ToolCall]] = {}
        """Turn and call, by number: a call in the background may start and end in a later turn."""
        self._background: dict[int, BackgroundCall] = {}
        """By number."""
        self._arrived: set[str] = set()
        """The handles of those whose results are in the history."""
        self._known: set[str] = set()
        """Those of them that were when the model was asked last."""
        self._ended_with: set[str] = set()
        """Those of them that were when the run ended, or began to wait."""
        self.returned: dict[int, ToolResult] = {}
        """The recorded results of calls, by number: the line may come before the call went to the background."""
        self._waited: list[int] = []
        """The numbers of calls that the run has waited for: those of agents inside have numbers from then on."""
        self._nth: dict[int, int] = {}
        self._started_with: dict[int, dict[str, object]] = {}

    @classmethod
    def of(cls, recording: Recording) -> Self:
        state = cls(recording)
        for line in recording.lines:
            state.take(line)
        return state

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history when the model was asked last."""
        return from_json(self._history)

    @property
    def answer(self) -> list[Line]:
        """The deltas of the last answer, if it was complete."""
        return [] if self.request is None else self._complete.get(self.request.turn, [])

    @property
    def lost(self) -> list[Line] | None:
        """What had arrived of it otherwise: it has to be paid, too."""
        return None if self.request is None or self.answer else self._arriving

    @cached_property
    def seconds(self) -> float:
        """How long it was active, without the time between crash and resume."""
        total = began = last = 0.0
        for line in self.recording.lines:
            if line["line"] == "resumed":
                total, began = total + last - began, line["at"]
                last = max(line["at"], began)
            else:
                last = max(line.get("at", 0.0), last)
        return round(total + last - began, 9)

    @property
    def next_seq(self) -> int:
        """The number of its next event."""
        return max((event.seq for event in self.recording.events), default=-1) + 1

    @property
    def next_call(self) -> int:
        """The number of its next call."""
        counted: Line = self.recording.head.get("state", {})
        numbers = [*self._written, *self._waited]
        return max(numbers, default=counted.get("next_call", 0) - 1) + 1

    def number_of(self, call: ToolCall, turn: int) -> int | None:
        """The number that this call of the turn had. An attempt that broke off may have used its id for another one."""
        number = self.numbers.get((turn, call.id))
        if number is None or self.recording.masked:
            return number
        return number if fingerprint(self._written[number][1]) == fingerprint(call) else None

    def background_calls(self, *, interrupted: bool = False) -> tuple[BackgroundCall, ...]:
        """In the order of their calls.

        `interrupted`: as they were when the model was asked last. The calls of its answer are left out, because the
        resumed run runs that round again; and a call that was cancelled with its process has no result."""
        calls = sorted(self._background.values(), key=lambda call: call.place)
        if not interrupted:
            return tuple(replace(call, delivered=call.handle in self._ended_with) for call in calls)
        turn = self.request.turn if self.request is not None else 0
        return tuple(
            replace(call, delivered=call.handle in self._known, result=None if self._was_cut(call) else call.result)
            for call in calls
            if call.turn != turn
        )

    def _was_cut(self, call: BackgroundCall) -> bool:
        """Was it cancelled when its run stopped, and not before?"""
        cancelled = call.result is not None and call.result.outcome == "cancelled"
        return cancelled and call.number not in self.returned and call.handle not in self._known

    # The lines

    def take(self, line: Line) -> None:
        match line["line"]:
            case "history":
                self._noted = self._next_history = [*self._noted[: line["keep"]], *line["messages"]]
            case "request":
                self._take_request(line)
            case "delta":
                self._arriving.append(line)
                if line["delta"] in ("ended", "attempt_failed"):
                    self._take_verdict(line)
            case "failed":
                self._arriving = [*self._arriving, line]
            case "event":
                self._take_event(line)
            case "result":
                self._take_result(line)
            case "tools":
                self.agents |= {tool["name"] for tool in line["tools"] if tool.get("role") == "agent"}
            case "inner" | "waits":
                self.inner.take(line)
            case "approval" if line["decision"] != "wait":
                self._take_decision(line["call_id"], read_approval(line))
            case _:
                pass

    def _take_verdict(self, line: Line) -> None:
        if line["delta"] == "ended" and line["verdict"]["kind"] == "whole":
            self._complete[line["turn"]] = self._arriving
        else:
            self.verdicts.append(replace(read_verdict(line["verdict"]), turn=line["turn"]))

    def _take_request(self, line: Line) -> None:
        before, self.request = self.request, next(self._requests)
        self.counters = line.get("state", {})
        self._known = set(self._arrived)
        sent = self.request.messages
        is_system = bool(sent) and sent[0].get("role") == "system"
        noted = self._next_history
        self._history = noted if noted is not None else list(sent[1:] if is_system else sent)
        if self._replaced and self.request.turn == 0:  # it is checked again
            self._history = [*self._history[:-1], self.recording.head.get("question") or self._prompt]
        self._next_history, self._arriving, self.question = None, [], None
        if before is None or before.turn != self.request.turn:
            self.decisions, self.started, self.loose = {}, {}, {}
            self.uncertain, self.asked_about = set(), set()

    def _take_event(self, line: Line) -> None:
        match line["event"]:
            case "tool_calls_detected":
                self._complete.setdefault(line["turn"], self._arriving)  # cut, and its complete calls ran
                self._nth |= _count_identical(line["calls"])
            case "call_written":
                call = ToolCall(line["call_id"], line["name"], line["arguments"])
                self.numbers[line["turn"], call.id] = line["call"]
                self._written[line["call"]] = line["turn"], call
                self.loose[line["call"]] = call
            case "call_adopted":
                self.loose.pop(line["adopted"], None)
                self._background.pop(line["adopted"], None)
            case "call_dropped":
                self.loose.pop(line["call"], None)
                self._background.pop(line["call"], None)
            case "call_started":
                self._take_start(line)
            case "call_changed":
                self.changed[self._turn_of(line), line["call_id"]] = line["arguments"]
            case "call_backgrounded":
                self._go_to_background(line["call"], line["handle"])
            case "call_finished":
                self._take_end(line)
            case "result_arrived":
                self._arrived.add(line["handle"])
            case "checked" if line["value"] == "call":
                self.vetoes[line["turn"]] = line["text"]
            case "checked" if line["value"] == "input" and line["outcome"] == "replaced":
                self._replaced = True
            case "agent_changed":
                self.agent = line["agent"]
            case "run_finished":
                self._ended_with = set(self._arrived)
                self.asked_about = {call["id"] for call in line["pending"] if call.get("uncertain")}
                self._waited += [call["call"] for call in line["pending"] if isinstance(call.get("call"), int)]
            case _:
                pass

    def _take_start(self, line: Line) -> None:
        call = ToolCall(line["call_id"], line["name"], line["arguments"])
        turn = self._turn_of(line)
        self._started_with[line["call"]] = line["arguments"]
        self.started_numbers.add(line["call"])
        self.begun[turn, call.id] += 1
        self.unfinished.add((turn, call.id))
        self._starts.setdefault((turn, call.id), line["time"])
        if turn != line["turn"]:
            return
        self.alike.add((turn, fingerprint(call)))
        self.started[call.id], self.turn = call, line["turn"]
        self.uncertain.add(call.id)
        self.asked_about.discard(call.id)

    def _turn_of(self, line: Line) -> int:
        """The turn of the call that a line is about."""
        number: int = line.get("call", -1)
        return self._written[number][0] if number in self._written else line["turn"]

    def _take_result(self, line: Line) -> None:
        id, result, number = line["call_id"], read_result(line["result"]), line.get("call")
        turn = self._turn_of(line)
        if number in self._written:
            self.returned[number] = result
            if number in self._background:
                self._background[number] = replace(self._background[number], result=result)
        self.unfinished.discard((turn, id))
        if turn == line["turn"]:
            self.uncertain.discard(id)
        if not line["key"]:  # the client's own
            self.decisions[id] = result
            return
        took = self.recording.time_at(line["at"]) - self._starts.get((turn, id), inf)
        usage = read_usage(line.get("usage"), line.get("cost"), line.get("cache_saving"))
        seconds = round(max(took, 0.0), 6)
        given = RecordedResult(result, usage, seconds, line.get("inner_calls", 0))
        if "veto" in line:
            self.vetoes[turn] = line["veto"]
        self.results.setdefault(line["key"], given)  # the first one ran; another one only repeats it
        self.by_id.setdefault((turn, id), given)

    def _take_decision(self, id: str, decision: Approval) -> None:
        self.decisions[id] = combine(self.decisions.get(id), decision)
        if id in self.asked_about and not isinstance(decision, Deny):
            self.uncertain.discard(id)  # somebody has decided that it may run

    def _go_to_background(self, number: int, handle: str) -> None:
        turn, call = self._written[number]
        for known in self._background.values():
            if known.handle == handle and known.turn == turn:  # it shares the execution of that call
                shared_by = (*known.shared_by, (number, call))
                self._background[known.number] = replace(known, shared_by=shared_by)
                return
        self._background[number] = BackgroundCall(
            handle,
            call,
            turn,
            number,
            self.returned.get(number),
            nth=self._nth.get(number, 1),
            arguments=self._started_with.get(number),
        )

    def _take_end(self, line: Line) -> None:
        self.finished_numbers.add(line["call"])
        self.ends[line["call_id"]] = line
        call = self._background.get(line["call"])
        if call is not None:
            told = replace(ToolResult.of(call.call, line["text"], error=line["error"]), ended_as=line["outcome"])
            result = self.returned.get(line["call"]) or told
            self._background[line["call"]] = replace(call, seconds=line["seconds"], result=result)


def refuse_ended(recording: Recording) -> None:
    """Raises `RunTaken` for a run that has ended, so that nothing can be resumed, `UserError` if its recording is
    damaged."""
    ending = recording.ending
    if isinstance(ending, RunFinished) and ending.stop_reason != "waiting":
        raise RunTaken(
            f"{recording.path}: run `{recording.run}` has ended ({ending.stop_reason}): nothing is left to resume, and "
            f"its answer is in the recording",
            recording.run,
        )
    if recording.damaged:
        raise UserError(
            f"{recording.path} is damaged and cannot be resumed: line {recording.damaged} cannot be read, and what it "
            f"reported could be done twice"
        )
    if not all(is_state(line.get("state", {})) for line in recording.of("request")):
        raise UserError(f"{recording.path} is damaged and cannot be resumed: its state is not readable")


def combine(before: Approval | ToolResult | None, now: Approval | ToolResult) -> Approval | ToolResult:
    """Combines two decisions about a call: allowing a call that was edited keeps the edit."""
    return before if isinstance(before, Edit) and isinstance(now, Allow) else now


def _counters_of(head: Line) -> Line:
    """For a run that was resumed before its recording began: it has calls to finish before its first request."""
    counted: Line = head.get("state", {})
    if not counted:
        return {}
    return {**counted, "requests": counted["requests"] + 1, "attempts": counted["attempts"] + 1}


def _count_identical(calls: Iterable[Line]) -> dict[int, int]:
    """By number: the number of a call among the identical calls of its message."""
    made: dict[str, int] = {}
    found: dict[int, int] = {}
    for each in calls:
        mark = fingerprint(ToolCall(each["id"], each["name"], each["arguments"]))
        found[each["call"]] = made[mark] = made.get(mark, 0) + 1
    return found
