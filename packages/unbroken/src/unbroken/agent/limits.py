"""How far a run may go, and how far it has gone. Limits do not raise: they end in a final request and an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any, Literal, TypeAlias

from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.models.model import Model
from unbroken.models.pricing import EXTRA, ModelPrices, find_prices, has_list, is_loaded, load_prices
from unbroken.trajectory.recording import Recording
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import Json, Message, ToolMessage, Usage
from unbroken_wires.validation import checked

NOTHING_USED = Usage()

StopReason: TypeAlias = Literal[
    "answered",
    "round_limit",
    "call_limit",
    "token_limit",
    "time_limit",
    "cost_limit",
    "loop",
    "tool_failure",
    "vetoed",
    "waiting",
]


@checked
@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in any currency: `Limits.cost` is in the same one. They are used for everything that
    the run spends, in place of the price list."""

    input: float
    output: float
    cached: float | None = None
    """Price of input from the provider's cache; defaults to the price of input."""
    cache_write: float | None = None
    web_search: float | None = None
    """Price of a thousand searches that the provider runs."""
    server_call: float | None = None
    """Price of a thousand other calls of its tools that it charges for (`Usage.server_calls`)."""

    def __post_init__(self) -> None:
        for kind in ("input", "output", "cached", "cache_write", "web_search", "server_call"):
            if (getattr(self, kind) or 0) < 0:
                raise UserError(f"Prices({kind}={getattr(self, kind)}): a price is 0 or more")

    def of(self, usage: Usage) -> float | None:
        """The cost of these tokens. Input that was read from or written to a cache has its own price, if given. None if
        the provider ran tools of its own, and they have no price here."""
        if (usage.web_searches and self.web_search is None) or (usage.server_calls and self.server_call is None):
            return None
        calls = usage.web_searches * (self.web_search or 0) + usage.server_calls * (self.server_call or 0)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        fresh = max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0)
        spent = fresh * self.input + usage.cached_tokens * cached + usage.cache_write_tokens * written
        return (spent + usage.output_tokens * self.output) / 1_000_000 + calls / 1000

    def cache_saving(self, usage: Usage) -> float:
        """How much less these tokens cost than they would have without a cache."""
        cached = 0.0 if self.cached is None else self.input - self.cached
        written = 0.0 if self.cache_write is None else self.input - self.cache_write
        return (usage.cached_tokens * cached + usage.cache_write_tokens * written) / 1_000_000


@checked
@dataclass(frozen=True, slots=True)
class Limits:
    """A round is one assistant message with calls, plus their results. After `rounds` of them (or at another limit)
    comes one final request in which nothing can be called, with its own `final_seconds`. With `most_rounds` the limit
    grows up to that, as long as the results of the last round contain a line that no result before had."""

    rounds: int | None = 16
    calls: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    final_seconds: float = 60.0
    prices: Prices | None = None
    most_rounds: int | None = None

    def __post_init__(self) -> None:
        for limit in _LIMITS:
            value = getattr(self, limit)
            if value is not None and value < 0:
                raise UserError(f"Limits({limit}={value}): a limit is 0 or more, or None for none")
        if self.most_rounds is not None and (self.rounds is None or self.most_rounds < self.rounds):
            raise UserError(f"Limits(rounds={self.rounds}, most_rounds={self.most_rounds}): expected `rounds`, or more")


_LIMITS = tuple(each.name for each in fields(Limits) if each.name != "prices")
"""Those that are numbers."""


@dataclass(slots=True)
class Used:
    """What a run has used so far."""

    rounds: int = 0
    requests: int = 0
    calls: int = 0
    usage: Usage = NOTHING_USED
    seconds: float = 0.0
    """Seconds of its earlier parts, if it was resumed."""


@dataclass(slots=True)
@plain_factories
class Account:
    """Compares what a run uses with its limits. A resumed run continues counting."""

    limits: Limits
    used: Used = field(default_factory=Used)
    started: float = 0.0
    extra: float = 0.0
    """Seconds beyond the limit to finish the round in which a resumed run was cut off."""
    request_cost: float | None = None
    """What the last request cost, failed attempts included. None if that is not known, or if it was made in an earlier
    part of the run."""
    round_cost: float | None = None
    """The same with its calls: an agent as a tool has a cost."""
    recorded: dict[int, float | None] | None = None
    """In a replay: what the request of each turn cost."""
    outer: Account | None = None
    """The account of the run that runs this one as a tool: its limits hold here too."""
    on_spend: Callable[[Usage], None] | None = None
    """Counts there what this run uses, with its cost."""
    on_calls: Callable[[int], None] | None = None
    """Counts there the calls of this run."""
    _listed: dict[str, ModelPrices | None] = field(default_factory=dict[str, "ModelPrices | None"])
    """The prices of the models that have answered."""

    def start(self, clock: Clock) -> None:
        self.started = clock.elapsed()

    def elapsed(self, clock: Clock) -> float:
        return round(self.used.seconds + clock.elapsed() - self.started, 9)

    @property
    def deadline(self) -> float | None:
        """In the clock's own time."""
        limit = self.limits.seconds
        return None if limit is None else self.started + limit + self.extra - self.used.seconds

    @property
    def calls_left(self) -> int | None:
        left = None if self.limits.calls is None else max(self.limits.calls - self.used.calls, 0)
        if self.outer is None or (outside := self.outer.calls_left) is None:
            return left
        return outside if left is None else min(left, outside)

    def take_calls(self, count: int) -> None:
        """Counts the calls of a message, as far as they may run."""
        left = self.calls_left
        self.count_calls(count if left is None else min(count, left))

    def count_calls(self, count: int) -> None:
        """Counts calls, also for the run that runs this one as a tool."""
        self.used.calls += count
        if self.on_calls is not None:
            self.on_calls(count)

    def next_request(self) -> None:
        self.request_cost = self.round_cost = 0.0

    def spend_on_request(self, usage: Usage, model: str, turn: int, clock: Clock) -> None:
        """Counts one attempt at the last request, which this model has answered."""
        if self.limits.prices is not None or usage.cost is not None:  # a model may know what it costs
            cost = self.cost_of(usage)
        elif self.recorded is not None:
            cost = self.recorded.get(turn)
            self.recorded[turn] = 0.0  # it includes all attempts of the turn
        else:
            prices = self._prices(model, clock)
            cost = None if prices is None else prices.of(usage)
        self.request_cost = None if self.request_cost is None or cost is None else self.request_cost + cost
        self._spend(self._with_saving(usage, model, clock), cost)

    def spend(self, usage: Usage) -> None:
        """Counts what a call used: an agent as a tool, for example."""
        self._spend(usage, self.cost_of(usage))

    def priced(self, usage: Usage, model: str, clock: Clock) -> Usage:
        """The usage of a request that is not part of the conversation, with its cost."""
        usage = self._with_saving(usage, model, clock)
        if self.limits.prices is not None or usage.cost is not None:
            return usage
        prices = self._prices(model, clock)
        return usage if prices is None else replace(usage, cost=prices.of(usage))

    def _spend(self, usage: Usage, cost: float | None) -> None:
        self.used.usage = self.used.usage.plus(usage, cost)
        if usage.total_tokens or cost is not None:  # else there is nothing that has a cost
            self.round_cost = None if self.round_cost is None or cost is None else self.round_cost + cost
        if self.on_spend is not None:
            self.on_spend(replace(usage, cost=cost))

    def _with_saving(self, usage: Usage, model: str, clock: Clock) -> Usage:
        if not (usage.cached_tokens or usage.cache_write_tokens) or usage.cache_saving is not None:
            return usage
        prices = self.limits.prices or self._prices(model, clock)
        return usage if prices is None else replace(usage, cache_saving=prices.cache_saving(usage))

    def _prices(self, model: str, clock: Clock) -> ModelPrices | None:
        listed = self._listed
        if model not in listed:
            listed[model] = find_prices(model, clock.now())
        return listed[model]

    def cost_of(self, usage: Usage) -> float | None:
        """What a part of the usage cost. None if that is not known."""
        if self.limits.prices is not None:
            return self.limits.prices.of(usage)
        return usage.cost if usage.cost == usage.cost else None  # a tool or a model may report a number that is none

    @property
    def cost(self) -> float | None:
        """What the run has cost so far. None if that is not known."""
        return self.cost_of(self.used.usage)

    @property
    def spent(self) -> Usage:
        """The usage with what it cost."""
        return self.used.usage if self.limits.prices is None else replace(self.used.usage, cost=self.cost)

    async def load_prices(self, models: Sequence[str], clock: Clock) -> None:
        """Loads the price list if one of these models may be in it: once in a process, before the first request. Raises
        a `UserError` if there is a limit on the cost, and the price of one of them is not known."""
        if self.limits.prices is not None or self.recorded is not None:
            return
        if not is_loaded():
            for model in models:
                await load_prices(model, clock.now())
        if self.limits.cost is None:
            return
        unknown = (model for model in models if self._prices(model, clock) is None)
        if (model := next(unknown, None)) is not None:
            raise UserError(
                f"Limits(cost={self.limits.cost:g}): the price of `{model}` is not known, so its cost cannot be "
                f"limited: give it as Limits(…, prices=Prices(input=…, output=…))"
                + ("" if has_list() else f"; the prices of many hosted models come with {EXTRA}")
            )

    @property
    def _counted_cost(self) -> float:
        """An unknown cost (of an agent as a tool, for example) is over any limit."""
        cost = self.cost
        return cost if cost is not None else inf if self.used.usage.total_tokens else 0.0

    def reached(
        self, clock: Clock, messages: Sequence[Message] = (), *, aside: bool = False, inside: bool = False
    ) -> tuple[StopReason, float] | None:
        """The limit that prevents another round after these messages, if any; or, with `aside`, a request beside the
        conversation; or, with `inside`, a round of a run inside of this one."""
        limits = self.limits
        if limits.rounds is not None and not (aside or inside) and self.used.rounds >= limits.rounds:
            grows = limits.most_rounds is not None and self.used.rounds < limits.most_rounds
            if not (grows and _brings_something_new(messages)):
                return "round_limit", max(limits.rounds, self.used.rounds)
        if limits.calls is not None and not aside and self.used.calls >= limits.calls:
            return "call_limit", limits.calls
        if limits.tokens is not None and self.used.usage.total_tokens >= limits.tokens:
            return "token_limit", limits.tokens
        if limits.cost is not None and self._counted_cost >= limits.cost:
            return "cost_limit", limits.cost
        if limits.seconds is not None and self.elapsed(clock) >= limits.seconds + self.extra:
            return "time_limit", limits.seconds
        return None if self.outer is None else self.outer.reached(clock, aside=aside, inside=True)


def _brings_something_new(messages: Sequence[Message]) -> bool:
    """Has a result of the last round a line that no result before had?"""
    *before, last = [message for message in messages if isinstance(message, ToolMessage)] or [ToolMessage(())]
    known = {line for message in before for result in message.results for line in result.text.splitlines()}
    return any(
        line.strip() and line not in known
        for result in last.results
        if not result.error
        for line in result.text.splitlines()
    )


def models_of(model: Model) -> list[str]:
    """The names of the models that may answer."""
    others: Sequence[Model] = getattr(model, "fallback", ())
    return [model.name, *(each.name for each in others)]


def limits_of(recording: Recording) -> Limits:
    """The limits that a recorded run had."""
    try:
        return limits_from_json(recording.settings.get("limits") or {})
    except TypeError as error:
        raise UserError(f"the limits of {recording.path} cannot be read: {error}") from None


def limits_to_json(limits: Limits) -> dict[str, Json]:
    """The limits that are set; `limits_from_json` reads them."""
    limited: dict[str, Json] = {name: value for name in _LIMITS if (value := getattr(limits, name)) is not None}
    return limited if limits.prices is None else {**limited, "prices": asdict(limits.prices)}


def limits_from_json(saved: Mapping[str, Any]) -> Limits:
    """The limits again. `TypeError` if they cannot be read."""
    known: dict[str, Any] = {"rounds": None, **saved}
    if (prices := known.get("prices")) is not None:
        known["prices"] = Prices(**prices)
    return Limits(**known)
