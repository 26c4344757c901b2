"""What the answer of a model costs: from `price` in the configuration, or from the price list of `genai-prices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unbroken.models.pricing import ModelPrices, find_prices
from unbroken_gateway.settings import UpstreamSettings
from unbroken_gateway.spending.allowance import NANO
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.messages import Usage

_MILLION = 1_000_000
_MOST = 1_000_000_000
"""Dollars of one answer."""


class Prices:
    """The price that an alias has of its own comes first, then the list."""

    def __init__(self, settings: Sequence[UpstreamSettings], upstreams: Mapping[str, Upstream]) -> None:
        self._own: dict[tuple[str, str], ModelPrices] = {}
        """By alias and model. The empty alias is for a model that answered as the fallback of another alias."""
        self._any: dict[str, tuple[str, str, ModelPrices]] = {}
        """By an alias with a `*`, whose models are not known in advance: how their names begin and end."""
        self._models: set[tuple[str, str]] = set()
        """The models of each alias itself, without its fallbacks."""
        for each in settings:
            upstream = upstreams.get(each.alias)
            if "*" in each.alias:
                if each.price:
                    before, _, after = each.model.partition("*")
                    self._any[each.alias] = before, after, _read(each.price)
            elif upstream is not None:
                self._add(each.alias, upstream.model.name, each.price)
                models = {one.name: one.model.name for one in upstream.pool.deployments} if upstream.pool else {}
                for one in each.deployments:
                    self._add(each.alias, models[one.name], one.price or each.price)

    def cost(self, alias: str, model: str, usage: Usage, at: float) -> int | None:
        """In nano-dollars. None if the price is not known."""
        if usage.cost is not None:  # an agent knows what its models cost
            return round(usage.cost * NANO) if 0 <= usage.cost <= _MOST else None
        own = self._own.get((alias, model)) or self._of_any(alias, model)
        if own is None and (alias, model) not in self._models:  # a fallback
            own = self._own.get(("", model))
        prices = own or find_prices(model, at)
        cost = None if prices is None else prices.of(usage)
        return None if cost is None else round(cost * NANO)

    def _of_any(self, alias: str, model: str) -> ModelPrices | None:
        before, after, prices = self._any.get(alias, ("", "", None))
        return prices if model.startswith(before) and model.endswith(after) else None

    def _add(self, alias: str, model: str, price: Mapping[str, float]) -> None:
        self._models.add((alias, model))
        if price:
            self._own[alias, model] = _read(price)
            self._own.setdefault(("", model), self._own[alias, model])


def _read(price: Mapping[str, float]) -> ModelPrices:
    def rate(kind: str, otherwise: str = "", per: int = _MILLION) -> tuple[float, tuple[tuple[int, float], ...]]:
        return price.get(kind, price.get(otherwise, 0.0)) / per, ()

    written = rate("cache_write", "input")
    return ModelPrices(
        input=rate("input"),
        output=rate("output"),
        cached=rate("cached", "input"),
        cache_write=written,
        cache_write_1h=written,
        reasoning=rate("reasoning", "output"),
        web_search=None,
        request=rate("request", per=1),
    )
