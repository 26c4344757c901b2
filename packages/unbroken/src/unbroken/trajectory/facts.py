"""What there is to count in the events of runs: each fact has a name, an amount and, if it is one of several, a label.

`Facts` receives events and reports facts as soon as they are certain; `metrics` and `prometheus` add them up. Nothing
that was reported is taken back, so a counter that only increases can hold it, with one exception: a query that failed
and is resumed. Little is kept meanwhile: for each active run a `RunView` of its current turn, and for each run that
waits, and some that failed, the tokens that were reported.

`Histogram` counts durations in fixed steps of two significant digits, in whole nanoseconds, so that sums are the same
in any order. There are at most some 900 steps, so a histogram does not grow with what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

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
from unbroken.trajectory.line_checks import count
from unbroken_wires.messages import Json, Usage

NANOSECONDS = 1_000_000_000
_SHORTEST, _LONGEST = 10_000, 1_000_000 * NANOSECONDS
"""Shorter and longer durations are counted as these limits."""


def nanoseconds(seconds: float) -> int:
    return round(max(seconds, 0.0) * NANOSECONDS)  # a clock may have been set back


@dataclass(slots=True)
class Histogram:
    count: int = 0
    total: int = 0
    """Nanoseconds, as `longest`."""
    longest: int = 0
    steps: dict[int, int] = field(default_factory=dict[int, int])
    """By the upper end of each step, which belongs to it: how many are in it."""

    def add(self, duration: int) -> None:
        self.count += 1
        self.total += duration
        self.longest = max(self.longest, duration)
        step = _step(duration)
        self.steps[step] = self.steps.get(step, 0) + 1

    def __add__(self, other: Histogram) -> Histogram:
        steps = dict(self.steps)
        for step, times in other.steps.items():
            steps[step] = steps.get(step, 0) + times
        return Histogram(self.count + other.count, self.total + other.total, max(self.longest, other.longest), steps)

    @property
    def mean(self) -> float:
        """Seconds; 0 if there was none."""
        return self.total / self.count / NANOSECONDS if self.count else 0.0

    @property
    def seconds(self) -> float:
        return self.total / NANOSECONDS

    @property
    def max(self) -> float:
        return self.longest / NANOSECONDS

    def quantile(self, share: float) -> float:
        """The seconds that this share of the durations did not exceed: exact, or at most a tenth too high."""
        wanted = max(ceil(share * self.count), 1)
        for step in sorted(self.steps):
            wanted -= self.steps[step]
            if wanted <= 0:
                return min(step, self.longest) / NANOSECONDS
        return 0.0

    def cumulative(self, bounds: Iterable[float]) -> list[int]:
        """How many took at most each bound in seconds: exact if a bound has two significant digits."""
        ends = [nanoseconds(bound) for bound in bounds]
        return [sum(count for step, count in self.steps.items() if step <= end) for end in ends]

    def to_json(self) -> dict[str, Json]:
        return {
            "count": self.count,
            "seconds": self.seconds,
            "mean": self.mean,
            "p50": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "max": self.max,
            "steps": [[step / NANOSECONDS, self.steps[step]] for step in sorted(self.steps)],
        }


def _step(duration: int) -> int:
    duration = min(max(duration, _SHORTEST), _LONGEST)
    width = int(10 ** (len(str(duration)) - 2))
    return -(-duration // width) * width


Fact: TypeAlias = Literal[
    "query",  # one has ended; the label is its outcome: a stop reason, `failed` or `cancelled`
    "cut_off",  # one that ended without an answer of the model; the label is again its outcome
    "rounds",  # how many it had
    "latency",  # nanoseconds that it took, if it ended in an answer
    "broken_query",  # one in which a chain broke
    "chain_broken",  # responses that broke, and chains left without results, in one that has ended
    "goes_on",  # a failed query was resumed; the label was its outcome, the amount its rounds
    "goes_on_broken",  # the same, if its chain had broken: how often
    "request",
    "retry",  # a request is retried
    "restart",  # the same, because the response broke
    "turn",  # how many calls were in a response that had some
    "call",  # of a tool, which is the label of this and all that follow up to `saved`
    "execution",  # nanoseconds that a tool ran
    "failure",
    "refusal",  # answered without a tool
    "outside",  # answered by somebody else
    "duplicate",
    "adoption",
    "drop",
    "uncertain",  # its process died while the tool ran, and the outcome is unknown
    "saved",  # nanoseconds that were saved because a call started early
    "tokens",  # of a kind
    "estimate",  # one run whose tokens are estimated
    "priced",  # one run whose cost is known
    "unpriced",  # one that used tokens, and whose cost is not known
    "cost",  # in millionths of a millionth
    "cache_saving",  # the same: how much less it was because of a cache; may be negative
]

Tell: TypeAlias = Callable[[Fact, int, str], None]

NO_RESPONSE = frozenset({"limited", "unavailable", "unreachable", "unanswered", "refused", "too_long"})
"""Kinds of verdicts where nothing broke, because there was nothing."""

TOKENS = ("input", "output", "cached", "cache_write", "reasoning")
COST = 1_000_000_000_000
MOST_RUNS = 10_000
"""How many runs that are active or wait, or were begun elsewhere, are remembered."""
MOST_FAILED = 100
"""How many failed runs are remembered: they may be resumed from their recordings."""

_GIVEN_UP = frozenset({"CancelledError", "KeyboardInterrupt", "GeneratorExit", "SystemExit", "ClientGone"})


class Pricing(Protocol):
    """What tokens cost: `Prices` is one."""

    def of(self, usage: Usage) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Spent:
    """What was reported of a run that waits."""

    tokens: tuple[int, ...] = (0,) * len(TOKENS)
    estimated: int = 0
    priced: int = 0
    unpriced: int = 0
    cost: int = 0
    rounds: int = 0
    saving: int | None = None


@dataclass(slots=True)
class Failed:
    """What was reported of a run that failed."""

    outcome: str
    rounds: int
    broken: int
    view: RunView


class Facts:
    def __init__(self, tell: Tell, prices: Pricing | None = None) -> None:
        self._tell = tell
        self.prices = prices
        self._last: Event | None = None
        self.active: dict[str, RunView] = {}
        """The current turn of each active run."""
        self.waiting: dict[str, Spent] = {}
        """Runs that wait for somebody outside, until they are resumed."""
        self.failed: dict[str, Failed] = {}
        self.continued: dict[str, None] = {}
        """Runs whose beginning another `Facts` received: the tokens that it reported are included in ours."""

    def __call__(self, event: Event) -> None:
        take = self.TAKES.get(type(event))
        if take is None or event == self._last:  # two sinks may share one `Facts`
            return
        self._last = event
        take(self, event)

    def only(self, runs: Iterable[str]) -> Facts:
        """What is known of these runs."""
        known = Facts(self._tell, self.prices)
        for mine, theirs in (
            (known.active, self.active),
            (known.waiting, self.waiting),
            (known.failed, self.failed),
            (known.continued, self.continued),
        ):
            mine |= {run: theirs[run] for run in runs if run in theirs}
        return known

    def _run(self, event: Event) -> RunView:
        return self.active.get(event.run) or remember(self.active, event.run, RunView())

    def _started(self, event: RunStarted) -> None:
        failed = self.failed.pop(event.run, None)
        if failed is None or event.seq == 0:  # another run of the same id
            self._run(event)
        else:
            remember(self.active, event.run, failed.view)
            self.report_resumed(failed)

    def report_resumed(self, failed: Failed) -> None:
        self._tell("goes_on", failed.rounds, failed.outcome)
        if failed.broken:
            self._tell("goes_on_broken", failed.broken, "")

    def _requested(self, event: RequestSent) -> None:
        view = self._run(event)
        known = view.requests
        view.feed(event)
        view.forget_turns()
        if view.requests > known:  # else its process died in the middle, and its events are repeated
            self._tell("request", 1, "")

    def _retried(self, event: RequestRetried) -> None:
        view = self._run(event)
        if any((event.turn, event.attempt) == (each.turn, each.attempt) for each in view.retries):
            return
        view.feed(event)
        self._tell("retry", 1, "")
        if event.kind not in NO_RESPONSE:
            self._tell("restart", 1, "")

    def _detected(self, event: ToolCallsDetected) -> None:
        view = self._run(event)
        turn = view.turn(event.turn)
        if turn.detected is not None:
            return
        view.feed(event)
        self._tell("turn", event.count, "")
        for name in event.names:
            self._tell("call", 1, name)
        for call in turn.calls:
            if call.early:
                self._tell_saved(call)

    def _call_started(self, event: CallStarted) -> None:
        self._run(event).feed(event)

    def _call_backgrounded(self, event: CallBackgrounded) -> None:
        self._run(event).feed(event)

    def _call_adopted(self, event: CallAdopted) -> None:
        view = self._run(event)
        view.feed(event)
        if _took_over(view, view.by_number[event.call]):
            self._tell("adoption", 1, event.name)

    def _call_dropped(self, event: CallDropped) -> None:
        view = self._run(event)
        view.feed(event)
        if view.by_number[event.call].started is not None:
            self._tell("drop", 1, event.name)

    def _call_finished(self, event: CallFinished) -> None:
        view, tool, took = self._run(event), event.name, nanoseconds(event.seconds)
        known = view.by_number.get(event.call)
        told = known is not None and known.outcome is not None
        if known is not None and told and not _took_over(view, known):
            return  # it finished before its process died, and the event is repeated
        view.feed(event)
        call = view.by_number[event.call]
        elsewhere = call.adopted is not None and call.adopted not in view.by_number
        if call.response_broke and call.started is not None:  # no call has adopted it, and it is dropped next
            self._tell("execution", took, tool)
        elif event.outcome == "unknown":
            self._tell("uncertain", 1, tool)
        elif event.outcome == "cached" or (event.outcome != "not_executed" and event.duplicate_of):
            self._tell("duplicate", 1, tool)
        elif event.outcome == "not_executed" or (call.started is None and not elsewhere):
            self._tell("refusal" if event.error else "outside", 1, tool)
        else:
            if not told:
                self._tell("execution", took, tool)
                if failed(event):
                    self._tell("failure", 1, tool)
            self._tell_saved(call)

    def _tell_saved(self, call: CallView) -> None:
        if call.saved is not None:
            self._tell("saved", nanoseconds(call.saved), call.name)

    def _finished(self, event: RunFinished) -> None:
        view = self.active.pop(event.run, None) or RunView()
        before = self.waiting.pop(event.run, None)
        if before is None and event.requests > view.requests:
            remember(self.continued, event.run, None)
        spent = self._spent(event)
        self._tell_spent(before or Spent(), spent)
        if event.stop_reason == "waiting":
            remember(self.waiting, event.run, spent)
            return
        self._tell("latency", nanoseconds(event.seconds), "")
        if event.cut_off:
            self._tell("cut_off", 1, event.stop_reason)
        self._ended(event.stop_reason, event.rounds, _broken(view, event.verdicts) + (not event.complete))

    def _failed(self, event: RunFailed) -> None:
        view = self.active.pop(event.run, None) or RunView()
        before = self.waiting.pop(event.run, None) or Spent()  # nothing more is known about its tokens
        outcome = "cancelled" if event.error in _GIVEN_UP else "failed"
        view.rounds += before.rounds
        broken = _broken(view, event.verdicts)
        self._ended(outcome, view.rounds, broken)
        remember(self.failed, event.run, Failed(outcome, view.rounds, broken, view), MOST_FAILED)

    def _ended(self, outcome: str, rounds: int, broken: int) -> None:
        self._tell("query", 1, outcome)
        self._tell("rounds", rounds, "")
        if broken:
            self._tell("broken_query", 1, "")
            self._tell("chain_broken", broken, "")

    def _spent(self, event: RunFinished) -> Spent:
        # A recording may come from anywhere.
        tokens = tuple(max(count(event.usage.get(f"{kind}_tokens")), 0) for kind in TOKENS)
        input, output, cached, written, reasoning = tokens
        usage = Usage(
            input,
            output,
            cached,
            written,
            reasoning,
            estimated=bool(event.usage.get("estimated")),
            web_searches=max(count(event.usage.get("web_searches")), 0),
            server_calls=max(count(event.usage.get("server_calls")), 0),
        )
        cost = self.prices.of(usage) if self.prices is not None else event.cost
        estimated, saving = int(usage.estimated), _millionths(event.cache_saving)
        if cost is None or not isfinite(cost * COST):
            return Spent(tokens, estimated, 0, int(usage.total_tokens > 0), 0, event.rounds, saving)
        return Spent(tokens, estimated, 1, 0, round(max(cost, 0.0) * COST), event.rounds, saving)

    def _tell_spent(self, before: Spent, now: Spent) -> None:
        for kind, told, amount in zip(TOKENS, before.tokens, now.tokens, strict=True):
            if amount > told:
                self._tell("tokens", amount - told, kind)
        if now.estimated > before.estimated:
            self._tell("estimate", 1, "")
        if now.priced > before.priced:
            self._tell("priced", 1, "")
        if now.unpriced > before.unpriced:
            self._tell("unpriced", 1, "")
        if now.cost > before.cost:
            self._tell("cost", now.cost - before.cost, "")
        if now.saving is not None:
            self._tell("cache_saving", now.saving - (before.saving or 0), "")

    TAKES: ClassVar[dict[type[Event], Callable[[Facts, Any], None]]] = {
        RunStarted: _started,
        RequestSent: _requested,
        RequestRetried: _retried,
        ToolCallsDetected: _detected,
        CallStarted: _call_started,
        CallBackgrounded: _call_backgrounded,
        CallFinished: _call_finished,
        CallAdopted: _call_adopted,
        CallDropped: _call_dropped,
        RunFinished: _finished,
        RunFailed: _failed,
    }


def _millionths(amount: object) -> int | None:
    """Of a millionth. None if it is no amount: a recording may come from anywhere."""
    return round(amount * COST) if isinstance(amount, float) and isfinite(amount * COST) else None


COUNTED = frozenset(Facts.TAKES)
"""The events that count. Most do not: they are pieces of text."""

COUNTED_IN_RUN = COUNTED - {RunStarted, RunFinished, RunFailed}
"""The same, without the start and the end of a run."""

K = TypeVar("K")
V = TypeVar("V")


def remember(kept: dict[K, V], key: K, value: V, most: int = MOST_RUNS) -> V:
    """Keeps the value; drops the oldest if there are too many."""
    found = kept.setdefault(key, value)
    if len(kept) > most:
        del kept[next(iter(kept))]
    return found


def failed(event: CallFinished) -> bool:
    """Did its tool run and fail? A call that we ended ourselves did not."""
    return event.outcome in ("failed", "retry", "timed_out") and not event.duplicate_of


def _took_over(view: RunView, call: CallView) -> bool:
    """Does the call continue an execution of a response that broke?"""
    before = view.by_number.get(call.adopted) if call.adopted is not None else None
    return before is not None and before.response_broke and before.started is not None


def _broken(view: RunView, verdicts: Iterable[Mapping[str, Json]]) -> int:
    """How many responses broke: those reported at the end of the run, and those seen in events only."""
    found = [
        (verdict.get("turn"), verdict.get("attempt"))
        for verdict in verdicts
        if verdict.get("kind") not in (*NO_RESPONSE, "whole")
    ]
    retried = [(each.turn, each.attempt) for each in view.retries if each.kind not in NO_RESPONSE]
    return len(found) + sum(each not in found for each in retried)
