"""Counts what happens in runs, from their events: the only place that knows when something counts.

`counted` lists what there is to count. `EventCounter` receives events and reports each of these as soon as it is
certain; `metrics`, `prometheus` and `otel` add them up. Only what a query told when it failed is taken back, if it is
resumed. Little is kept meanwhile: for each active run a `RunView` of its current turn, and for each run that waits, and
some that failed, what was reported of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from unbroken.events import (
    CallAdopted,
    CallBackgrounded,
    CallDropped,
    CallFinished,
    CallStarted,
    Event,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolCallsDetected,
)
from unbroken.run_view import CallView, RunView
from unbroken.trajectory.counted import COST, TOKENS, What
from unbroken.trajectory.histogram import nanoseconds
from unbroken.trajectory.line_checks import count
from unbroken_wires.messages import Json, Usage


class Add(Protocol):
    """Receives what is counted. The amount is in the unit of `COUNTED`, and negative if it is taken back."""

    def __call__(self, what: What, amount: int = 1, label: Any = "") -> None: ...


class Pricing(Protocol):
    """What tokens cost: `Prices` is one."""

    def of(self, usage: Usage) -> float | None: ...


NO_RESPONSE = frozenset({"limited", "unavailable", "unreachable", "unanswered", "refused", "too_long"})
"""Kinds of verdicts where nothing broke, because there was nothing."""
MOST_RUNS = 10_000
"""How many runs that are active or wait, or were begun elsewhere, are remembered."""
MOST_FAILED = 100
"""How many failed runs are remembered: they may be resumed from their recordings."""

_GIVEN_UP = frozenset({"CancelledError", "KeyboardInterrupt", "GeneratorExit", "SystemExit", "ClientGone"})

Told: TypeAlias = dict[tuple[What, Any], int]
"""Amounts that were reported, by what and label."""


@dataclass(slots=True)
class Paused:
    """What was reported of a run that waits or failed."""

    told: Told
    rounds: int
    view: RunView | None = None
    """Of a run that failed."""


class EventCounter:
    def __init__(self, add: Add, prices: Pricing | None = None) -> None:
        self._add = add
        self.prices = prices
        self.last = Event("", 0, -1, 0.0)
        """The event that is being counted."""
        self.active: dict[str, RunView] = {}
        """The current turn of each active run, and the one before."""
        self.waiting: dict[str, Paused] = {}
        """Runs that wait for somebody outside, until they are resumed."""
        self.failed: dict[str, Paused] = {}
        self.continued: dict[str, None] = {}
        """Runs whose beginning another counter received: the tokens that it reported are included in ours."""
        self._known: tuple[dict[str, Any], ...] = self.active, self.waiting, self.failed, self.continued

    def __call__(self, event: Event) -> None:
        counts = self.COUNTS.get(type(event))
        if counts is not None and (event.seq != self.last.seq or event != self.last):  # two sinks may share a counter
            self.last = event
            counts(self, event)

    def view(self, event: Event) -> RunView:
        """The current turn of its run."""
        return self.active.get(event.run) or remember(self.active, event.run, RunView())

    def _started(self, event: RunStarted) -> None:
        failed = self.failed.pop(event.run, None)
        if event.seq == 0:  # another run of the same id
            self.active.pop(event.run, None)
        elif failed is not None and failed.view is not None:
            remember(self.active, event.run, failed.view)
            self._report(failed.told, -1)
        self.view(event)

    def _report(self, told: Told, sign: int = 1) -> None:
        """With the sign -1 it is taken back."""
        for (what, label), amount in told.items():
            self._add(what, sign * amount, label)

    def _requested(self, event: RequestSent) -> None:
        view = self.view(event)
        known = view.requests
        while view.turns and view.turns[-1].number > event.turn:  # its process died before that one was recorded
            del view.turns[-1]
            view.requests -= 1
        view.forget_turns()
        view.feed(event)
        if view.requests != known:  # else its process died in the middle, and its events are repeated
            self._add("requests", view.requests - known)

    def _retried(self, event: RequestRetried) -> None:
        view = self.view(event)
        if any((event.turn, event.attempt) == (each.turn, each.attempt) for each in view.retries):
            return
        view.feed(event)
        self._add("retries")
        if event.kind not in NO_RESPONSE:
            self._add("restarts")

    def _detected(self, event: ToolCallsDetected) -> None:
        view = self.view(event)
        turn = view.turn(event.turn)
        if turn.detected is not None:
            return
        view.feed(event)
        self._add("turns", label=event.count)
        if event.count > 1:
            self._add("several_calls")
        for name in event.names:
            self._add("calls", label=name)
        for call in turn.calls:
            if call.early:
                self._add_saved(call)

    def _call_changed(self, event: CallStarted | CallBackgrounded) -> None:
        self.view(event).feed(event)

    def _call_adopted(self, event: CallAdopted) -> None:
        view = self.view(event)
        view.feed(event)
        if _took_over(view, view.by_number[event.call]):
            self._add("adopted", label=event.name)

    def _call_dropped(self, event: CallDropped) -> None:
        view = self.view(event)
        view.feed(event)
        if view.by_number[event.call].started is not None:
            self._add("dropped", label=event.name)

    def _call_finished(self, event: CallFinished) -> None:
        view, tool = self.view(event), event.name
        known = view.by_number.get(event.call)
        told = known is not None and known.outcome is not None
        if known is not None and told and not _took_over(view, known):
            return  # it finished before its process died, and the event is repeated
        view.feed(event)
        call = view.by_number[event.call]
        before = view.before(call)
        elsewhere = call.adopted is not None and before is None
        if call.interrupted:  # no call has adopted it, and it is dropped next
            self._add("seconds", nanoseconds(event.seconds), tool)
        elif event.outcome == "unknown":
            self._add("uncertain", label=tool)
        elif event.outcome == "cached" or (event.outcome != "not_executed" and event.duplicate_of):
            self._add("duplicates", label=tool)
        elif event.outcome == "not_executed" or (call.started is None and not elsewhere):
            if before is None or before.outcome != "not_executed":  # else it was refused before its process died
                self._add("refused" if event.error else "outside", label=tool)
        else:
            if not told:
                self._add("seconds", nanoseconds(event.seconds), tool)
                if event.outcome in ("failed", "retry", "timed_out"):  # we have ended others ourselves
                    self._add("failures", label=tool)
            self._add_saved(call)

    def _add_saved(self, call: CallView) -> None:
        if call.saved is not None:
            self._add("saved", nanoseconds(call.saved), call.name)

    def _finished(self, event: RunFinished) -> None:
        view = self.active.pop(event.run, None) or RunView()
        before = self.waiting.pop(event.run, None)
        if before is None and event.requests > view.requests:
            remember(self.continued, event.run, None)
        told = before.told if before is not None else {}
        spent = self._spent(event)
        for (what, label), amount in spent.items():
            more = amount - told.get((what, label), 0)
            if more > 0 or what == "cache_saving":
                self._add(what, more, label)
        if event.stop_reason == "waiting":
            remember(self.waiting, event.run, Paused(spent, event.rounds))
            return
        self._add("latency", nanoseconds(event.seconds))
        if event.cut_off:
            self._add("cut_off", label=event.stop_reason)
        self._ended(event.stop_reason, event.rounds, _broken(view, event.verdicts) + (not event.complete))

    def _failed(self, event: RunFailed) -> None:
        view = self.active.pop(event.run, None) or RunView()
        if (before := self.waiting.pop(event.run, None)) is not None:  # nothing more is known about its tokens
            view.rounds += before.rounds
        outcome = "cancelled" if event.error in _GIVEN_UP else "failed"
        told = self._ended(outcome, view.rounds, _broken(view, event.verdicts))
        remember(self.failed, event.run, Paused(told, view.rounds, view), MOST_FAILED)

    def _ended(self, outcome: str, rounds: int, broken: int) -> Told:
        told: Told = {("queries", outcome): 1, ("rounds", rounds): 1, ("all_rounds", ""): rounds}
        if broken:
            told |= {("broken_queries", ""): 1, ("chains_broken", ""): broken}
        self._report(told)
        return told

    def _spent(self, event: RunFinished) -> Told:
        # A recording may come from anywhere.
        numbers: dict[str, Any] = {name: max(count(event.usage.get(name)), 0) for name in _USED}
        usage = Usage(**numbers, estimated=bool(event.usage.get("estimated")))
        told: Told = {("tokens", kind): numbers[f"{kind}_tokens"] for kind in TOKENS}
        told["estimated", ""] = int(usage.estimated)
        cost = self.prices.of(usage) if self.prices is not None else event.cost
        if cost is None or not isfinite(cost * COST):
            told["unpriced", ""] = int(usage.total_tokens > 0)
        else:
            told |= {("priced", ""): 1, ("cost", ""): round(max(cost, 0.0) * COST)}
        saving = event.cache_saving
        if isinstance(saving, float) and isfinite(saving * COST):
            told["cache_saving", ""] = round(saving * COST)
        return told

    def merge(self, other: EventCounter) -> None:
        """Takes over what the other one knows. If one has received the beginning of a run and the other how it
        continued, with the tokens of both, what was reported of the beginning is taken back."""
        for run in {run for known in other._known for run in known}:
            if (run in self.continued) != (run in other.continued):
                first = self if run in other.continued else other
                first.active.pop(run, None)
                for paused in (first.waiting.pop(run, None), first.failed.pop(run, None)):
                    if paused is not None:
                        self._report(paused.told, -1)
        for mine, theirs, most in zip(self._known, other._known, _MOST, strict=True):
            for run, known in theirs.items():
                remember(mine, run, deepcopy(known), most)

    COUNTS: ClassVar[dict[type[Event], Callable[[EventCounter, Any], None]]] = {
        RunStarted: _started,
        RequestSent: _requested,
        RequestRetried: _retried,
        ToolCallsDetected: _detected,
        CallStarted: _call_changed,
        CallBackgrounded: _call_changed,
        CallFinished: _call_finished,
        CallAdopted: _call_adopted,
        CallDropped: _call_dropped,
        RunFinished: _finished,
        RunFailed: _failed,
    }


_USED = (*(f"{kind}_tokens" for kind in TOKENS), "web_searches", "server_calls")
_MOST = (MOST_RUNS, MOST_RUNS, MOST_FAILED, MOST_RUNS)

COUNTED_EVENTS = frozenset(EventCounter.COUNTS)
"""Most events do not count: they are pieces of text."""
COUNTED_IN_RUN = COUNTED_EVENTS - {RunStarted, RunFinished, RunFailed}
"""The same, without the start and the end of a run."""

K = TypeVar("K")
V = TypeVar("V")


def remember(kept: dict[K, V], key: K, value: V, most: int = MOST_RUNS) -> V:
    """Keeps the value; drops the oldest if there are too many."""
    found = kept.setdefault(key, value)
    if len(kept) > most:
        del kept[next(iter(kept))]
    return found


def _took_over(view: RunView, call: CallView) -> bool:
    """Does the call continue an execution of a response that broke?"""
    before = view.before(call)
    return before is not None and before.interrupted


def _broken(view: RunView, verdicts: Iterable[Mapping[str, Json]]) -> int:
    """How many responses broke: those reported at the end of the run, and those seen in events only."""
    found = [
        (verdict.get("turn"), verdict.get("attempt"))
        for verdict in verdicts
        if verdict.get("kind") not in (*NO_RESPONSE, "whole")
    ]
    retried = [(each.turn, each.attempt) for each in view.retries if each.kind not in NO_RESPONSE]
    return len(found) + sum(each not in found for each in retried)
