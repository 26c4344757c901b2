"""`RunView`: the state of a run, computed from its events. Every screen, metric and exporter reads it.

It does no I/O and can be read at any moment of a run. Texts are kept in pieces and joined when they are read, so each
piece of a long answer costs the same. Events may be missing (the beginning of a run, for example): a call is then known
from its first event on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallAdopted,
    CallBackgrounded,
    CallChanged,
    CallDropped,
    CallEvent,
    CallFinished,
    CallProgress,
    CallStarted,
    CallWritten,
    Compacted,
    Event,
    InnerEvent,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RequestSent,
    ResultArrived,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunStarted,
    ServerCallFinished,
    ServerCallStarted,
    TextAdded,
    TextFinished,
    TextReplaced,
    TodoUpdated,
    ToolCallsDetected,
    ToolLate,
)
from unbroken_wires.messages import Json, Outcome, Usage

# Fields that are not set fall back to the class attributes: setting all of them would take three times as long.


@dataclass(init=False, eq=False)
class CallView:
    """One call. Times are those of its events, or None if that has not happened. A call that adopts another one
    continues it: it has the start time of that call, and its result if there is one."""

    number: int
    """Unique in its run."""
    id: str
    name: str
    turn: int
    arguments: dict[str, Json] | None = None
    """None if they were cut off."""
    changed: dict[str, Json] | None = None
    """Those it runs with, if middleware has changed them."""
    text: str | None = None
    """The result as the model reads it. None if there is none: the call is running or waiting, or the run ended
    first."""
    error: bool = False
    outcome: Outcome | None = None
    """None while there is no result."""
    seconds: float = 0.0
    """How long its tool ran."""
    early: bool = False
    """The call started while its response was still being received."""
    reported: bool = False
    """Whether its own `CallFinished` has arrived. If it continues another call, it may have the result before that."""
    duplicate_of: str = ""
    """The id of the call whose execution it shared."""
    adopted: int | None = None
    """The number of the call that it continues: one of a broken response, or of a process that died."""
    took_over: bool = False
    """It took over the execution of that call instead of running again."""
    resumed: bool = False
    """The execution that it took over belonged to a process that died."""
    died: bool = False
    """It ran when its process died, and has not started again."""
    adopted_by: int | None = None
    """The number of the call that continues it."""
    dropped: str | None = None
    """The reason why it is in no message."""
    attempt: int = 0
    """The attempt of its turn in which it was written, from 1; 0 if it existed before the request."""
    response_broke: bool = False
    """Its response broke off. A call of the next response may adopt it; otherwise it is dropped."""
    written: float | None = None
    started: float | None = None
    finished: float | None = None
    detected: float | None = None
    """When the response that contains it was complete."""
    approval: ApprovalAsked | None = None
    progress: CallProgress | None = None
    """The latest one."""
    late: ToolLate | None = None
    inner: RunView | None = None
    """The run of the agent that is its tool."""
    agent: str = ""
    """The path of that agent, such as `main/researcher`."""
    handle: str = ""
    """Of a call that went to the background."""
    backgrounded: float | None = None
    """When that was: the model went on from there."""
    arrived: float | None = None
    """When its result was added to the history."""

    def __init__(self, number: int, id: str, name: str, turn: int, attempt: int) -> None:
        self.number, self.id, self.name, self.turn, self.attempt = number, id, name, turn, attempt

    @property
    def is_over(self) -> bool:
        """Whether it has a result or has been dropped."""
        return self.outcome is not None or self.dropped is not None

    @property
    def is_settled(self) -> bool:
        """Whether it keeps the result that it has: its own, or that of a process that died. It may run again if it was
        cancelled, for example in the background."""
        return (self.reported or self.resumed) and self.outcome not in (None, "cancelled")

    @property
    def counts(self) -> bool:
        """Whether it was neither dropped nor continued by another call."""
        return self.dropped is None and self.adopted_by is None

    @property
    def interrupted(self) -> bool:
        """Whether it had started when its response broke: a call of the next response may continue it."""
        return self.response_broke and self.started is not None

    @property
    def saved(self) -> float | None:
        """Seconds saved by starting early: until the end of its response, or until its own end if that came first. None
        if it did not start early, and while either end is unknown."""
        if not (self.early and self.reported) or self.resumed or self.started is None or self.detected is None:
            return None
        # Event times are seconds since the epoch: floats of that size are exact to microseconds only.
        return max(min(round(self.detected - self.started, 6), self.seconds), 0.0)


@dataclass(slots=True)
class ServerCallView:
    """A tool that the provider ran itself."""

    id: str
    tool: str
    """What it does, by the same name for every provider."""
    name: str
    started: float
    arguments: dict[str, Json] | None = None
    outcome: Outcome | None = None
    """None while it runs."""
    error: str = ""
    finished: float | None = None


@dataclass(slots=True)
class AttemptView:
    """One attempt at the response of a turn. If it failed, `retried` is the reason, and another attempt follows."""

    asked: float
    ended: float | None = None
    retried: RequestRetried | None = None


class TurnView:
    """One request: the attempts at its response, its text and its calls."""

    asked: float | None = None
    """When the request was sent. None if the events do not include that: a resumed run begins with earlier calls."""
    final = False
    """The model could not call tools."""
    ended: float | None = None
    """When the response was complete."""
    detected: float | None = None
    """The same, but only if the response contains calls."""
    finished: float | None = None
    """When all calls had results."""
    cost: float | None = None
    """What the request cost, failed attempts included. None if that is not known (yet)."""
    round_cost: float | None = None
    """The same with its calls, once all have results: an agent as a tool has a cost."""
    is_thought: bool | None = None
    """None until the text is complete; then True if calls follow."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts: list[AttemptView] = []
        self.calls: list[CallView] = []
        """All calls that were written, including those in no message. In call order once the response is complete."""
        self.server_calls: list[ServerCallView] = []
        """Those of tools that the provider runs itself, as they began."""
        self.texts: list[str] = []
        """The pieces of `text`, as they arrived."""
        self.reasonings: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return _joined(self.texts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far, if the model shows it."""
        return _joined(self.reasonings)


class RunView:
    """`feed` takes the next event; `RunView.of(events)` takes all of them."""

    run = ""
    model = ""
    schedule = ""
    agent = ""
    """The agent that has taken over, if the run was handed off."""
    began: float | None = None
    ended: float | None = None
    """None while the run is active."""
    usage = Usage()
    """Known at the end of the run."""
    cost: float | None = None
    """What the run cost, if that is known; at its end."""
    rounds = 0
    requests = 0
    attempts = 0
    """Requests that were sent, including those that failed."""
    finished: RunFinished | None = None
    failed: RunFailed | None = None

    def __init__(self) -> None:
        self.turns: list[TurnView] = []
        self.by_number: dict[int, CallView] = {}
        """All calls, including those in no message."""
        self.retries: list[RequestRetried] = []
        self.todos: list[dict[str, Json]] = []
        """The latest list."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Builds the view from all these events."""
        view = cls()
        for event in events:
            view.feed(event)
        return view

    def feed(self, event: Event) -> None:
        """Takes the next event of the run."""
        if isinstance(event, TextAdded) and self.turns:  # most events are; handling them here halves their cost
            self.turns[-1].texts.append(event.text)
        elif (take := self._TAKES.get(type(event))) is not None:
            self.run = event.run
            take(self, event)

    @property
    def text(self) -> str:
        """The answer, or the latest text if the run has not ended."""
        if self.finished is not None:
            return self.finished.text
        return next((turn.text for turn in reversed(self.turns) if turn.texts), "")

    @property
    def texts(self) -> list[str]:
        """The text of each turn that has any, including the last one."""
        return [turn.text for turn in self.turns if turn.is_thought is not None]

    @property
    def thoughts(self) -> list[str]:
        """The texts that were followed by calls."""
        return [turn.text for turn in self.turns if turn.is_thought]

    @property
    def reasoning(self) -> str:
        """The reasoning of all turns, separated by empty lines."""
        return "\n\n".join([turn.reasoning for turn in self.turns if turn.reasonings])

    @property
    def calls(self) -> list[CallView]:
        """The calls in call order, turn by turn."""
        return [call for turn in self.turns for call in turn.calls if call.counts]

    @property
    def server_calls(self) -> list[ServerCallView]:
        """The tools that the provider ran itself, in the order in which they began."""
        return [call for turn in self.turns for call in turn.server_calls]

    @property
    def dropped(self) -> list[CallView]:
        """Calls that had started and are in no message, for example because their response broke off."""
        calls = (call for turn in self.turns for call in turn.calls)
        return [call for call in calls if call.dropped is not None and call.started is not None]

    @property
    def stop_reason(self) -> str:
        """Empty if the run failed, or if its end is not among the events."""
        return (self.finished or _UNENDED).stop_reason

    @property
    def seconds(self) -> float:
        """How long the run took, not counting the time in which it waited; 0 until it has finished."""
        return (self.finished or _UNENDED).seconds

    @property
    def pending(self) -> list[dict[str, Json]]:
        """The calls that the run is waiting for."""
        return (self.finished or _UNENDED).pending

    @property
    def complete(self) -> bool:
        """Whether the run ended and every call of its history has a result."""
        return (self.finished or _UNENDED).complete

    @property
    def fallback_used(self) -> bool:
        """Whether a response broke and was requested again without streaming, or from another model."""
        return (self.finished or self.failed or _UNENDED).fallback_used

    @property
    def verdicts(self) -> list[dict[str, Json]]:
        """What was wrong with each incomplete response, once the run has ended."""
        return (self.finished or self.failed or _UNENDED).verdicts

    def before(self, call: CallView) -> CallView | None:
        """The call that this one continues, if that is known."""
        return None if call.adopted is None else self.by_number.get(call.adopted)

    def forget_turns(self) -> None:
        """Forgets all turns but the last, and their calls. Use it if you only count: a long run then needs no more
        memory."""
        del self.turns[:-1]
        kept = [call for turn in self.turns for call in turn.calls]
        kept += [call for call in self.by_number.values() if call.handle and call.outcome is None]
        self.by_number = {call.number: call for call in kept}

    def resumed(self) -> list[CallView]:
        """Another process continues the run. Returns the calls that ran when the one before died. `feed` calls it for
        the events of the other process; a reader that knows earlier may call it itself."""
        self.ended = self.finished = self.failed = self.cost = None
        self.usage = Usage()
        open_calls = [call for call in self.by_number.values() if call.outcome is None and call.counts]
        ran = [call for call in open_calls if call.started is not None and not call.died]
        for call in ran:
            call.died = True
        return ran

    # The events of a run

    def _run_started(self, event: RunStarted) -> None:
        self.resumed()
        self.model, self.schedule = event.model, event.schedule
        if self.began is None:
            self.began = event.time

    def _agent_changed(self, event: AgentChanged) -> None:
        self.agent, self.model = event.agent, event.model

    def _run_finished(self, event: RunFinished) -> None:
        self.ended, self.finished, self.failed = event.time, event, None
        self.rounds, self.requests, self.attempts = event.rounds, event.requests, event.attempts
        self.usage, self.cost = _usage(event.usage), event.cost
        self._listed([call for call in event.pending if not call.get("agent")], event.turn)

    def _run_failed(self, event: RunFailed) -> None:
        self.ended, self.finished, self.failed = event.time, None, event
        self.usage, self.cost = _usage(event.usage), event.cost

    # The events of a turn

    def turn(self, number: int) -> TurnView:
        """The turn with this number: the last one, or else a new one."""
        if not self.turns or self.turns[-1].number != number:
            self.turns.append(TurnView(number))
        return self.turns[-1]

    def _request_sent(self, event: RequestSent) -> None:
        turn = self.turn(event.turn)
        if turn.asked is None:
            self.requests += 1
            turn.asked = event.time
        else:  # its process died, and the response is requested again
            turn.texts, turn.reasonings, turn.is_thought = [], [], None
        self.attempts += 1
        turn.final, turn.ended = event.final, None
        turn.attempts.append(AttemptView(event.time))

    def _request_retried(self, event: RequestRetried) -> None:
        self.retries.append(event)
        self.attempts += 1
        turn = self.turn(event.turn)
        for call in turn.calls:
            call.response_broke |= call.attempt == len(turn.attempts)
        if turn.attempts:
            turn.attempts[-1].ended, turn.attempts[-1].retried = event.time, event
        turn.attempts.append(AttemptView(event.time + event.wait))

    def _text_added(self, event: TextAdded) -> None:
        self.turn(event.turn).texts.append(event.text)

    def _reasoning_added(self, event: ReasoningAdded) -> None:
        self.turn(event.turn).reasonings.append(event.text)

    def _text_replaced(self, event: TextReplaced) -> None:
        self.turn(event.turn).texts = [event.text]

    def _reasoning_replaced(self, event: ReasoningReplaced) -> None:
        self.turn(event.turn).reasonings = [event.text]

    def _text_finished(self, event: TextFinished) -> None:
        turn = self._end_response(event)
        turn.texts, turn.is_thought, turn.cost = [event.text], not event.final, event.cost

    def _calls_detected(self, event: ToolCallsDetected) -> None:
        turn = self._end_response(event)
        self.rounds += turn.detected is None and not turn.final
        turn.detected, turn.cost = event.time, event.cost
        calls = self._listed(event.calls, event.turn)
        for call in calls:
            call.detected = event.time
        if turn.calls != calls:  # some started early, or are in no message
            turn.calls = [*calls, *(call for call in turn.calls if call.detected is None)]

    def _end_response(self, event: Event) -> TurnView:
        turn = self.turn(event.turn)
        turn.ended = event.time
        if turn.attempts:
            turn.attempts[-1].ended = event.time
        return turn

    def _compacted(self, event: Compacted) -> None:
        self._end_response(event).cost = event.cost

    def _round_finished(self, event: RoundFinished) -> None:
        turn = self.turn(event.turn)
        turn.finished, turn.round_cost = event.time, event.cost

    # The events of a call

    def _call(self, number: int, id: str, name: str, turn: int) -> CallView:
        call = self.by_number.get(number)
        if call is None:
            of = self.turn(turn)
            call = self.by_number[number] = CallView(number, id, name, turn, len(of.attempts))
            of.calls.append(call)
        return call

    def _listed(self, calls: list[dict[str, Json]], turn: int) -> list[CallView]:
        """The calls of a list, with their arguments. Recordings may come from anywhere, so the lists may contain
        anything."""
        found: list[CallView] = []
        for entry in calls:
            number = entry.get("call")
            if isinstance(number, int):
                call = self.by_number.get(number) or self._call(
                    number, entry.get("id", ""), entry.get("name", ""), turn
                )
                call.arguments = entry.get("arguments")
                found.append(call)
        return found

    def _of(self, event: CallEvent) -> CallView:
        return self._call(event.call, event.call_id, event.name, event.turn)

    def _call_written(self, event: CallWritten) -> None:
        call = self._of(event)
        if call.written is not None:  # the process of an inner run died before that one was recorded
            call.dropped = "its process died"
            del self.by_number[event.call]
            call = self._of(event)
        call.arguments, call.written = event.arguments, event.time

    def _call_started(self, event: CallStarted) -> None:
        call = self._of(event)
        if call.is_settled:
            return  # an early version repeated it after a resume; a typed answer is only checked again
        call.arguments, call.early, call.started = event.arguments, event.early, event.time
        call.text = call.outcome = call.finished = None  # these were those of the call that it continues; it runs again
        call.took_over = call.resumed = call.died = False

    def _call_changed(self, event: CallChanged) -> None:
        self._of(event).changed = event.arguments

    def _call_progress(self, event: CallProgress) -> None:
        self._of(event).progress = event

    def _inner_event(self, event: InnerEvent) -> None:
        call = self._of(event)
        call.agent = event.agent
        if call.inner is None:
            call.inner = RunView()
        call.inner.feed(event.event)

    def _call_backgrounded(self, event: CallBackgrounded) -> None:
        call = self._of(event)
        call.handle, call.backgrounded = event.handle, event.time

    def _result_arrived(self, event: ResultArrived) -> None:
        call = self._of(event)
        call.handle, call.arrived = event.handle, event.time

    def _call_finished(self, event: CallFinished) -> None:
        call = self._of(event)
        if call.is_settled:
            call.reported = True
            return
        call.text, call.error, call.outcome = event.text, event.error, event.outcome
        call.seconds, call.duplicate_of, call.reported = event.seconds, event.duplicate_of, True
        if event.outcome == "not_executed":  # its checks ran, and refused it; its tool did not
            call.started, call.early = None, False
        if call.finished is None:
            call.finished = event.time
            if call.started is not None and (call.adopted is not None or call.response_broke):
                # It is reported once it is known which call continues it, which may be later than its end.
                call.finished = min(event.time, call.started + event.seconds)

    def _call_adopted(self, event: CallAdopted) -> None:
        call, before = self._of(event), self.by_number.get(event.adopted)
        call.adopted, call.took_over = event.adopted, True
        if before is None or before is call:
            return
        before.adopted_by = call.number
        if call.outcome is not None:
            return  # it continued another call before, and has a result
        for name in _CONTINUED:
            setattr(call, name, getattr(before, name))
        call.resumed = before.resumed or not before.response_broke

    def _call_dropped(self, event: CallDropped) -> None:
        call = self._of(event)
        call.dropped = event.reason
        if call.started is not None and call.finished is not None:  # it may be reported later than it ended
            call.finished = min(call.finished, call.started + call.seconds)

    def _approval_asked(self, event: ApprovalAsked) -> None:
        call = self._of(event)
        call.arguments, call.approval = event.arguments, event

    def _todo_updated(self, event: TodoUpdated) -> None:
        self._of(event)
        self.todos = event.todos

    def _tool_late(self, event: ToolLate) -> None:
        self._of(event).late = event

    # The events of a tool that the provider runs

    def _server_call_started(self, event: ServerCallStarted | ServerCallFinished) -> ServerCallView:
        call = ServerCallView(event.call_id, event.tool, event.name, event.time, event.arguments)
        self.turn(event.turn).server_calls.append(call)
        return call

    def _server_call_finished(self, event: ServerCallFinished) -> None:
        """It may have begun in an earlier turn: a provider may pause between the two."""
        running = [call for call in self.server_calls if call.id == event.call_id and call.outcome is None]
        call = running[-1] if running else self._server_call_started(event)
        call.arguments, call.outcome, call.error = event.arguments, event.outcome, event.error
        call.finished = event.time

    _TAKES: ClassVar[dict[type[Event], Callable[[RunView, Any], object]]] = {
        RunStarted: _run_started,
        AgentChanged: _agent_changed,
        RequestSent: _request_sent,
        TextAdded: _text_added,
        ReasoningAdded: _reasoning_added,
        RequestRetried: _request_retried,
        TextReplaced: _text_replaced,
        ReasoningReplaced: _reasoning_replaced,
        ToolCallsDetected: _calls_detected,
        CallWritten: _call_written,
        CallStarted: _call_started,
        CallChanged: _call_changed,
        CallProgress: _call_progress,
        InnerEvent: _inner_event,
        CallBackgrounded: _call_backgrounded,
        CallFinished: _call_finished,
        ResultArrived: _result_arrived,
        CallAdopted: _call_adopted,
        CallDropped: _call_dropped,
        ServerCallStarted: _server_call_started,
        ServerCallFinished: _server_call_finished,
        ApprovalAsked: _approval_asked,
        TodoUpdated: _todo_updated,
        ToolLate: _tool_late,
        TextFinished: _text_finished,
        Compacted: _compacted,
        RoundFinished: _round_finished,
        RunFinished: _run_finished,
        RunFailed: _run_failed,
    }


def shown_cost(cost: float | None, currency: str = "$") -> str:
    """`$0.0042`, or `unknown`. `currency` is empty if it is by prices of the program's own, which may be of any."""
    if cost is None:
        return "unknown"
    return f"{currency}{cost:,.4f}" if cost >= 0.001 or not cost else f"{currency}{cost:.7f}"


def counted(number: int, what: str) -> str:
    """`1 call`, `1,024 calls`"""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _joined(pieces: list[str]) -> str:
    """Joins the pieces in place, once. A screen may read them while another thread adds more."""
    if (count := len(pieces)) > 1:
        pieces[:count] = ["".join(pieces[:count])]
    return pieces[0] if pieces else ""


def _usage(saved: dict[str, Any]) -> Usage:
    return Usage(**{name: value for name, value in saved.items() if name in _USAGE})


_UNENDED = RunFinished(
    run="",
    turn=0,
    seq=0,
    time=0.0,
    text="",
    stop_reason="",
    rounds=0,
    requests=0,
    calls=0,
    usage={},
    seconds=0.0,
    complete=False,
)
"""In place of the end of a run that has none."""
_CONTINUED = (
    "arguments",
    "died",
    "changed",
    "written",
    "started",
    "early",
    "progress",
    "late",
    "inner",
    "agent",
    "text",
    "error",
    "outcome",
    "seconds",
    "finished",
)
"""What a call has of the one that it continues."""
_USAGE = frozenset(each.name for each in fields(Usage))
