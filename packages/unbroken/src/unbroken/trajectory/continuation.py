"""Resumes a run from its recording: finds what was recorded before the run stopped, and returns it to the resumed run.

The last request is answered from the recording if its answer was complete. Calls that had finished get their recorded
results, by their idempotency keys. Nobody knows whether calls that had started and have no result took effect: their
tools decide what happens to them (`after_crash`). An approval holds for exactly that call. From there on the model and
the tools are asked.

Nothing runs with arguments that were masked when they were recorded: the model is asked to make such a call again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, cast

from unbroken.errors import RunTaken, UserError, Vetoed
from unbroken.events import ReasoningAdded, ReasoningReplaced, RunFinished, TextAdded, TextReplaced
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.models.secrets import MASK
from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Wait, ask, settle, unknown
from unbroken.tools.caller import Caller, Prepared, failure, fingerprint, not_executed
from unbroken.tools.context import CallContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.inner_runs import InnerLines
from unbroken.trajectory.line_checks import is_state
from unbroken.trajectory.lines import Line, encode, read_approval, read_delta, read_usage
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.trajectory.replay import compare_requests
from unbroken_wires.deltas import Delta, PartialResponse, Restarted
from unbroken_wires.messages import Message, Request, ToolCall, ToolResult, Usage, User
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.saved import read_result

LOG = logging.getLogger("unbroken.trajectory")

MASKED = "not executed: its arguments were masked when the run was recorded; make the call again"


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """The result of a call, the tokens it used itself, how long it took, and how many calls an agent inside made."""

    result: ToolResult
    usage: Usage | None
    seconds: float
    calls: int = 0


@dataclass(slots=True)
class Interrupted:
    """Where a run was interrupted."""

    recording: Recording
    messages: tuple[Message, ...]
    """The history when the model was asked last."""
    question: User | None
    """What was to be asked, if the model had not been asked yet."""
    state: Line
    """What the run had used and noted by then."""
    seconds: float
    """How long it had been active."""
    next_seq: int
    next_call: int
    request: RecordedRequest | None = None
    answer: list[Line] = field(default_factory=list[Line])
    """The deltas of the answer, if it was complete."""
    lost: list[Line] | None = None
    """What had arrived of it otherwise: it has to be paid, too."""
    results: dict[str, RecordedResult] = field(default_factory=dict[str, "RecordedResult"])
    """The results of calls, by their keys."""
    by_id: dict[tuple[int, str], RecordedResult] = field(default_factory=dict[tuple[int, str], "RecordedResult"])
    """The same, by their turns and ids."""
    begun: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    """How often each call was started, by its turn and its id."""
    alike: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that were started, by their turn, name and arguments."""
    started: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    """Calls of the last answer that were started, by their ids."""
    turn: int = 0
    """Theirs."""
    changed: dict[tuple[int, str], Line] = field(default_factory=dict[tuple[int, str], Line])
    """The arguments with which middleware let calls run, by their turns and ids."""
    numbers: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """The numbers of calls, by their turns and ids; of those with the same id the last."""
    started_numbers: set[int] = field(default_factory=set[int])
    inner: InnerLines = field(default_factory=InnerLines)
    """The runs of agents that ran as tools."""
    agents: set[str] = field(default_factory=set[str])
    """The names of the tools that run agents."""
    loose: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    """The calls of the last answer that were neither dropped nor adopted, by their numbers."""
    unfinished: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls of all turns that were started and have no result, by their turns and ids: some were in the background."""
    uncertain: set[str] = field(default_factory=set[str])
    """Those of them that have no result, and that nobody has allowed to run again."""
    asked_about: set[str] = field(default_factory=set[str])
    """Those of them that the run has been waiting for since."""
    decisions: dict[str, Approval | ToolResult] = field(default_factory=dict[str, "Approval | ToolResult"])
    """Approvals for calls of the last answer, and results from the client, by their ids."""
    vetoes: dict[int, str] = field(default_factory=dict[int, str])
    """With what a check of a call has ended the run, by the turn of the call."""


def find_interruption(recording: Recording) -> Interrupted:
    """Raises `RunTaken` for a run that has ended."""
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
    saved = recording.head.get("question")
    question = from_json([saved])[0] if saved else None
    found = Interrupted(
        recording,
        (),
        question if isinstance(question, User) else None,
        _state_of(recording),
        _seconds(recording),
        max((event.seq for event in recording.events), default=-1) + 1,
        _next_call(recording),
    )
    reading = _Reading(recording, found)
    for line in recording.lines:
        reading.take(line)
    found.messages = from_json(reading.history)
    if found.request is not None:
        found.answer = reading.complete.get(found.request.turn, [])
        found.lost = None if found.answer else reading.arriving
    return found


class _Reading:
    """Reads the lines of a recording in order, and notes in `found` what they say about its last turn."""

    def __init__(self, recording: Recording, found: Interrupted) -> None:
        self._recording = recording
        self._found = found
        self._requests = iter(recording.requests)
        self.history: list[Line] = recording.head.get("messages", [])
        self._noted: list[Line] = []
        self._next_history: list[Line] | None = None
        """What the next request is sent with, if the recording notes it."""
        self.arriving: list[Line] = []
        """What has arrived of an answer, and how it failed."""
        self.complete: dict[int, list[Line]] = {}
        """The deltas of answers, by their turns."""
        self._starts: dict[tuple[int, str], float] = {}
        self._replaced = False
        """A check has replaced the prompt."""
        self._turns: dict[int, int] = {}
        """The turns of calls, by their numbers: one in the background may start and end in a later turn."""

    def take(self, line: Line) -> None:
        match line["line"]:
            case "history":
                self._noted = self._next_history = [*self._noted[: line["keep"]], *line["messages"]]
            case "request":
                self._take_request(line)
            case "delta":
                self.arriving.append(line)
                if line["delta"] == "ended" and line["verdict"]["kind"] == "whole":
                    self.complete[line["turn"]] = self.arriving
            case "failed":
                self.arriving = [*self.arriving, line]
            case "event":
                self._take_event(line)
            case "result":
                self._take_result(line)
            case "tools":
                self._found.agents |= {tool["name"] for tool in line["tools"] if tool.get("role") == "agent"}
            case "inner" | "waits":
                self._found.inner.take(line)
            case "approval" if line["decision"] != "wait":
                self._take_decision(line["call_id"], read_approval(line))
            case _:
                pass

    def _take_request(self, line: Line) -> None:
        found = self._found
        before, found.request = found.request, next(self._requests)
        found.state = line.get("state", {})
        if not is_state(found.state):
            raise UserError(f"{self._recording.path} is damaged and cannot be resumed: its state is not readable")
        sent = found.request.messages
        is_system = bool(sent) and sent[0].get("role") == "system"
        noted = self._next_history
        self.history = noted if noted is not None else list(sent[1:] if is_system else sent)
        if self._replaced and found.request.turn == 0:  # it is checked again
            self.history = [*self.history[:-1], self._recording.head.get("question") or self._prompt]
        self._next_history, self.arriving, found.question = None, [], None
        if before is None or before.turn != found.request.turn:
            found.decisions, found.started, found.loose = {}, {}, {}
            found.uncertain, found.asked_about = set(), set()

    @property
    def _prompt(self) -> Line:
        return self._recording.head["messages"][-1]

    def _take_event(self, line: Line) -> None:
        found = self._found
        match line["event"]:
            case "tool_calls_detected":
                self.complete.setdefault(line["turn"], self.arriving)  # cut, and its complete calls ran
            case "call_written":
                call = ToolCall(line["call_id"], line["name"], line["arguments"])
                found.numbers[line["turn"], call.id] = line["call"]
                self._turns[line["call"]] = line["turn"]
                found.loose[line["call"]] = call
            case "call_adopted":
                found.loose.pop(line["adopted"], None)
            case "call_dropped":
                found.loose.pop(line["call"], None)
            case "call_started":
                call = ToolCall(line["call_id"], line["name"], line["arguments"])
                turn = self._turn_of(line)
                found.started_numbers.add(line["call"])
                found.begun[turn, call.id] += 1
                found.unfinished.add((turn, call.id))
                self._starts.setdefault((turn, call.id), line["time"])
                if turn != line["turn"]:
                    return
                found.alike.add((turn, fingerprint(call)))
                found.started[call.id], found.turn = call, line["turn"]
                found.uncertain.add(call.id)
                found.asked_about.discard(call.id)
            case "call_changed":
                found.changed[self._turn_of(line), line["call_id"]] = line["arguments"]
            case "checked" if line["value"] == "call":
                found.vetoes[line["turn"]] = line["text"]
            case "checked" if line["value"] == "input" and line["outcome"] == "replaced":
                self._replaced = True
            case "run_finished":
                found.asked_about = {call["id"] for call in line["pending"] if call.get("uncertain")}
            case _:
                pass

    def _turn_of(self, line: Line) -> int:
        """The turn of the call that a line is about."""
        number: int = line.get("call", -1)
        return self._turns[number] if number in self._turns else line["turn"]

    def _take_result(self, line: Line) -> None:
        found, id, result = self._found, line["call_id"], read_result(line["result"])
        turn = self._turn_of(line)
        found.unfinished.discard((turn, id))
        if turn == line["turn"]:
            found.uncertain.discard(id)
        if not line["key"]:  # the client's own
            found.decisions[id] = result
            return
        took = self._recording.time_at(line["at"]) - self._starts.get((turn, id), inf)
        usage = read_usage(line.get("usage"), line.get("cost"), line.get("cache_saving"))
        seconds = round(max(took, 0.0), 6)
        given = RecordedResult(result, usage, seconds, line.get("inner_calls", 0))
        if "veto" in line:
            found.vetoes[turn] = line["veto"]
        found.results.setdefault(line["key"], given)  # the first one ran; another one only repeats it
        found.by_id.setdefault((turn, id), given)

    def _take_decision(self, id: str, decision: Approval) -> None:
        found = self._found
        found.decisions[id] = combine(found.decisions.get(id), decision)
        if id in found.asked_about and not isinstance(decision, Deny):
            found.uncertain.discard(id)  # somebody has decided that it may run


def combine(before: Approval | ToolResult | None, now: Approval | ToolResult) -> Approval | ToolResult:
    """Combines two decisions about a call: allowing a call that was edited keeps the edit."""
    return before if isinstance(before, Edit) and isinstance(now, Allow) else now


def _next_call(recording: Recording) -> int:
    numbers = [line["call"] for line in recording.of("event") if line["event"] == "call_written"]
    for line in recording.of("event"):
        if line["event"] == "run_finished":  # calls of agents that run as tools have numbers once they wait
            numbers += [call["call"] for call in line["pending"] if isinstance(call.get("call"), int)]
    state: Line = recording.head.get("state", {})
    return max(numbers, default=state.get("next_call", 0) - 1) + 1


def _state_of(recording: Recording) -> Line:
    """For a run that was resumed before its recording began: it has calls to finish before its first request."""
    state: Line = recording.head.get("state", {})
    return {**state, "requests": state["requests"] + 1, "attempts": state["attempts"] + 1} if state else {}


def _seconds(recording: Recording) -> float:
    """How long it was active, without the time between crash and resume."""
    total = began = last = 0.0
    for line in recording.lines:
        if line["line"] == "resumed":
            total, began = total + last - began, line["at"]
        last = max(line.get("at", 0.0), began) if line["line"] == "resumed" else max(line.get("at", 0.0), last)
    return round(total + last - began, 9)


class Continuation(Middleware):
    """Supplies a resumed run with what was recorded of it. `answers` are the new answers to calls that the run waits
    for. A run is `watched` if its listeners have its earlier events and get the new ones too: no text is reported
    twice, and a recorded answer stays whatever has changed."""

    mutates = False
    edits_answers = False

    def __init__(self, interrupted: Interrupted, answers: Mapping[str, object], *, watched: bool = False) -> None:
        self._interrupted = interrupted
        self._watched = watched
        self._shown = _shown(interrupted) if watched else None
        self._turn = 0
        self._answer = interrupted.answer
        self._same = False
        """The calls are those of the recording."""
        self._toolbox: Toolbox | None = None
        self.others: Sequence[Middleware] = ()
        """The middleware of the run."""
        self._result_limit = RESULT_LIMIT
        self._veto: Callable[[Vetoed], None] | None = None
        self._loose = dict(interrupted.loose)
        """Calls that have not been continued yet."""
        runs = {id for id, answer in answers.items() if isinstance(answer, Allow | Edit)}
        self._uncertain = interrupted.uncertain - (runs & interrupted.asked_about)

    def start(self, run: RunStart) -> Continuation:
        self._result_limit = int(cast("int", run.settings.get("result_limit", RESULT_LIMIT)))
        self._veto = run.veto
        return self

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        self._toolbox, self._turn = toolbox, turn
        if self._veto is not None and turn in self._interrupted.vetoes:
            self._veto(Vetoed(self._interrupted.vetoes[turn]))

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        answer = self.recorded_answer(request)
        arriving = _play(answer) if answer else call_next(request)
        return arriving if self.shown_of(self._turn) is None else _again(arriving)

    def recorded_answer(self, request: Request) -> list[Line]:
        """The recorded answer to exactly this request, returned once."""
        answer, self._answer = self._answer, []
        recorded = self._interrupted.request
        if answer and recorded is not None and (words := compare_requests(recorded, request, recorded.turn)):
            if self._watched or any(map(self._writes, self._interrupted.started.values())):
                LOG.warning("the last request is different now, and its recorded answer stays: %s", words)
            else:
                LOG.warning("the last request is different now, so it is sent again: %s", words)
                answer = []
        self._same = bool(answer)
        return answer

    def continue_with_same_calls(self) -> None:
        """The calls are those of the recording, although no answer is replayed: the run waited in the middle of
        them."""
        self._same, self._answer = True, []
        self._loose = {}  # those that are left are in the history

    def _writes(self, call: ToolCall) -> bool:
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        return tool is None or tool.effect != "read"

    # What the run asks about its earlier part

    def shown_of(self, turn: int) -> tuple[str, str] | None:
        request = self._interrupted.request
        return self._shown if request is not None and request.turn == turn else None

    def number_of(self, call: ToolCall, turn: int) -> int | None:
        found = self._interrupted
        if self._same:
            number = found.numbers.get((turn, call.id))
        elif found.request is None or found.request.turn != turn or not self._loose:
            return None
        else:
            mark = fingerprint(call)
            number = next((number for number, each in self._loose.items() if fingerprint(each) == mark), None)
        if number is not None:
            self._loose.pop(number, None)
        return number

    def had_started(self, number: int) -> bool:
        found = self._interrupted
        return number in found.started_numbers and number not in found.inner.waiting

    def lost_calls(self) -> list[tuple[int, ToolCall]]:
        lost, self._loose = list(self._loose.items()), {}
        return lost

    @property
    def replays_tools(self) -> bool:
        return False

    def seconds_of(self, context: CallContext[Any]) -> float | None:
        given = self._given(context)
        return None if given is None else given.seconds

    def _given(self, context: CallContext[Any]) -> RecordedResult | None:
        """The recorded result of the call, if it need not run again."""
        if context.name in self._live:
            return None
        found = self._interrupted
        given = found.results.get(context.key)
        if given is None and self._is_same(context.turn):  # its key was computed from arguments that are masked now
            given = found.by_id.get((context.turn, context.call_id))
        return given

    def began(self, prepared: Prepared, turn: int) -> bool:
        """Had this call started, without a result, and may it have changed something?"""
        call = prepared.call
        return self._is_uncertain(call, turn, prepared.fingerprint) and not self._is_masked(call, turn)

    def _is_uncertain(self, call: ToolCall, turn: int, mark: str) -> bool:
        return self._had_begun(call, turn, mark) and self._writes(call) and not self._is_found_again(call)

    def _is_found_again(self, call: ToolCall) -> bool:
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        if tool is not None and tool.role == "agent" and call.name in self._interrupted.agents:
            return True  # what happened inside is in the recording, and the run of the agent continues there
        return tool is not None and any(each.finds_again(tool) for each in self.others)

    def _had_begun(self, call: ToolCall, turn: int, mark: str) -> bool:
        found = self._interrupted
        if self._is_earlier(turn):
            return (turn, call.id) in found.unfinished
        if not self._uncertain or found.turn != turn:
            return False
        if self._same:
            return call.id in self._uncertain
        return mark in {fingerprint(found.started[id]) for id in self._uncertain}

    def _is_earlier(self, turn: int) -> bool:
        """Is it a turn before the last one? Of those, only calls in the background can still be open."""
        request = self._interrupted.request
        return request is not None and turn < request.turn

    def _is_same(self, turn: int) -> bool:
        """Are the calls of this turn those of the recording?"""
        return self._same or self._is_earlier(turn)

    def went_to_background(self, turn: int, call_id: str) -> None:
        """The resumed run decides."""

    def arrivals(self, turn: int) -> None:
        """The resumed run decides."""

    def _is_masked(self, call: ToolCall, turn: int) -> bool:
        return (
            self._is_same(turn) and self._interrupted.recording.masked and MASK.encode() in encode(call.arguments or {})
        )

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        given = self._given(context)
        if given is None and (veto := self._interrupted.vetoes.get(context.turn)) is not None:
            return self._refused(veto, call, context)
        if given is not None:
            if given.usage is not None:
                context.spend(given.usage)
            if given.calls:
                context.count_calls(given.calls)
            context.ran_before = given.seconds
            return replace(given.result, call_id=call.id)
        if self._is_masked(call, context.turn):
            begun = self._had_begun(call, context.turn, context.fingerprint) and self._writes(call)
            return unknown(call) if begun else failure(call, MASKED, "not_executed")
        context.attempt += self._attempts(call, context)
        found = self._interrupted
        if found.inner.by_key:
            id = call.id if self._same else ""
            context.inner = found.inner.recording(found.recording.path, context.key, context.turn, id)
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        if tool is not None and self._is_uncertain(call, context.turn, context.fingerprint):
            changed = found.changed.get((context.turn, call.id)) if self._is_same(context.turn) else None
            ran = call if changed is None else replace(call, arguments=changed)
            settled = await settle(tool, ran, context, self._result_limit)
            if settled is not None:
                return replace(settled, call_id=call.id, name=call.name)
        return await call_next(call, context)

    def _refused(self, veto: str, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        """The result of a call of a round in which a check has ended the run: nothing more of it starts."""
        given = self._interrupted.by_id.get((context.turn, context.call_id))
        if given is not None:  # of the tool that takes a typed answer
            return given.result
        begun = self._had_begun(call, context.turn, context.fingerprint) and self._writes(call)
        return unknown(call) if begun else not_executed(call, veto)

    def _attempts(self, call: ToolCall, context: CallContext[Any]) -> int:
        if self._is_same(context.turn):
            return self._interrupted.begun[context.turn, call.id]
        return int((context.turn, context.fingerprint) in self._interrupted.alike)

    @property
    def _live(self) -> tuple[str, ...]:
        """The tool that takes a typed answer has to run again: its value is in no message."""
        tool = self._interrupted.recording.answer_tool
        return (tool,) if tool else ()

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        decisions = self._interrupted.decisions
        if not decisions:
            return on_approval

        async def resumed(call: ToolCall) -> Approval:
            decision = decisions.pop(call.id, None) if self._same else None
            if decision is not None and not isinstance(decision, ToolResult):
                return decision
            return Wait() if on_approval is None else await ask(on_approval, call)

        return resumed


def _shown(interrupted: Interrupted) -> tuple[str, str] | None:
    """The text and the reasoning of the last answer that were emitted, complete or not; None if there is none."""
    text, reasoning = "", ""
    for event in interrupted.recording.events:
        if interrupted.request is None or event.turn != interrupted.request.turn:
            continue
        match event:
            case TextAdded():
                text += event.text
            case TextReplaced():
                text = event.text
            case ReasoningAdded():
                reasoning += event.text
            case ReasoningReplaced():
                reasoning = event.text
            case _:
                pass
    return (text, reasoning) if text or reasoning else None


async def _again(arriving: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Sequence[Delta]]:
    """An answer of which a part was emitted before: only the rest of it will be."""
    yield (Restarted(()),)
    async with closing(arriving) as batches:
        async for deltas in batches:
            yield deltas


async def _play(answer: list[Line]) -> AsyncIterator[Sequence[Delta]]:
    so_far = PartialResponse()
    for line in answer:
        delta = read_delta(line, so_far)
        so_far.feed(delta)
        yield (delta,)
