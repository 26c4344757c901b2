"""The instruments: what is measured of runs, through a meter. The numbers come from `run` and `asking`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from opentelemetry.metrics import Histogram, Meter

from unbroken.messages import Usage

Attributes: TypeAlias = Mapping[str, str | int]

_SECONDS = [0.01 * 2**step for step in range(14)]
_TOKENS = [float(4**step) for step in range(14)]
"""Buckets that the conventions recommend."""
_ROUNDS = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 20.0, 50.0]


class Instruments:
    """Made once for each meter."""

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, description: str, buckets: list[float]) -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

        counter = meter.create_counter
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens that a request used", _TOKENS)
        self._request = histogram("gen_ai.client.operation.duration", "s", "How long a request took", _SECONDS)
        self._first = histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "From a request to the first of its answer", _SECONDS
        )
        self._run = histogram("unbroken.run.duration", "s", "How long a run took", _SECONDS)
        self._rounds = histogram("unbroken.run.rounds", "{round}", "Rounds of calls in a run", _ROUNDS)
        self._tool = histogram("unbroken.tool.duration", "s", "How long a tool ran", _SECONDS)
        self._calls = counter("unbroken.tool.calls", "{call}", "Calls that were answered")
        self._failures = counter("unbroken.tool.failures", "{call}", "Executions that ended in an error")
        self._uncertain = counter("unbroken.tool.uncertain", "{call}", "Calls whose outcome is unknown after a crash")
        self._restarts = counter(
            "unbroken.restarts", "{restart}", "Requests that were made again because the response broke"
        )
        self._saved = counter("unbroken.early.saved", "s", "Seconds that calls ran while their response was written")

    def request_ended(self, seconds: float, first: float | None, usage: Usage, about: Attributes, error: str) -> None:
        about = {"gen_ai.operation.name": "chat", **about}
        self._request.record(seconds, {**about, "error.type": error} if error else about)
        if first is not None:
            self._first.record(first, about)
        if usage.total_tokens:
            self._tokens.record(usage.input_tokens, {**about, "gen_ai.token.type": "input"})
            self._tokens.record(usage.output_tokens, {**about, "gen_ai.token.type": "output"})

    def restarted(self, about: Attributes) -> None:
        self._restarts.add(1, about)

    def call_answered(self, about: Attributes) -> None:
        self._calls.add(1, about)

    def outcome_unknown(self, about: Attributes) -> None:
        self._uncertain.add(1, about)

    def tool_ended(self, ran: float, about: Attributes, error: str, failed: bool) -> None:
        ended = {**about, "error.type": error} if error else about
        if failed:
            self._failures.add(1, ended)
        self._tool.record(ran, ended)

    def started_early(self, saved: float, about: Attributes) -> None:
        if (seconds := round(saved, 6)) > 0:  # a time of ours holds no more
            self._saved.add(seconds, about)

    def run_ended(self, seconds: float, rounds: int | None, about: Attributes, how: Attributes) -> None:
        self._run.record(seconds, {**about, **how})
        if rounds is not None:
            self._rounds.record(rounds, about)
