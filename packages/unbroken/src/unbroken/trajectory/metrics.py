"""Metrics of runs, computed from their events: sums, counts and histograms, no events and no texts.

A `Metrics` is a sink: give it to an agent and read it whenever you like. Times are added up as whole nanoseconds and
costs as millionths of millionths, so that any order and any split gives the same numbers. `facts` finds what there is
to count; here it is added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from unbroken.errors import UserError
from unbroken.events import Event
from unbroken.trajectory.facts import (
    COST,
    COUNTED,
    MOST_FAILED,
    NANOSECONDS,
    TOKENS,
    Fact,
    Facts,
    Histogram,
    Pricing,
    Spent,
    remember,
)
from unbroken_wires.messages import Json
from unbroken_wires.validation import checked

MOST_TOOLS = 100
OTHER_TOOLS = "(others)"
"""A model may invent any number of names: after this many, all others are counted together."""
ROUNDS = re.compile(r"queries_with_(\d{1,3})_rounds")
MOST_ROUNDS, MOST_CALLS = 100, 1000
"""The largest number of rounds of a query, and of calls of a turn, that is counted separately."""


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
        return self.failures / self.executions if self.executions else 0.0

    def __add__(self, other: ToolMetrics) -> ToolMetrics:
        return ToolMetrics(*[getattr(self, each.name) + getattr(other, each.name) for each in fields(self)])

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


OF_TOOLS: Mapping[Fact, str] = {
    "call": "calls",
    "failure": "failures",
    "refusal": "refused",
    "outside": "outside",
    "duplicate": "duplicates",
    "adoption": "adopted",
    "drop": "dropped",
    "uncertain": "uncertain",
    "saved": "saved",
}
"""What is counted for each tool, and the field of `ToolMetrics` that counts it."""


@checked
class Metrics:
    """`metrics(event)` counts one event, `Metrics.of(events)` many, and `one + other` both. `prices` take precedence
    over the cost in the events. A **query** is a run that has ended, in whatever way; a run that waits for somebody
    outside becomes one when it is resumed and ends, and nothing is counted twice. To add two, each must have received
    its runs from the start to where they ended or waited."""

    def __init__(self, *, prices: Pricing | None = None) -> None:
        self._facts = Facts(self._take, prices)
        self._lock = Lock()
        self._counts: dict[Fact, int] = {}
        self._tokens: dict[str, int] = {}
        self._rounds_in_all = 0
        self.outcomes: dict[str, int] = {}
        """How many queries ended in what way: a stop reason, `failed` or `cancelled`."""
        self.rounds: dict[int, int] = {}
        """How many queries had each number of rounds."""
        self.turns: dict[int, int] = {}
        """How many responses had each number of calls; those without calls are left out."""
        self.latency = Histogram()
        """Of queries that ended in an answer: from the start to the end, without the time in which they waited for
        somebody outside. Those that failed or were cancelled are left out."""
        self.tools: dict[str, ToolMetrics] = {}

    @classmethod
    def of(cls, events: Iterable[Event], *, prices: Pricing | None = None) -> Self:
        """Counts these events, for example those of a recording. `UserError` if they are still JSON."""
        metrics = cls(prices=prices)
        for event in events:
            if isinstance(event, Mapping):
                raise UserError("Metrics.of(…) counts events, and this is JSON: read it with event_from_json first")
            metrics(event)
        return metrics

    if not TYPE_CHECKING:  # else any name would be one

        def __getattr__(self, name: str) -> int:
            if (named := ROUNDS.fullmatch(name)) is None:
                raise AttributeError(f"there is no metric {name!r}")
            return self.rounds.get(int(named[1]), 0)

    def __call__(self, event: Event) -> None:
        if type(event) in COUNTED:
            with self._lock:  # agents in several threads may share it
                self._facts(event)

    def _take(self, fact: Fact, amount: int, label: str) -> None:
        if counted := OF_TOOLS.get(fact):
            tool = self._tool(label)
            setattr(tool, counted, getattr(tool, counted) + amount)
            return
        match fact:
            case "query":
                _count(self.outcomes, label)
            case "rounds":
                self._rounds_in_all += amount
                _count(self.rounds, min(amount, MOST_ROUNDS))
            case "goes_on":
                self._rounds_in_all -= amount
                _count(self.outcomes, label, -1)
                _count(self.rounds, min(amount, MOST_ROUNDS), -1)
            case "goes_on_broken":
                _count(self._counts, "broken_query", -1)
                _count(self._counts, "chain_broken", -amount)
            case "turn":
                _count(self.turns, min(amount, MOST_CALLS))
            case "latency":
                self.latency.add(amount)
            case "execution":
                self._tool(label).seconds.add(amount)
            case "tokens":
                _count(self._tokens, label, amount)
            case _:
                _count(self._counts, fact, amount)

    def _tool(self, name: str) -> ToolMetrics:
        tool = self.tools.get(name)
        if tool is None:
            known = name if len(self.tools) < MOST_TOOLS else OTHER_TOOLS
            tool = self.tools.setdefault(known, ToolMetrics())
        return tool

    def _all_tools(self, counted: str) -> int:
        return sum(getattr(tool, counted) for tool in [*self.tools.values()])

    # Queries

    @property
    def queries(self) -> int:
        """Runs that have ended: answered, cut off, failed or cancelled."""
        return sum([*self.outcomes.values()])

    @property
    def answered(self) -> int:
        """Queries that the model answered, also those that answered after a limit: `outcomes` has their stop
        reasons."""
        return self.queries - self.cut_off - self.failed - self.outcomes.get("cancelled", 0)

    @property
    def cut_off(self) -> int:
        """Queries that ended without an answer of the model, and without an error: it was still calling or writing
        when a limit ended them, or a check refused what it wrote."""
        return self._counts.get("cut_off", 0)

    @property
    def failed(self) -> int:
        """Queries that ended in an error."""
        return self.outcomes.get("failed", 0)

    @property
    def waiting(self) -> int:
        """Runs that wait for somebody outside; they are not among the queries."""
        return len(self._facts.waiting)

    @property
    def unended(self) -> int:
        """Runs that have neither ended nor wait: they are active, or their process died."""
        return len(self._facts.active)

    @property
    def requests(self) -> int:
        """Requests to a model; a retried request counts once."""
        return self._counts.get("request", 0)

    @property
    def retries(self) -> int:
        """How often a request was retried, for whatever reason."""
        return self._counts.get("retry", 0)

    @property
    def restarts(self) -> int:
        """How often that was because a response broke, and not because there was none."""
        return self._counts.get("restart", 0)

    @property
    def avg_query_latency(self) -> float:
        """Mean seconds of the queries that ended in an answer."""
        return self.latency.mean

    @property
    def avg_tool_rounds_per_query(self) -> float:
        """Mean rounds of all queries; a round is one assistant message with calls, plus its results."""
        return self._rounds_in_all / self.queries if self.queries else 0.0

    @property
    def queries_with_2_rounds(self) -> int:
        """Queries that had two rounds; the same with any other number in the name. `rounds` has them all."""
        return self.rounds.get(2, 0)

    @property
    def tool_chain_broken(self) -> int:
        """Responses that broke, whether they were retried or not, and histories that were left with calls without
        results; counted when their query has ended."""
        return self._counts.get("chain_broken", 0)

    @property
    def tool_chain_broken_rate(self) -> float:
        """The share of queries in which that happened."""
        return self._counts.get("broken_query", 0) / self.queries if self.queries else 0.0

    # Calls

    @property
    def tool_calls(self) -> int:
        """Calls in the messages of models, including duplicates, refused calls, and calls that wait."""
        return self._all_tools("calls")

    @property
    def tool_calls_per_turn(self) -> float:
        """Mean number of calls of the responses that had any."""
        turns = sum([*self.turns.values()])
        return self.tool_calls / turns if turns else 0.0

    @property
    def multi_tool_call_count(self) -> int:
        """Responses that had more than one call."""
        return sum(count for calls, count in [*self.turns.items()] if calls > 1)

    @property
    def tool_executions(self) -> int:
        """How often a tool ran: once for a call and all its duplicates, once for a call that was adopted, and also for
        one that was dropped."""
        return self._all_tools("executions")

    @property
    def tool_execution_time_total(self) -> float:
        """Seconds of all executions added up, also of those that ran side by side."""
        return sum(tool.seconds.total for tool in [*self.tools.values()]) / NANOSECONDS

    @property
    def tool_execution_time_max(self) -> float:
        """Seconds of the longest execution."""
        return max((tool.seconds.longest for tool in [*self.tools.values()]), default=0) / NANOSECONDS

    @property
    def tool_failures(self) -> int:
        """Executions that ended in an error or a time-out; not dropped ones, which we ended ourselves."""
        return self._all_tools("failures")

    @property
    def tool_failure_rate(self) -> float:
        """The share of executions that failed."""
        return self.tool_failures / self.tool_executions if self.tool_executions else 0.0

    @property
    def refused(self) -> int:
        """Calls that were answered with an error without running a tool: unknown, cut, denied, over the budget."""
        return self._all_tools("refused")

    @property
    def outside(self) -> int:
        """Calls that somebody outside has answered: the tools of a client."""
        return self._all_tools("outside")

    @property
    def duplicates_shared(self) -> int:
        """Calls that got the result of an identical one in the same message, and did not run."""
        return self._all_tools("duplicates")

    @property
    def adopted(self) -> int:
        """Calls that continued the execution of the same call in a response that broke."""
        return self._all_tools("adopted")

    @property
    def dropped(self) -> int:
        """Calls that were cancelled because their response broke and the retry did not contain them."""
        return self._all_tools("dropped")

    @property
    def uncertain(self) -> int:
        """Calls that were answered with "outcome unknown": their process died while the tool ran."""
        return self._all_tools("uncertain")

    @property
    def early_seconds_saved(self) -> float:
        """For each call that started early: the seconds from its start to the end of its response, or to its own end if
        that was first. Dropped calls do not count."""
        return self._all_tools("saved") / NANOSECONDS

    # Tokens

    @property
    def tokens(self) -> int:
        """Input and output, of queries that ended in an answer, and of runs that wait: failed runs do not report
        them."""
        return self.input_tokens + self.output_tokens

    @property
    def input_tokens(self) -> int:
        """What models were sent, including what came from a cache; of the same runs as `tokens`."""
        return self._tokens.get("input", 0)

    @property
    def output_tokens(self) -> int:
        """What models wrote, reasoning included; of the same runs as `tokens`."""
        return self._tokens.get("output", 0)

    @property
    def tokens_estimated(self) -> bool:
        """Some provider did not report tokens, so some are estimated."""
        return self._counts.get("estimate", 0) > 0

    @property
    def cost(self) -> float | None:
        """What the runs cost whose cost is known: by `prices`, or else as their events report it. None if it is not
        known of any run."""
        return self._counts.get("cost", 0) / COST if self._counts.get("priced") else None

    @property
    def unpriced(self) -> int:
        """Runs that used tokens and whose cost is not known; `cost` is without them."""
        return self._counts.get("unpriced", 0)

    @property
    def cache_saving(self) -> float | None:
        """How much less the runs cost because of the provider's cache, as they report it. None if none does."""
        return self._counts.get("cache_saving", 0) / COST if "cache_saving" in self._counts else None

    # All of it

    def __add__(self, other: object) -> Metrics:
        if not isinstance(other, Metrics):
            return NotImplemented
        both = self._copy()
        both += other
        both._facts.prices = both._facts.prices or other._facts.prices
        return both

    def __radd__(self, other: object) -> Metrics:
        return self._copy() if other == 0 else NotImplemented  # `sum` begins with 0

    def __iadd__(self, other: Metrics) -> Self:
        """Takes time in proportion to the other one only."""
        more = other._copy()
        theirs = more._facts
        runs = {**theirs.waiting, **theirs.active, **theirs.failed, **theirs.continued}
        with self._lock:
            before = self._facts.only(runs)
            self._add(more)
            for run in runs:
                if run in self._facts.waiting or run in self._facts.active or run in self._facts.failed:
                    for first, second in ((before, theirs), (theirs, before)):
                        if run in second.continued and run not in first.continued:
                            self._merge_resumed(run, first, second)
        return self

    def _copy(self) -> Metrics:
        copy = Metrics(prices=self._facts.prices)
        with self._lock:
            copy._add(self)
        return copy

    def _add(self, other: Metrics) -> None:
        mine, theirs = self._facts, other._facts
        for sums, more in (
            (self._counts, other._counts),
            (self._tokens, other._tokens),
            (self.outcomes, other.outcomes),
            (self.rounds, other.rounds),
            (self.turns, other.turns),
        ):
            _add(sums, more)
        self._rounds_in_all += other._rounds_in_all
        self.latency += other.latency
        for name, tool in other.tools.items():
            known = name if name in self.tools or len(self.tools) < MOST_TOOLS else OTHER_TOOLS
            self.tools[known] = self.tools.get(known, ToolMetrics()) + tool
        for run, spent in theirs.waiting.items():
            remember(mine.waiting, run, spent)
        for run, failed in theirs.failed.items():
            remember(mine.failed, run, deepcopy(failed), MOST_FAILED)
        for run in theirs.continued:
            remember(mine.continued, run, None)
        for run, going in theirs.active.items():
            remember(mine.active, run, deepcopy(going))

    def _merge_resumed(self, run: str, first: Facts, second: Facts) -> None:
        """One received the beginning of a run, the other its continuation, with the tokens of both."""
        if run not in second.active:
            self._facts.active.pop(run, None)
        if run in first.failed:
            self._facts.report_resumed(first.failed[run])
            self._facts.failed.pop(run, None)
            if run in second.failed:
                self._facts.failed[run] = second.failed[run]
        spent = first.waiting.get(run, Spent())
        for kind, tokens in zip(TOKENS, spent.tokens, strict=True):
            _count(self._tokens, kind, -tokens)
        _count(self._counts, "cost", -spent.cost)
        _count(self._counts, "cache_saving", -(spent.saving or 0))
        _count(self._counts, "estimate", -spent.estimated)
        _count(self._counts, "priced", -spent.priced)
        _count(self._counts, "unpriced", -spent.unpriced)
        self._facts.waiting.pop(run, None)
        if run in second.waiting:
            self._facts.waiting[run] = second.waiting[run]

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
        numbers: dict[str, Json] = {name: getattr(self, name) for name in NUMBERS}
        rounds: dict[str, Json] = {
            f"queries_with_{n}_rounds": self.rounds.get(n, 0) for n in sorted({*self.rounds, 1, 2})
        }
        tokens: dict[str, Json] = {f"{kind}_tokens": self._tokens.get(kind, 0) for kind in TOKENS}
        return {
            **numbers,
            **rounds,
            **tokens,
            "tokens_estimated": self.tokens_estimated,
            "outcomes": _sorted(self.outcomes),
            "query_latency": self.latency.to_json(),
            "turns_by_calls": _sorted(self.turns),
            "tools": {name: self.tools[name].to_json() for name in sorted(self.tools)},
        }


NUMBERS = tuple(
    name
    for name, each in vars(Metrics).items()
    if isinstance(each, property) and not name.startswith(("queries_with", "input_", "output_", "tokens_"))
)
"""Every metric that is one number, which an alert can watch; also `queries_with_2_rounds` with any number."""


def _count(counts: dict[Any, int], what: object, amount: int = 1) -> None:
    counts[what] = counts.get(what, 0) + amount
    if not counts[what]:
        del counts[what]


def _add(sums: dict[Any, int], more: Mapping[Any, int]) -> None:
    for what, amount in more.items():
        _count(sums, what, amount)


def _sorted(counts: Mapping[Any, int]) -> dict[str, Json]:
    return {str(what): counts[what] for what in sorted(counts)}
