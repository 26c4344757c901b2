"""What there is to count in runs: each thing with its unit, what it is counted by, and its name at Prometheus.

`counting` decides when something counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.trajectory.histogram import NANOSECONDS

What: TypeAlias = Literal[
    "queries",
    "cut_off",
    "rounds",
    "all_rounds",
    "latency",
    "broken_queries",
    "chains_broken",
    "requests",
    "retries",
    "restarts",
    "turns",
    "several_calls",
    "calls",
    "seconds",
    "failures",
    "refused",
    "outside",
    "duplicates",
    "adopted",
    "dropped",
    "uncertain",
    "saved",
    "tokens",
    "estimated",
    "priced",
    "unpriced",
    "cost",
    "cache_saving",
]

COST = 1_000_000_000_000
TOKENS = ("input", "output", "cached", "cache_write", "reasoning")
MOST_TOOLS = 100
OTHER_TOOLS = "(others)"
_LATENCY = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_EXECUTION = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_CALLS = (1, 2, 3, 4, 5, 8, 12, 16, 32, 64)
_ROUNDS = (0, 1, 2, 3, 4, 5, 8, 12, 16, 32)


@dataclass(frozen=True, slots=True)
class Counted:
    """Something that is counted."""

    words: str
    exported: str = ""
    """Its name at Prometheus; empty if it is not exported."""
    label: Literal["", "outcome", "tool", "kind", "size"] = ""
    """By what it is counted. `size`: the label is how large something was, and the amount how often."""
    unit: int = 1
    """How many make one second, or one of a currency."""
    buckets: tuple[float, ...] = ()
    """Of a histogram."""

    @property
    def has_label(self) -> bool:
        return self.label not in ("", "size")

    def value(self, amount: int) -> float:
        return amount if self.unit == 1 else amount / self.unit


COUNTED: dict[What, Counted] = {
    "queries": Counted("Runs that have ended, by how.", "queries", "outcome"),
    "cut_off": Counted("Runs that ended without an answer of the model, by how.", "queries_cut_off", "outcome"),
    "rounds": Counted("Rounds of queries.", "tool_rounds_per_query", "size", buckets=_ROUNDS),
    "all_rounds": Counted("All of them, added up."),
    "latency": Counted(
        "From the start of a query to its answer.", "query_latency_seconds", unit=NANOSECONDS, buckets=_LATENCY
    ),
    "broken_queries": Counted("Queries in which a chain broke.", "tool_chain_broken_queries"),
    "chains_broken": Counted("Responses that broke, and chains left without results.", "tool_chain_broken"),
    "requests": Counted("Requests to models; one that is made again counts once.", "model_requests"),
    "retries": Counted("Requests that were made again.", "model_retries"),
    "restarts": Counted("Requests that were made again because the response broke.", "model_restarts"),
    "turns": Counted("Calls of responses that had any.", "tool_calls_per_turn", "size", buckets=_CALLS),
    "several_calls": Counted("Responses that had more than one call.", "multi_tool_call_count"),
    "calls": Counted("Calls in the messages of models.", "tool_calls", "tool"),
    "seconds": Counted(
        "How long tools ran.", "tool_execution_time_seconds", "tool", unit=NANOSECONDS, buckets=_EXECUTION
    ),
    "failures": Counted("Executions of tools that ended in an error.", "tool_failures", "tool"),
    "refused": Counted("Calls that were answered with an error and without a tool.", "tool_calls_refused", "tool"),
    "outside": Counted("Calls that somebody outside has answered.", "tool_calls_outside", "tool"),
    "duplicates": Counted("Calls that shared the execution of an identical one.", "duplicates_shared", "tool"),
    "adopted": Counted("Calls that took over an execution of a broken response.", "tool_calls_adopted", "tool"),
    "dropped": Counted("Calls of a broken response that did not come again.", "tool_calls_dropped", "tool"),
    "uncertain": Counted("Calls whose outcome is unknown after a crash.", "tool_calls_uncertain", "tool"),
    "saved": Counted("Seconds saved because calls started early.", "early_seconds_saved", "tool", unit=NANOSECONDS),
    "tokens": Counted("Tokens of queries with an answer, by kind.", "model_tokens", "kind"),
    "estimated": Counted("Runs whose tokens are estimated."),
    "priced": Counted("Runs whose cost is known."),
    "unpriced": Counted("Runs whose cost is not known.", "model_unpriced_runs"),
    "cost": Counted("What the runs cost whose cost is known.", "model_cost", unit=COST),
    "cache_saving": Counted("How much less that is because of a cache; may be negative.", unit=COST),
}


class ToolNames(dict[str, None]):
    """A model may invent any number of names: after the first hundred, all others are counted together."""

    def known(self, name: str) -> str:
        if name not in self:
            name = name if len(self) < MOST_TOOLS else OTHER_TOOLS
            self[name] = None
        return name
