"""Metrics of runs, computed from their events: sums, counts and histograms, no events and no texts.

A `Metrics` is a sink: give it to an agent and read it whenever you like. Times are added up as whole nanoseconds and
costs as millionths of millionths, so that any order and any split gives the same numbers. `counting` finds what there
is to count; here it is added up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from unbroken.errors import UserError
from unbroken.events import Event
from unbroken.trajectory.counted import COST, COUNTED, TOKENS, ToolNames, What
from unbroken.trajectory.counting import COUNTED_EVENTS, EventCounter, Pricing
from unbroken.trajectory.histogram import NANOSECONDS, Histogram
from unbroken_wires.messages import Json
from unbroken_wires.validation import checked

ROUNDS = re.compile(r"queries_with_(\d{1,3})_rounds")
MOST: dict[What, int] = {"rounds": 100, "turns": 1000}
"""The largest number of rounds of a query, and of calls of a turn, that is counted separately."""
_OF_TOOLS: list[What] = [what for what, counted in COUNTED.items() if counted.label == "tool" and what != "seconds"]
V = TypeVar("V")


@dataclass(slots=True)
class ToolMetrics:
    """Of one tool."""

    calls: int = 0
    failures: int = 0
    refused: int = 0
    outside: int = 0
    duplicates: int = 0
    adopted: int = 0
    dropped: int = 0
    uncertain: int = 0
    saved: int = 0
    """Nanoseconds."""
    seconds: Histogram = field(default_factory=Histogram)

    @property
    def executions(self) -> int:
        """How often it ran."""
        return self.seconds.count

    @property
    def failure_rate(self) -> float:
        """The share of its executions that failed; 0 if it never ran."""
        return _share(self.failures, self.executions)

    def to_json(self) -> dict[str, Json]:
        """All its numbers, times in seconds."""
        return {
            "calls": self.calls,
            "executions": self.executions,
            "failures": self.failures,
            "failure_rate": self.failure_rate,
            "refused": self.refused,
            "outside": self.outside,
            "duplicates_shared": self.duplicates,
            "adopted": self.adopted,
            "dropped": self.dropped,
            "uncertain": self.uncertain,
            "early_seconds_saved": self.saved / NANOSECONDS,
            "seconds": self.seconds.to_json(),
        }


class Number(Generic[V]):
    """A number of `Metrics`: how it is computed when it is read."""

    def __init__(self, compute: Callable[[Metrics], V]) -> None:
        self._compute = compute

    @overload
    def __get__(self, metrics: None, owner: type[Metrics]) -> Self: ...
    @overload
    def __get__(self, metrics: Metrics, owner: type[Metrics]) -> V: ...
    def __get__(self, metrics: Metrics | None, owner: type[Metrics]) -> Self | V:
        return self if metrics is None else self._compute(metrics)


def _total(metrics: Metrics, what: What) -> int:
    return sum([*metrics.sums[what].values()])


def _sum(what: What) -> Number[int]:
    return Number(lambda metrics: _total(metrics, what))


def _one(what: What, label: object) -> Number[int]:
    return Number(lambda metrics: metrics.sums[what].get(label, 0))


def _share(part: float, of: int) -> float:
    return part / of if of else 0.0


@checked
class Metrics:
    """`metrics(event)` counts one event, `Metrics.of(events)` many, and `one + other` both. `prices` take precedence
    over the cost in the events. A **query** is a run that has ended, in whatever way; a run that waits for somebody
    outside becomes one when it is resumed and ends, and nothing is counted twice. To add two, each must have received
    its runs from the start to where they ended or waited."""

    def __init__(self, *, prices: Pricing | None = None) -> None:
        self._counter = EventCounter(self._count, prices)
        self._lock = Lock()
        self.sums: dict[What, dict[Any, int]] = {what: {} for what in COUNTED}
        """By label: all that is counted and is no duration."""
        self.outcomes: dict[str, int] = self.sums["queries"]
        """How many queries ended in what way: a stop reason, `failed` or `cancelled`."""
        self.rounds: dict[int, int] = self.sums["rounds"]
        """How many queries had each number of rounds."""
        self.turns: dict[int, int] = self.sums["turns"]
        """How many responses had each number of calls; those without calls are left out."""
        self.latency = Histogram()
        """Of queries that ended in an answer: from the start to the end, without the time in which they waited for
        somebody outside. Those that failed or were cancelled are left out."""
        self._seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._names = ToolNames()

    @classmethod
    def of(cls, events: Iterable[Event], *, prices: Pricing | None = None) -> Self:
        """Counts these events, for example those of a recording. `UserError` if they are still JSON."""
        metrics = cls(prices=prices)
        for event in events:
            if isinstance(event, Mapping):
                raise UserError("Metrics.of(…) counts events, and this is JSON: read it with event_from_json first")
            metrics(event)
        return metrics

    # Queries

    queries = _sum("queries")
    """Runs that have ended: answered, cut off, failed or cancelled."""
    answered: Number[int] = Number(
        lambda each: each.queries - each.cut_off - each.failed - each.outcomes.get("cancelled", 0)
    )
    """Queries that the model answered, also those that answered after a limit: `outcomes` has their stop reasons."""
    cut_off = _sum("cut_off")
    """Queries that ended without an answer of the model, and without an error: it was still calling or writing when a
    limit ended them, or a check refused what it wrote."""
    failed = _one("queries", "failed")
    """Queries that ended in an error."""
    waiting: Number[int] = Number(lambda each: len(each._counter.waiting))
    """Runs that wait for somebody outside; they are not among the queries."""
    unended: Number[int] = Number(lambda each: len(each._counter.active))
    """Runs that have neither ended nor wait: they are active, or their process died."""
    requests = _sum("requests")
    """Requests to a model; a retried request counts once."""
    retries = _sum("retries")
    """How often a request was retried, for whatever reason."""
    restarts = _sum("restarts")
    """How often that was because a response broke, and not because there was none."""
    avg_query_latency: Number[float] = Number(lambda each: each.latency.mean)
    """Mean seconds of the queries that ended in an answer."""
    avg_tool_rounds_per_query: Number[float] = Number(lambda each: _share(_total(each, "all_rounds"), each.queries))
    """Mean rounds of all queries; a round is one assistant message with calls, plus its results."""
    queries_with_2_rounds = _one("rounds", 2)
    """Queries that had two rounds; the same with any other number in the name. `rounds` has them all."""
    tool_chain_broken = _sum("chains_broken")
    """Responses that broke, whether they were retried or not, and histories that were left with calls without results;
    counted when their query has ended."""
    tool_chain_broken_rate: Number[float] = Number(lambda each: _share(_total(each, "broken_queries"), each.queries))
    """The share of queries in which that happened."""

    # Calls

    tool_calls = _sum("calls")
    """Calls in the messages of models, including duplicates, refused calls, and calls that wait."""
    tool_calls_per_turn: Number[float] = Number(lambda each: _share(each.tool_calls, _total(each, "turns")))
    """Mean number of calls of the responses that had any."""
    multi_tool_call_count = _sum("several_calls")
    """Responses that had more than one call."""
    tool_executions: Number[int] = Number(lambda each: each._executions().count)
    """How often a tool ran: once for a call and all its duplicates, once for a call that was adopted, and also for one
    that was dropped."""
    tool_execution_time_total: Number[float] = Number(lambda each: each._executions().seconds)
    """Seconds of all executions added up, also of those that ran side by side."""
    tool_execution_time_max: Number[float] = Number(lambda each: each._executions().max)
    """Seconds of the longest execution."""
    tool_failures = _sum("failures")
    """Executions that ended in an error or a time-out; not dropped ones, which we ended ourselves."""
    tool_failure_rate: Number[float] = Number(lambda each: _share(each.tool_failures, each.tool_executions))
    """The share of executions that failed."""
    refused = _sum("refused")
    """Calls that were answered with an error without running a tool: unknown, cut, denied, over the budget."""
    outside = _sum("outside")
    """Calls that somebody outside has answered: the tools of a client."""
    duplicates_shared = _sum("duplicates")
    """Calls that got the result of an identical one in the same message, and did not run."""
    adopted = _sum("adopted")
    """Calls that continued the execution of the same call in a response that broke."""
    dropped = _sum("dropped")
    """Calls that were cancelled because their response broke and the retry did not contain them."""
    uncertain = _sum("uncertain")
    """Calls that were answered with "outcome unknown": their process died while the tool ran."""
    early_seconds_saved: Number[float] = Number(lambda each: _total(each, "saved") / NANOSECONDS)
    """For each call that started early: the seconds from its start to the end of its response, or to its own end if
    that was first. Dropped calls do not count."""

    # Tokens

    tokens: Number[int] = Number(lambda each: each.input_tokens + each.output_tokens)
    """Input and output, of queries that ended in an answer, and of runs that wait: failed runs do not report them."""
    input_tokens = _one("tokens", "input")
    """What models were sent, including what came from a cache; of the same runs as `tokens`."""
    output_tokens = _one("tokens", "output")
    """What models wrote, reasoning included; of the same runs as `tokens`."""
    tokens_estimated: Number[bool] = Number(lambda each: _total(each, "estimated") > 0)
    """Some provider did not report tokens, so some are estimated."""
    cost: Number[float | None] = Number(lambda each: _total(each, "cost") / COST if _total(each, "priced") else None)
    """What the runs cost whose cost is known: by `prices`, or else as their events report it. None if it is not known
    of any run."""
    unpriced = _sum("unpriced")
    """Runs that used tokens and whose cost is not known; `cost` is without them."""
    cache_saving: Number[float | None] = Number(lambda each: _total(each, "cache_saving") / COST or None)
    """How much less the runs cost because of the provider's cache, as they report it. None if none does."""

    if not TYPE_CHECKING:  # else any name would be one

        def __getattr__(self, name: str) -> int:
            if (named := ROUNDS.fullmatch(name)) is None:
                raise AttributeError(f"there is no metric {name!r}")
            return self.rounds.get(int(named[1]), 0)

    def _executions(self) -> Histogram:
        return sum([*self._seconds.values()], Histogram())

    @property
    def tools(self) -> dict[str, ToolMetrics]:
        """The same by the name of the tool."""
        sums: dict[str, Any] = {
            name: {what: self.sums[what].get(name, 0) for what in _OF_TOOLS} for name in [*self._names]
        }
        return {name: ToolMetrics(**sums[name], seconds=self._seconds.get(name) or Histogram()) for name in sums}

    # Counting

    def __call__(self, event: Event) -> None:
        if type(event) in COUNTED_EVENTS:
            with self._lock:  # agents in several threads may share it
                self._counter(event)

    def _count(self, what: What, amount: int = 1, label: Any = "") -> None:
        if COUNTED[what].label == "tool":
            label = self._names.known(label)
        elif what in MOST:
            label = min(label, MOST[what])
        if what == "seconds":
            self._seconds[label].add(amount)
        elif what == "latency":
            self.latency.add(amount)
        else:
            sums = self.sums[what]
            sums[label] = sums.get(label, 0) + amount
            if not sums[label]:
                del sums[label]

    # All of it

    def __add__(self, other: object) -> Metrics:
        if not isinstance(other, Metrics):
            return NotImplemented
        both = self._copy()
        both += other
        both._counter.prices = both._counter.prices or other._counter.prices
        return both

    def __radd__(self, other: object) -> Metrics:
        return self._copy() if other == 0 else NotImplemented  # `sum` begins with 0

    def __iadd__(self, other: Metrics) -> Self:
        """Takes time in proportion to the other one only."""
        more = other._copy()
        with self._lock:
            self._add(more)
        return self

    def _copy(self) -> Metrics:
        copy = Metrics(prices=self._counter.prices)
        with self._lock:
            copy._add(self)
        return copy

    def _add(self, other: Metrics) -> None:
        for what, sums in other.sums.items():
            for label, amount in sums.items():
                self._count(what, amount, label)
        for name, seconds in other._seconds.items():
            self._seconds[self._names.known(name)] += seconds
        self.latency += other.latency
        self._counter.merge(other._counter)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metrics) and self.to_json() == other.to_json()

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it changes with every event

    def __repr__(self) -> str:
        return (
            f"Metrics(queries={self.queries}, tool_calls={self.tool_calls}, tool_failures={self.tool_failures}, "
            f"avg_query_latency={self.avg_query_latency:.3f}, tokens={self.tokens})"
        )

    def to_json(self) -> dict[str, Json]:
        """Every number under its own name, and below `tools` those of each tool; all at one moment."""
        with self._lock:
            return self._to_json()

    def _to_json(self) -> dict[str, Json]:
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            **{f"queries_with_{n}_rounds": self.rounds.get(n, 0) for n in sorted({*self.rounds, 1, 2})},
            **{f"{kind}_tokens": self.sums["tokens"].get(kind, 0) for kind in TOKENS},
            "tokens_estimated": self.tokens_estimated,
            "outcomes": _sorted(self.outcomes),
            "query_latency": self.latency.to_json(),
            "turns_by_calls": _sorted(self.turns),
            "tools": {name: tool.to_json() for name, tool in sorted(self.tools.items())},
        }


NUMBERS = tuple(
    name
    for name, each in vars(Metrics).items()
    if isinstance(each, Number) and not name.startswith(("queries_with", "input_", "output_", "tokens_"))
)
"""Every metric that is one number, which an alert can watch; also `queries_with_2_rounds` with any number."""


def _sorted(counts: Mapping[Any, int]) -> dict[str, Json]:
    return {str(what): counts[what] for what in sorted(counts)}
