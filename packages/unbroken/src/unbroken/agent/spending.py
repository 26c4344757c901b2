"""What the requests of a run use: as the provider reports it, or else estimated by their characters."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.agent.aside import estimate
from unbroken.agent.limits import Account
from unbroken.agent.plan import Plan
from unbroken.agent.run_state import RunState
from unbroken_wires.deltas import Verdict
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import Assistant, Usage
from unbroken_wires.transcript.prefix import Prefix
from unbroken_wires.transcript.shorten import characters


@dataclass(slots=True)
@plain_factories
class Spending:
    """Compares each request with the one before: what the provider had in its cache, and how long the history is."""

    prefix: Prefix = field(default_factory=Prefix)
    """What the last request began with."""
    _cached: int = 0
    """Tokens of the last request that the provider has in its cache."""
    _counted: int = 0
    _characters: int = 0
    """Characters of the agent's instructions and the first `_counted` messages."""

    def answered(
        self, state: RunState, plan: Plan, account: Account, answer: Assistant, reported: Usage | None, verdict: Verdict
    ) -> None:
        """Counts what the last request and its answer used."""
        model, turn = verdict.model or plan.model.name, state.used.requests - 1
        usage = reported or self._estimate(state, plan, answer)
        state.counters.tokens = 0 if usage.estimated else usage.total_tokens
        account.spend_on_request(usage, model, turn, plan.clock)
        missed, self._cached = self._cached - usage.cached_tokens, usage.cached_tokens + usage.cache_write_tokens
        if missed > 0 and self.prefix.changed and not usage.estimated:
            where = f"request {turn + 1}: {self.prefix.changed} changed"
            words = f"{where}, so {missed:,} tokens were not read from the provider's cache again"
            state.warnings[words + _cost_of_missed(missed, account, model, plan)] = None

    def _estimate(self, state: RunState, plan: Plan, answer: Assistant) -> Usage:
        messages = state.transcript.messages
        if not self._counted and plan.system is not None:
            self._characters = characters(plan.system)
        for message in messages[self._counted :]:
            self._characters += characters(message)
        self._counted = len(messages)
        return estimate(self._characters, answer)


def _cost_of_missed(tokens: int, account: Account, model: str, plan: Plan) -> str:
    """The provider had this many tokens in its cache, and the request began otherwise."""
    missed = account.priced(Usage(input_tokens=tokens, cached_tokens=tokens), model, plan.clock)
    return "" if missed.cache_saving is None else f" (${missed.cache_saving:.4f} more)"
