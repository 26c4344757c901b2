"""What a request to a known model costs, from the price list of `genai-prices`, which the extra `prices` brings.

The list is part of that package, so nothing is fetched. It is loaded before the first request that needs it (0.1 s). A
price that was found is kept for a minute: some depend on the time of day, and a program may update the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

from unbroken.errors import UnknownProvider, install_command
from unbroken.models.providers import find_provider
from unbroken_wires.messages import Usage

EXTRA = install_command("prices")

_KEPT = 60
"""Seconds for which a price is kept."""
_MILLION = 1_000_000
_NOTHING = {"input_tokens": 0, "output_tokens": 0}

Rate: TypeAlias = tuple[float, tuple[tuple[int, float], ...]]
"""The price of one, and the prices for requests with more input tokens than a threshold, the highest threshold
first."""


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """The prices of one model in US dollars, at one time. The package can do the same from the counts, but it takes
    0.2 ms for each request; this takes 1 µs."""

    input: Rate
    output: Rate
    cached: Rate
    cache_write: Rate
    cache_write_1h: Rate
    reasoning: Rate
    web_search: Rate | None
    """None: the list has no price for it."""
    request: Rate

    def of(self, usage: Usage) -> float | None:
        """What one request cost. The price of a token may depend on the length of the input, so add up costs and not
        tokens. None if the provider ran tools of its own whose price is not known."""
        if usage.server_calls or (usage.web_searches and self.web_search is None):
            return None
        length, cached, written, thoughts = (
            usage.input_tokens,
            usage.cached_tokens,
            usage.cache_write_tokens,
            usage.reasoning_tokens,
        )
        cost = max(length - cached - written, 0) * _price(self.input, length) + _price(self.request, length)
        cost += max(usage.output_tokens - thoughts, 0) * _price(self.output, length)
        if cached:
            cost += cached * _price(self.cached, length)
        if written:
            for_hour = min(usage.cache_write_1h_tokens, written)
            cost += (written - for_hour) * _price(self.cache_write, length)
            cost += for_hour * _price(self.cache_write_1h, length)
        if thoughts:
            cost += thoughts * _price(self.reasoning, length)
        if usage.web_searches and self.web_search is not None:
            cost += usage.web_searches * _price(self.web_search, length)
        return cost

    def cache_saving(self, usage: Usage) -> float:
        """How much less one request cost than it would have without a cache."""
        length, written = usage.input_tokens, usage.cache_write_tokens
        fresh, for_hour = _price(self.input, length), min(usage.cache_write_1h_tokens, written)
        saved = usage.cached_tokens * (fresh - _price(self.cached, length))
        saved -= (written - for_hour) * (_price(self.cache_write, length) - fresh)
        return saved - for_hour * (_price(self.cache_write_1h, length) - fresh)


def _price(rate: Rate, length: int) -> float:
    price, longer = rate
    if longer:
        for threshold, other in longer:
            if length > threshold:
                return other
    return price


def find_prices(model: str, time: float) -> ModelPrices | None:
    """The prices of `provider:model` at a time, in seconds since the epoch. None if the list does not have the model,
    its provider has no list (a server of your own), or the extra is not installed."""
    return _find(model, int(time) // _KEPT)


def find_window(model: str, time: float) -> int | None:
    """How many tokens the context of `provider:model` has. None if the list does not say, or is not there."""
    found = _look_up(model, int(time) // _KEPT)
    return found.model.context_window if found is not None else None


def is_loaded() -> bool:
    """Whether the list is loaded, or the extra is not installed."""
    return bool(_list)


def has_list() -> bool:
    """Whether the extra is installed."""
    return _load_list() is not None


async def load_prices(model: str, time: float) -> None:
    """Loads the list in a thread, if it is not loaded and the provider of this model has one. Otherwise the first
    lookup loads it, and blocks the event loop meanwhile."""
    if not is_loaded() and _provider(model, int(time) // _KEPT):
        await asyncio.get_running_loop().run_in_executor(None, _load_list)


_list: list[Callable[..., Any] | None] = []
"""The function that finds a price, once it is loaded. None: the extra is not installed."""


def _load_list() -> Callable[..., Any] | None:
    if not _list:
        _list.append(_import_list())
    return _list[0]


def _import_list() -> Callable[..., Any] | None:
    try:
        from genai_prices import calc_price  # noqa: PLC0415 - an optional extra, and start-up time
    except ImportError:
        return None
    with suppress(LookupError):
        calc_price(_NOTHING, "", provider_id="openai")  # it loads the list itself, a third of the time
    return calc_price


@lru_cache(256)
def _provider(name: str, minute: int) -> str:
    """The name of the provider's list. The profiles are in a file, which may change."""
    try:
        return find_provider(name.partition(":")[0]).prices
    except UnknownProvider:
        return ""


@lru_cache(256)
def _find(name: str, minute: int) -> ModelPrices | None:
    found = _look_up(name, minute)
    return None if found is None else _read(found.model_price)


def _look_up(name: str, minute: int) -> Any:
    """What the list has about the model. None if that is nothing."""
    provider = _provider(name, minute)
    calc_price = _load_list() if provider else None
    if calc_price is None:
        return None
    model = name.partition(":")[2].removeprefix("models/")
    time = datetime.fromtimestamp(minute * _KEPT, UTC)
    try:
        return calc_price(_NOTHING, model, provider_id=provider, genai_request_timestamp=time)
    except LookupError:
        return None


def _read(prices: Any) -> ModelPrices | None:
    """None for what is not priced by tokens, such as speech. A token without a price of its own costs as much as its
    kind does."""
    if prices.input_mtok is None or prices.output_mtok is None:
        return None
    written = _first(prices.cache_write_mtok, prices.input_mtok)
    return ModelPrices(
        input=_rate(prices.input_mtok, _MILLION),
        output=_rate(prices.output_mtok, _MILLION),
        cached=_rate(_first(prices.cache_read_mtok, prices.input_mtok), _MILLION),
        cache_write=_rate(written, _MILLION),
        cache_write_1h=_rate(_first(prices.cache_write_1h_mtok, written), _MILLION),
        reasoning=_rate(_first(prices.output_reasoning_mtok, prices.output_mtok), _MILLION),
        web_search=None if prices.web_searches_kcount is None else _rate(prices.web_searches_kcount, 1000),
        request=_rate(_first(prices.requests_kcount, 0), 1000),
    )


def _first(price: Any, otherwise: Any) -> Any:
    return otherwise if price is None else price


def _rate(price: Any, per: int) -> Rate:
    """`price` is a number, or has tiers in ascending order."""
    longer = [(tier.start, float(tier.price) / per) for tier in getattr(price, "tiers", ())]
    return float(getattr(price, "base", price)) / per, tuple(reversed(longer))
