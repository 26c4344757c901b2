"""`RunState`: what has happened in a run, as far as it decides how the run continues. Nothing in it is live.

It is the same class while a run is active, when a recording is read (`recorded_state`) and when a saved result is
continued (`Result.state`): a run that is resumed starts with the state that another process left, and a result is a
view of the state at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

from unbroken.agent.limits import NOTHING_USED, StopReason, Used
from unbroken.agent.rules.repetition import Repetition
from unbroken.agent.turns import Again
from unbroken.events import Event
from unbroken.tools.approval import Approval
from unbroken.tools.handles import BackgroundCall
from unbroken.tools.order import Order
from unbroken.trajectory.lines import read_usage
from unbroken_wires.deltas import Verdict
from unbroken_wires.frozen import plain_factories, quick
from unbroken_wires.messages import (
    Assistant,
    Json,
    Outcome,
    ServerCall,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.transcript import Transcript


@quick
@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and its result."""

    call: ToolCall
    result: ToolResult
    turn: int
    seconds: float

    @property
    def id(self) -> str:
        """The call's id, which its result has too."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the tool that the model called; it may not exist."""
        return self.call.name

    @property
    def arguments(self) -> dict[str, Json]:
        """As the model wrote them; empty if they could not be read and nothing ran."""
        return self.call.arguments or {}

    @property
    def error(self) -> bool:
        """It failed, or was not executed: `result.text` has the reason."""
        return self.result.error

    @property
    def outcome(self) -> Outcome:
        """How it ended: `unknown` if its process died while the tool ran."""
        return self.result.outcome


@dataclass(frozen=True, slots=True)
class Taken:
    """A hand-off that has taken place: its tool, and how many messages the history had then."""

    tool: str
    messages: int


@dataclass(slots=True)
@plain_factories
class Emitted:
    """The events of a run so far."""

    next_seq: int = 0
    """The number of the next one."""
    next_call: int = 0
    """The number of the next call."""
    counted: list[Event] = field(default_factory=list[Event])
    """Those that `result.metrics` counts."""


@dataclass(slots=True)
@plain_factories
class Counters:
    """How often the model was asked for what, and what its rules and middleware have noted meanwhile."""

    attempts: int = 0
    """Requests that were sent, including those that failed."""
    fallback_used: bool = False
    """A response was retried without streaming, or with another model."""
    nudge: bool = False
    """The last answer was empty: ask for more in the next request."""
    nudges: int = 0
    """How often the model was asked to continue."""
    empty_answers: int = 0
    """How many came last, in a row."""
    pauses: int = 0
    corrections: int = 0
    """How often the model was asked to correct its structured answer."""
    retries: dict[str, int] = field(default_factory=dict[str, int])
    """How often each tool, and each check of the output, has asked for a retry."""
    stop: StopReason | None = None
    """Why no more calls are allowed; None while they are."""
    tokens: int = 0
    """What the provider reported for the last request and its answer."""
    aside: bool = False
    """A request is made beside the rounds of the run: for a summary, for example."""
    notes: dict[str, Json] = field(default_factory=dict[str, Json])
    """What middleware has noted about the run, and requests that were made beside its rounds (`aside`)."""


_COUNTERS = [
    each.name for each in fields(Counters) if each.name not in ("attempts", "retries", "tokens", "aside", "notes")
]
"""Those that `counted` saves as they are."""


@dataclass(slots=True)
@plain_factories
class Waiting:
    """What a run waits for."""

    pending: tuple[ToolCall, ...] = ()
    """Calls that wait for an outside decision."""
    uncertain: tuple[str, ...] = ()
    """The ids of waiting calls that may have taken effect before their process died."""
    decided: Mapping[str, Approval] = field(default_factory=dict[str, Approval])
    """Decisions about calls that wait behind them."""
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """The numbers of all calls without a result, by id."""
    inner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The results so far of agents that wait inside of calls of this run, by the ids of the calls."""
    needs_result: frozenset[str] = frozenset()
    """The ids of calls of those agents that wait for a result, and not for an approval."""


@dataclass(slots=True)
@plain_factories
class RunState:
    transcript: Transcript
    agent: str = "main"
    """The name of the agent that runs now."""
    used: Used = field(default_factory=Used)
    counters: Counters = field(default_factory=Counters)
    repetition: Repetition = field(default_factory=Repetition)
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    """The calls that have results."""
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    """What was wrong with each incomplete response."""
    warnings: dict[str, None] = field(default_factory=dict[str, None])
    question: User | None = None
    """The prompt that follows the open calls of the given history."""
    waiting: Waiting = field(default_factory=Waiting)
    waited: bool = False
    """An earlier part of the run waited."""
    handoffs: list[Taken] = field(default_factory=list[Taken])
    background: tuple[BackgroundCall, ...] = ()
    """Background calls of an earlier part of the run that have not been continued yet."""
    server_calls: list[ServerCall] = field(default_factory=list[ServerCall])
    """Tools that the provider has run, as it wrote them."""
    emitted: Emitted = field(default_factory=Emitted)

    # What happens

    def next_turn(self) -> int:
        """A request is sent. Returns its turn."""
        turn, self.used.requests = self.used.requests, self.used.requests + 1
        self.counters.attempts += 1
        return turn

    def ask_again(self, message: Assistant, again: Again) -> None:
        """This message is not the answer."""
        why, counters = again.why, self.counters
        if why == "paused":
            counters.pauses += 1
        else:
            counters.nudge = why == "silent"
            counters.empty_answers = counters.empty_answers + 1 if counters.nudge else 0
            counters.nudges += why in ("silent", "announced")
            counters.corrections += why == "misfit"
        if again.keeps:
            self.transcript.add(message)
        if again.reply:
            self.transcript.add(User.of(again.reply))

    def add_calls(self, message: Assistant, counts: bool) -> None:
        """This message has calls; `counts`: its request was no final one, so this is a round."""
        self.counters.nudge, self.counters.empty_answers = False, 0
        self.transcript.add(message)
        self.used.rounds += counts

    def add_result(self, call: ToolCall, result: ToolResult, turn: int, seconds: float) -> None:
        """A call of the last message has its result, as the model reads it."""
        self.transcript.answer(result if result.exception is None else replace(result, exception=None))
        if result.ended_as == "retry":
            self.count_retry(call.name)
        self.calls.append(CallRecord(call, result, turn, seconds))

    def order_calls(self, calls: Sequence[ToolCall]) -> None:
        """Some of these calls of one message had to wait: puts all of them in the order of their message."""
        places = {call.id: place for place, call in enumerate(calls)}
        count = len(calls)
        last = self.calls[-count:]
        if all(record.id in places for record in last):
            self.calls[-count:] = sorted(last, key=lambda record: places[record.id])

    def count_retry(self, name: str) -> None:
        self.counters.retries[name] = self.counters.retries.get(name, 0) + 1

    def add_question(self) -> None:
        """The prompt follows the results of the open calls of the given history."""
        if self.question is not None:
            self.transcript.add(self.question)
            self.question = None

    def attempt_failed(self, verdict: Verdict, elsewhere: bool) -> None:
        """A response broke or did not arrive, and the request is retried."""
        counters = self.counters
        counters.attempts += 1
        counters.empty_answers += verdict.kind == "empty"
        counters.fallback_used = counters.fallback_used or elsewhere
        self.verdicts.append(verdict)

    def wait_for(self, order: Order) -> None:
        """The run cannot continue before somebody outside decides."""
        inner, known, numbers = order.waits.values(), self.waiting.numbers, order.numbers
        for call in (call for waits in inner for call in waits.pending):
            number = known.get(call.id)
            if number is None:
                number, self.emitted.next_call = self.emitted.next_call, self.emitted.next_call + 1
            numbers[call.id] = number
        self.waiting = Waiting(
            order.pending,
            order.uncertain + tuple(id for waits in inner for id in waits.uncertain),
            order.decided,
            numbers,
            {id: waits.state for id, waits in order.waits.items() if waits.state is not None},
            frozenset(id for waits in inner for id in waits.needs_result),
        )

    # What it shows

    @property
    def chain(self) -> tuple[int, int]:
        """How many calls and how many results the history has."""
        calls = returns = 0
        for message in self.transcript.messages:
            if isinstance(message, Assistant):
                calls += len(message.calls)
            elif isinstance(message, ToolMessage):
                returns += len(message.results)
        return calls, returns + len(self.transcript.answered)

    def recorded(self, *, prepares: bool) -> dict[str, Json]:
        """What a recording has of it with each request, besides the history. Values that have not changed since the
        start are left out, except for the counters. `prepares`: middleware changes what is sent."""
        used = self.used
        saved: dict[str, Json] = {
            "rounds": used.rounds,
            "requests": used.requests,
            "calls": used.calls,
            "usage": used.usage.to_json(),
            "attempts": self.counters.attempts,
        }
        if used.usage.cost is not None:
            saved["cost"] = used.usage.cost
        if used.usage.cache_saving is not None:
            saved["cache_saving"] = used.usage.cache_saving
        if self.emitted.next_call:
            saved["next_call"] = self.emitted.next_call
        if prepares:
            saved["tokens"] = self.counters.tokens
            if self.counters.aside:
                saved["aside"] = True
        if self.handoffs:
            saved["handoffs"] = [asdict(each) for each in self.handoffs]
        return saved | self.counted()

    def counted(self) -> dict[str, Json]:
        """What its rules and its middleware have counted and noted, as far as it is not what a run begins with."""
        counters = self.counters
        saved: dict[str, Json] = {name: value for name in _COUNTERS if (value := getattr(counters, name))}
        for name, noted in (
            ("retries", counters.retries),
            ("streaks", self.repetition.streaks),
            ("notes", counters.notes),
        ):
            if noted:
                saved[name] = dict(noted)
        return saved

    def recall(self, saved: Mapping[str, Any]) -> None:
        """What `recorded` returned for the last request, as it was before that request: it is sent again."""
        used, counters = self.used, self.counters
        used.rounds, used.calls = saved.get("rounds", 0), saved.get("calls", 0)
        used.requests = max(saved.get("requests", 1) - 1, 0)
        used.usage = read_usage(saved.get("usage"), saved.get("cost"), saved.get("cache_saving")) or NOTHING_USED
        self.continue_counting(saved)
        counters.attempts, counters.tokens = max(saved.get("attempts", 1) - 1, 0), saved.get("tokens", 0)
        self.handoffs = read_taken(saved.get("handoffs"))

    def continue_counting(self, saved: Mapping[str, Any]) -> None:
        """Continues from what `counted` returned."""
        for name in _COUNTERS:
            if name in saved:
                setattr(self.counters, name, saved[name])
        self.counters.retries, self.counters.notes = dict(saved.get("retries", {})), dict(saved.get("notes", {}))
        self.repetition.recall(saved.get("streaks", {}))


def read_taken(saved: object) -> list[Taken]:
    """Hand-offs in their saved form."""
    if not isinstance(saved, Sequence):
        return []
    return [Taken(str(each["tool"]), int(each["messages"])) for each in cast("Sequence[dict[str, Any]]", saved)]
