"""The result of a run, and how it is saved: as JSON, so that a waiting run can be resumed in another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from unbroken.agent.limits import StopReason, Used
from unbroken.agent.run_state import CallRecord, Emitted, RunState, Taken, Waiting, read_taken
from unbroken.agent.turns import Ending
from unbroken.errors import UserError
from unbroken.events import Event, RunFinished
from unbroken.tools.approval import Allow, Approval, Edit
from unbroken.tools.handles import BackgroundCall
from unbroken.trajectory.metrics import Metrics
from unbroken_wires.deltas import Verdict
from unbroken_wires.frozen import quick
from unbroken_wires.messages import Assistant, Json, Message, ServerCall, ToolCall, ToolMessage, ToolResult, Usage, User
from unbroken_wires.transcript import Transcript, from_json, to_json
from unbroken_wires.validation import missing_attribute

OutputT = TypeVar("OutputT", default=str)
"""The type of the answer."""


@quick
@dataclass(frozen=True, slots=True)
class Result(Generic[OutputT]):
    text: str
    stop_reason: StopReason
    messages: tuple[Message, ...] = ()
    """The complete history, without the agent's own instructions. It ends in open calls if the run is waiting."""
    calls: tuple[CallRecord, ...] = ()
    """Every call of this run with its result, in call order."""
    rounds: int = 0
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """What it cost: by `Limits(prices=…)`, or else in US dollars by the price list. None if that is not known."""
    seconds: float = 0.0
    output: OutputT = cast("OutputT", None)  # noqa: RUF009 - it is None: there is no answer yet
    """The answer: of the type requested with `output=`, or else the same as `text`. A run that has a type and ended
    without an answer of it (`waiting`, `vetoed`) has None."""
    pending: tuple[ToolCall, ...] = ()
    """Calls that wait for an approval or for the client; continue with `agent.resume(result, answers)`."""
    uncertain: tuple[str, ...] = ()
    """The ids of pending calls that had started when their process died, and may have taken effect."""
    answered: tuple[ToolResult, ...] = ()
    """While some are pending: the results that calls of the same message already have."""
    decided: Mapping[str, Approval] = field(default_factory=dict[str, Approval])
    """While some are pending: the decisions about calls that wait behind them, by call id."""
    structured: bool = False
    """Whether the run has an `output=` type."""
    finish: str | None = None
    """The provider's own finish reason of its last answer: `length` means that it was cut."""
    cut_off: bool = False
    """The run ended without an answer of the model: `text` is what it had written by then, or a sentence of ours. An
    answer to the final request after a limit is an answer."""
    run: str = ""
    call_count: int = 0
    """Calls that counted against `Limits.calls`."""
    attempts: int = 0
    """Requests that were sent, including failed ones that were retried."""
    fallback_used: bool = False
    """A response broke and was retried without streaming, or with another model."""
    verdicts: tuple[Verdict, ...] = ()
    """What was wrong with each incomplete response."""
    warnings: tuple[str, ...] = ()
    """What was changed in requests because a model would have refused them, one sentence each."""
    question: User | None = None
    """While open calls of a given history are pending: the prompt that follows them."""
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    """While some are pending: the numbers of the calls without a result, by call id."""
    next_call: int = 0
    """The number of the next call."""
    agent: str = ""
    """The name of the agent that answered: after a hand-off it is another one than the one that began."""
    handoffs: tuple[Taken, ...] = ()
    """The hand-offs of the run."""
    inner: Mapping[str, Result[Any]] = field(default_factory=dict[str, "Result[Any]"], repr=False)
    """While calls of agents that run as tools are pending: the results of these agents so far, by the ids of the calls
    that run them."""
    background: tuple[BackgroundCall, ...] = ()
    """The calls that went to the background, with their results. Those that are not `delivered` ended, or were
    cancelled, after the model was asked for the last time."""
    server_calls: tuple[ServerCall, ...] = ()
    """Tools that the provider ran itself, as it reported them, in order. `to_json` leaves them out."""
    counters: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False, compare=False)
    """While some are pending: how often tools have asked for a retry, the model was asked to continue, and the like."""
    events: tuple[Event, ...] = field(default=(), repr=False, compare=False)
    """The events that `metrics` counts."""

    if not TYPE_CHECKING:  # type checkers have their own words for it

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    @property
    def cache_saving(self) -> float | None:
        """How much less it cost because of the provider's cache: less for what was read from it, more for what was
        written. None if nothing was, or if that is not known."""
        return self.usage.cache_saving

    @property
    def metrics(self) -> Metrics:
        """The run in numbers: the same as a `Metrics` that received its events. A resumed run is counted completely, or
        only its last part if it was resumed from a saved result, which has no calls."""
        return metrics_of(self)

    def state(self) -> RunState:
        """The state of the run, which waits, as it ended here."""
        state = RunState(
            self.transcript(),
            self.agent or "main",
            Used(self.rounds, self.requests, self.call_count, self.usage, self.seconds),
            calls=list(self.calls),
            verdicts=list(self.verdicts),
            warnings=dict.fromkeys(self.warnings),
            question=self.question,
            waiting=Waiting(self.pending, self.uncertain, self.decided, dict(self.numbers), self.inner),
            waited=True,
            handoffs=list(self.handoffs),
            background=self.background,
            server_calls=list(self.server_calls),
            emitted=Emitted(next_call=self.next_call, counted=list(self.events)),
        )
        state.continue_counting(self.counters)
        state.counters.attempts, state.counters.fallback_used = self.attempts, self.fallback_used
        return state

    def to_json(self) -> dict[str, Json]:
        """Everything except a typed `output` and `calls`, to be saved; `agent.resume` accepts it."""
        return {
            "version": 2,
            "run": self.run,
            "text": self.text,
            "stop_reason": self.stop_reason,
            "messages": to_json(self.messages),
            "answered": to_json([ToolMessage(self.answered)]) if self.answered else [],
            "pending": [call.id for call in self.pending],
            "uncertain": list(self.uncertain),
            "decided": {
                id: {"edit": decision.arguments} if isinstance(decision, Edit) else {}
                for id, decision in self.decided.items()
            },
            "structured": self.structured,
            "rounds": self.rounds,
            "requests": self.requests,
            "call_count": self.call_count,
            "usage": self.usage.to_json(),
            "cost": self.cost,
            "cache_saving": self.cache_saving,
            "seconds": self.seconds,
            "finish": self.finish,
            "cut_off": self.cut_off,
            "attempts": self.attempts,
            "fallback_used": self.fallback_used,
            "verdicts": [verdict_to_json(verdict) for verdict in self.verdicts],
            "warnings": list(self.warnings),
            "question": to_json([self.question])[0] if self.question is not None else None,
            "numbers": dict(self.numbers),
            "next_call": self.next_call,
            "agent": self.agent,
            "handoffs": [asdict(each) for each in self.handoffs],
            "background": [each.to_json() for each in self.background],
            **({"counters": dict(self.counters)} if self.counters else {}),
            **self._inner_to_json(),
        }

    def _inner_to_json(self) -> dict[str, Json]:
        if not self.inner:
            return {}
        return {
            "inner": {id: result.to_json() for id, result in self.inner.items()},
            "agents": {call.id: call.agent for call in self.pending if call.agent},
        }

    @classmethod
    def from_json(cls, saved: Json) -> Result[Any]:
        """Restores what `to_json` returned, as a dict or as JSON text."""
        try:
            if isinstance(saved, str | bytes):
                saved = json.loads(saved)
            if not isinstance(saved, dict) or "stop_reason" not in saved:
                raise TypeError("it is not what Result.to_json returns")
            fields = cast("dict[str, Any]", saved)
            messages = from_json(fields["messages"])
            last = messages[-1] if messages else None
            calls = last.calls if isinstance(last, Assistant) else ()
            inner = {id: Result.from_json(each) for id, each in fields.get("inner", {}).items()}
            waiting = {call.id: call for call in calls} | _inner_calls(inner, fields.get("agents", {}))
            answered = tuple(r for m in from_json(fields["answered"]) if isinstance(m, ToolMessage) for r in m.results)
            return cls(
                text=fields["text"],
                stop_reason=fields["stop_reason"],
                messages=messages,
                rounds=fields["rounds"],
                requests=fields["requests"],
                usage=Usage(**fields["usage"], cost=_cost(fields), cache_saving=fields.get("cache_saving")),
                cost=_cost(fields),
                seconds=fields["seconds"],
                pending=tuple(waiting[id] for id in fields["pending"] if id in waiting),
                uncertain=tuple(fields.get("uncertain", ())),
                answered=answered,
                decided={
                    id: Edit(saved["edit"]) if "edit" in saved else Allow()
                    for id, saved in fields.get("decided", {}).items()
                },
                output=cast("OutputT", None if fields.get("structured") else fields["text"]),
                structured=fields.get("structured", False),
                finish=fields["finish"],
                cut_off=fields.get("cut_off", False),
                run=fields["run"],
                call_count=fields["call_count"],
                attempts=fields.get("attempts", fields["requests"]),
                fallback_used=fields.get("fallback_used", False),
                verdicts=tuple(_verdict(each) for each in fields.get("verdicts", ())),
                warnings=tuple(fields.get("warnings", ())),
                question=_question(fields.get("question")),
                numbers=fields.get("numbers", {}),
                next_call=fields.get("next_call", 0),
                agent=fields.get("agent", ""),
                handoffs=tuple(read_taken(fields.get("handoffs"))),
                inner=inner,
                background=tuple(BackgroundCall.from_json(each) for each in fields.get("background", ())),
                counters=fields.get("counters", {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"a saved result cannot be read: {type(error).__name__}: {error}") from error

    def transcript(self) -> Transcript:
        """The history from which the run can continue, with the results it already has."""
        transcript = Transcript(self.messages)
        for result in self.answered:
            transcript.answer(result)
        return transcript


def result_of(
    id: str,
    state: RunState,
    ending: Ending,
    usage: Usage,
    seconds: float,
    *,
    cost: float | None,
    output: Any,
    structured: bool,
) -> Result[Any]:
    """The result of a run in this state that ends so."""
    used, counters, waiting = state.used, state.counters, state.waiting
    waits = bool(ending.pending)
    return Result(
        text=ending.text,
        stop_reason=ending.stop_reason,
        messages=state.transcript.messages,
        calls=tuple(state.calls),
        rounds=used.rounds,
        requests=used.requests,
        usage=usage,
        cost=cost,
        seconds=seconds,
        output=output,
        pending=ending.pending,
        uncertain=waiting.uncertain if waits else (),
        answered=state.transcript.answered,
        decided=waiting.decided,
        structured=structured,
        finish=ending.finish,
        cut_off=ending.cut_off,
        run=id,
        call_count=used.calls,
        attempts=counters.attempts,
        fallback_used=counters.fallback_used,
        verdicts=tuple(state.verdicts),
        warnings=tuple(state.warnings),
        question=state.question if ending.stop_reason == "waiting" else None,
        numbers=waiting.numbers if waits else {},
        next_call=state.emitted.next_call,
        agent=state.agent,
        handoffs=tuple(state.handoffs),
        inner=waiting.inner if waits else {},
        background=state.background,
        server_calls=tuple(state.server_calls),
        counters=state.counted() if waits else {},
        events=tuple(state.emitted.counted),
    )


def still_pending(state: RunState) -> set[str]:
    """The ids of the calls that a run waits for and that have no results by now; an agent's calls have none while the
    call that runs it has none."""
    open_calls = {call.id for call in state.transcript.open}
    return {
        call.id
        for call in state.waiting.pending
        if (any(call.id.startswith(f"{each}/") for each in open_calls) if call.agent else call.id in open_calls)
    }


def inside_id(outer: str, id: str) -> str:
    """The id that a call of an agent has in the outer run, where the call `outer` runs that agent."""
    return f"{outer}/{id}"


def _inner_calls(inner: Mapping[str, Result[Any]], agents: Mapping[str, str]) -> dict[str, ToolCall]:
    """The calls that agents wait for which run as tools, by the ids that they have in the outer run."""
    found: dict[str, ToolCall] = {}
    for outer, result in inner.items():
        for call in result.pending:
            id = inside_id(outer, call.id)
            found[id] = replace(call, id=id, agent=agents.get(id, ""))
    return found


def metrics_of(result: Result[Any]) -> Metrics:
    """Built on demand from the events that the run has kept."""
    calls = sum(len(message.calls) for message in result.messages if isinstance(message, Assistant))
    returns = sum(len(message.results) for message in result.messages if isinstance(message, ToolMessage))
    end = RunFinished(
        result.run,
        0,
        0,
        0.0,
        result.text,
        result.stop_reason,
        result.rounds,
        result.requests,
        len(result.calls),
        usage=result.usage.to_json(),
        seconds=result.seconds,
        complete=calls == returns + len(result.answered),
        verdicts=[verdict_to_json(verdict) for verdict in result.verdicts],
        cost=result.cost,
        cache_saving=result.cache_saving,
        cut_off=result.cut_off,
    )
    return Metrics.of([*result.events, end])


def verdict_to_json(verdict: Verdict) -> dict[str, Json]:
    return {**asdict(verdict), "open_calls": list(verdict.open_calls), "left_out": list(verdict.left_out)}


def _verdict(saved: dict[str, Any]) -> Verdict:
    fields: dict[str, Any] = {**saved, **{name: tuple(saved.get(name, ())) for name in ("open_calls", "left_out")}}
    return Verdict(**fields)


def _cost(saved: Mapping[str, Any]) -> float | None:
    """In version 1, an unknown cost was 0."""
    return saved["cost"] if saved.get("version", 1) > 1 else saved["cost"] or None


def _question(saved: Json) -> User | None:
    message = from_json([saved])[0] if saved is not None else None
    return message if isinstance(message, User) else None
