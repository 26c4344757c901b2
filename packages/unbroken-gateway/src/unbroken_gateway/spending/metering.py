"""Counts what requests cost, and refuses those over a budget or a limit. One for each process.

A request is checked before a model is asked, never later: an answer that has begun is completed. With the check, and in
one operation of the store, it is counted for its limits and reserves what it will probably use, so that all processes
know of it. It is counted when it has ended, however it ended, with what the providers reported, attempts that failed
included; its reservation is released then. Minutes, days and months are those of UTC.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from unbroken.asgi import Refused
from unbroken.models.model import ResponseHead
from unbroken.models.pricing import EXTRA, has_list, is_loaded, load_prices
from unbroken_gateway.admin.gateway_metrics import GatewayMetrics, is_possible
from unbroken_gateway.http.large_requests import MAIN_LOOP, on_main_loop
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.exchange import Outcome
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.allowance import NANO, Period, period_of
from unbroken_gateway.spending.budgets import (
    MINUTE,
    Budgets,
    Cap,
    Counted,
    minute_group,
    period_group,
    scopes_of,
    state_for_client,
    state_of,
)
from unbroken_gateway.spending.estimates import Average, Estimate, Reservation, Tally, choices_in, together
from unbroken_gateway.spending.ledger import Ledger, Values
from unbroken_gateway.spending.prices import Prices
from unbroken_gateway.spending.report import SPEND_GROUP
from unbroken_gateway.stores import Store, StoreUnavailable
from unbroken_gateway.stores.store import Addition, Limit
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.messages import Json, Request, Usage

log = logging.getLogger("unbroken.gateway")

BUDGET = "x-unbroken-budget"
FOR_EVER = 100 * 365 * 86400.0
_PERIODS: tuple[Period, ...] = ("day", "month", "total")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of the store for a request, in one minute."""

    caps: Sequence[Cap]
    limits: Sequence[Limit]
    """Of each cap."""
    places: Sequence[tuple[Counted, str, tuple[str, float]]]
    """In what, in which counter, and in which group and for how long each cap reserves."""


@lru_cache(4096)
def _row(*names: str) -> str:
    return json.dumps(names, ensure_ascii=True, separators=(",", ":"))


def _average(key_id: str, alias: str) -> Average:
    """One for each, which the cache keeps."""
    return Average()


class Metering:
    def __init__(
        self,
        settings: GatewaySettings,
        upstreams: Mapping[str, Upstream],
        store: Store,
        metrics: GatewayMetrics,
        now: Callable[[], float],
    ) -> None:
        self._for_keys = False
        """A key has budgets of its own."""
        self.use(settings, upstreams)
        self._store = store
        self._metrics = metrics
        self._now = now
        self.ledger = Ledger(store, settings.spend_batch)
        self._warned: dict[str, str] = {}
        """By the budget's name: the period in which it was reported."""
        self._unpriced: set[str] = set()
        self._average = lru_cache(4096)(_average)
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """By the line and the key's id: when it was logged last, and how many were left out since."""
        self._started = False

    def use(self, settings: GatewaySettings, upstreams: Mapping[str, Upstream]) -> None:
        """Uses these settings from now on."""
        self._settings = settings
        self._upstreams = upstreams
        self._prices = Prices(settings.upstreams, upstreams)
        self._budgets = Budgets(settings)
        self._plan = lru_cache(4096)(self._plan_now)
        self._in_memory = settings.store.startswith("memory")
        self.records = settings.spend or bool(settings.budgets) or self._for_keys
        """Whether it is counted what requests cost; otherwise only limits per minute are."""

    def count_for_keys(self) -> None:
        """Counts what requests cost from now on, also after a reload: requests of the key may be in flight then."""
        self._for_keys = self.records = True

    async def start(self) -> None:
        """Loads the price list."""
        self._started = True
        for upstream in self._upstreams.values():
            await load_prices(upstream.model.name, self._now())
        if is_loaded() and not has_list():
            log.warning("price_list_missing: only models with a `price` have a known cost; %s", EXTRA)

    async def aclose(self) -> None:
        await self.ledger.aclose()

    # Before a request

    async def check(
        self, key: GatewayKey | None, alias: str, tally: Tally | None = None, *, counts: bool = True
    ) -> dict[str, str]:
        """Raises `Refused` if the request is over a budget or a limit. Otherwise counts it for its limits, unless
        `counts` is false: then it was counted before; and reserves what it will probably use, for the tally's request.
        Returns the headers of its response: those that warn of a budget that is nearly spent."""
        if self.records and not self._started:
            await self.start()
        plan = self._plan(key, alias, int(self._now() // MINUTE), counts, counts or tally is not None)
        if not plan.caps:
            return {}
        if tally is not None and tally.size:
            tally.estimate_input()
        if (home := MAIN_LOOP.get()) is not None:  # the ledger belongs to the main loop
            return await on_main_loop(home, lambda: self._check(plan, key, alias, tally))
        return await self._check(plan, key, alias, tally)

    async def _check(self, plan: Plan, key: GatewayKey | None, alias: str, tally: Tally | None) -> dict[str, str]:
        now = self._now()
        reserved = self._reservation(plan, key, alias, tally, now)
        values = await self._reserve(reserved.additions, plan.limits, key)
        for cap, limit, found in zip(plan.caps, plan.limits, values, strict=True):
            if not limit.has_room(found):
                raise self._refusal(cap, found[0], now, key)
        if tally is not None:
            tally.reserved = reserved
        spent = [(cap, found[0]) for cap, found in zip(plan.caps, values, strict=True)]
        warnings = [self._warn(cap, each, now, key) for cap, each in spent if each >= cap.warn_at * cap.most]
        return {BUDGET: "; ".join(warnings[:5])} if warnings else {}

    def _reservation(
        self, plan: Plan, key: GatewayKey | None, alias: str, tally: Tally | None, now: float
    ) -> Reservation:
        amounts: dict[Counted, int] = {"requests": 1, "tokens": 0, "usd": 0}
        if tally is not None and tally.size:
            average = self._average(key.id if key is not None else "", alias)
            expected = average.expect(tally)
            cost = tally.prices.cost(alias, tally.model_name, expected, now) if self.records else 0
            # What an agent's answer costs is known afterwards.
            amounts["tokens"], amounts["usd"] = expected.total_tokens, round(average.cost) if cost is None else cost
        groups: dict[tuple[str, float], dict[str, int]] = {}
        for unit, counter, group in plan.places:
            if amount := amounts[unit]:
                groups.setdefault(group, {})[counter] = amount
        additions = [Addition(group, counters, ttl) for (group, ttl), counters in groups.items()]
        return Reservation(additions, minute_group(now), amounts["tokens"])

    async def _reserve(self, additions: Sequence[Addition], limits: Sequence[Limit], key: GatewayKey | None) -> Values:
        try:
            values = await self.ledger.reserve(additions, limits)
            if any(
                not limit.has_room(found) and found[0] < limit.most for limit, found in zip(limits, values, strict=True)
            ):
                await self.ledger.flush()  # what has ended here may release enough
                values = await self.ledger.reserve(additions, limits)
        except StoreUnavailable as error:
            self._note_store(error, key)
            return self.ledger.reserve_here(additions, limits)
        return values

    def _plan_now(self, key: GatewayKey | None, alias: str, minute: int, counts: bool, with_reserved: bool) -> Plan:
        """Of this minute. `counts`: also limits of requests; they are last, because the others explain more.
        `with_reserved`: a connection that has reserved before is over a budget only if that is spent."""
        caps = sorted(self._budgets.caps_of(key, alias), key=lambda cap: cap.unit == "requests")
        if self._in_memory:
            # With one process, `KeyLimits` counts the requests of a key, in any 60 seconds.
            caps = [cap for cap in caps if cap.unit != "requests" or not cap.whose.startswith("key:")]
        caps, now = [cap for cap in caps if counts or cap.unit != "requests"], minute * MINUTE
        limits = [cap.limit(now, with_reserved=with_reserved) for cap in caps]
        return Plan(caps, limits, [(cap.unit, cap.counter, cap.reserves_in(now)) for cap in caps])

    def _note_store(self, error: StoreUnavailable, key: GatewayKey | None) -> None:
        """Logs that the store cannot be used; raises `Refused`, if that is configured."""
        if self._settings.without_store == "refuse":
            wait = f"{max(1.0, error.retry_after):.0f}"
            words = "the gateway's store does not answer, and budgets cannot be checked without it: try again"
            raise Refused(503, words, {"retry-after": wait}) from None
        self._log_once("limits_local", "the store cannot be used, so budgets and limits count only this process", key)

    def _log_once(self, what: str, words: str, key: GatewayKey | None) -> None:
        """Once a minute for each key, so that a client that does not stop leaves room for other lines."""
        now, id, name = self._now(), *(("", "-") if key is None else (key.id, key.name))
        at, left_out = self._logged.get((what, id), (-inf, 0))
        if now - at < MINUTE:
            self._logged[what, id] = at, left_out + 1
            return
        self._logged[what, id] = now, 0
        log.warning(f"{what} key=%s left_out=%d: %s", name, left_out, words)

    def _refusal(self, cap: Cap, spent: int, now: float, key: GatewayKey | None) -> Refused:
        resets = cap.resets(now)
        if cap.period == "minute":
            self._metrics.over_limit(cap.unit)
            wait = max(resets - now, 0.001)
            words = f"{cap.name} may use {cap.most:,} {cap.unit} a minute: wait {wait:.0f} s"
            return Refused(429, words, {"retry-after": str(int(-(-wait // 1)))})
        self._metrics.over_limit("budget")
        state = _shown(cap, spent, now, key)
        if spent < cap.most:
            words = f"what is left of the budget is reserved for requests in flight: {state}; try again when they end"
            return Refused(429, words, {"retry-after": "1", BUDGET: state})
        self._log_once("budget_refused", state_of(cap, spent, now), key)
        # 402 and this header: SDKs retry neither, while they retry a 429 for as long as they are configured to.
        return Refused(402, f"the budget is spent: {state}", {"x-should-retry": "false", BUDGET: state})

    def _warn(self, cap: Cap, spent: int, now: float, key: GatewayKey | None) -> str:
        if self._warned.get(cap.name) != cap.group(now):
            self._warned[cap.name] = cap.group(now)
            self._metrics.budget_warning(cap.name)
            log.warning("budget_warning %s", state_of(cap, spent, now))
        return _shown(cap, spent, now, key)

    def tally(self, read: Callable[[], Request] | None = None, body: Mapping[str, Json] | None = None) -> Tally:
        """Follows a request, whose prices stay those of now. `read` reads what the client has sent; without it, only
        what is reported counts. `body`: the body, if the model gets it in the client's own wire."""
        tally = Tally(read, self._prices)
        if body is not None:
            tally.choices = choices_in(body)
        return tally

    # After it

    def charge(
        self,
        key: GatewayKey | None,
        alias: str,
        outcome: Outcome,
        head: ResponseHead,
        answered: bool,
        gone: bool = False,
    ) -> None:
        """Counts a request that has ended. `answered`: the client received an answer, or did not wait for it. `gone`:
        it did not, or the gateway was stopped."""
        prices = outcome.tally.prices if outcome.tally is not None else self._prices
        estimates = outcome.tally.estimates(head, outcome.usage, gone) if outcome.tally is not None else []
        reports = list(outcome.failed)
        last = outcome.usage
        asked = last is not None and (head.model or last.total_tokens)  # a guardrail may answer without any model
        if last is not None and asked and not (reports and reports[-1][1] is last):
            reports.append((head.model or alias, last))
        reports = [(model, usage) for model, usage in reports if is_possible(usage)]
        if self.records and (reports or estimates):
            costs = [self._charge_one(key, alias, model, usage, prices) for model, usage in reports]
            named = [replace(each, model=each.model or alias) for each in estimates]
            costs += [self._charge_estimate(key, alias, each, prices) for each in named]
            outcome.cost = None if None in costs else sum(cost or 0 for cost in costs)
            outcome.is_estimated = bool(estimates)
        elif self.records and head.model and answered:
            self._metrics.uncounted(alias, "usage")
            self._add_row(key, alias, head.model, {"unreported": 1})
        self._settle(key, alias, outcome, [*(usage for _, usage in reports), *(each.more for each in estimates)])

    def _settle(self, key: GatewayKey | None, alias: str, outcome: Outcome, used: Sequence[Usage]) -> None:
        """Releases what was reserved, and counts the tokens for the limits per minute: up to what was reserved in the
        minute in which the request began, and what is beyond in this one."""
        tally = outcome.tally
        reserved = tally.reserved if tally is not None else None
        minute = minute_group(self._now())
        tokens = {minute: sum(usage.total_tokens for usage in used)}
        if tally is not None and reserved is not None:
            tally.reserved = None
            self.ledger.release(reserved.additions)
            if reserved.tokens and used:
                self._average(key.id if key is not None else "", alias).learn(tally, used, outcome.cost)
            before = min(reserved.tokens, tokens[minute])
            tokens[minute] -= before
            tokens[reserved.minute] = tokens.get(reserved.minute, 0) + before
        caps = self._plan(key, alias, int(self._now() // MINUTE), True, True).caps
        counters = [cap.counter for cap in caps if (cap.unit, cap.period) == ("tokens", "minute")]
        for group, amount in tokens.items():
            if counters and amount:
                self.ledger.add(group, dict.fromkeys(counters, amount), 2 * MINUTE)
        if caps:
            self.ledger.write_soon()

    def _charge_one(self, key: GatewayKey | None, alias: str, model: str, usage: Usage, prices: Prices) -> int | None:
        now = self._now()
        cost = prices.cost(alias, model, usage, now)
        amounts = {
            "requests": 1,
            "input": usage.input_tokens,
            "cached": usage.cached_tokens,
            "cache_write": usage.cache_write_tokens,
            "output": usage.output_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        if cost is None:
            amounts["unpriced"] = 1
            self._note_unpriced(alias, model)
        else:
            amounts["cost"] = cost
            self._metrics.spent(alias, cost / NANO)
        self._add_row(key, alias, model, amounts)
        self._add_spent(key, alias, usage, cost, now)
        return cost

    def _charge_estimate(self, key: GatewayKey | None, alias: str, estimate: Estimate, prices: Prices) -> int | None:
        """It counts for budgets and limits as if it were reported; reports show it in columns of its own."""
        now, model, more = self._now(), estimate.model, estimate.more
        cost = prices.cost(alias, model, together(estimate), now)
        if cost is not None and estimate.reported.total_tokens:
            cost -= prices.cost(alias, model, estimate.reported, now) or 0
        amounts = {
            "estimated": 1,
            "estimated_input": more.input_tokens,
            "estimated_output": more.output_tokens,
            "estimated_cost": cost or 0,
        }
        self._metrics.estimated(alias, more, (cost or 0) / NANO)
        if cost is None:
            self._note_unpriced(alias, model)
        self._add_row(key, alias, model, amounts)
        self._add_spent(key, alias, more, cost, now)
        return cost

    def _add_spent(self, key: GatewayKey | None, alias: str, usage: Usage, cost: int | None, now: float) -> None:
        """Counts for the budgets."""
        tokens = usage.total_tokens
        whose = scopes_of(key.id if key is not None else "", key.team if key is not None else "", alias)
        spent = {f"tokens {each}": tokens for each in whose}
        if cost:
            spent |= {f"usd {each}": cost for each in whose}
        for period in _PERIODS:
            ttl = FOR_EVER if period == "total" else self._settings.spend_kept
            self.ledger.add(period_group(period, now), spent, ttl)

    def _add_row(self, key: GatewayKey | None, alias: str, model: str, amounts: Mapping[str, int]) -> None:
        id, name, team = (key.id, key.name, key.team) if key is not None else ("", "", "")
        row = _row(id, name, team, alias, model)
        counters = {f"{kind} {row}": amount for kind, amount in amounts.items() if amount}
        self.ledger.add(f"{SPEND_GROUP}{period_of('day', self._now())[0]}", counters, self._settings.spend_kept)

    def _note_unpriced(self, alias: str, model: str) -> None:
        self._metrics.uncounted(alias, "price")
        if model not in self._unpriced and len(self._unpriced) < 1000:
            self._unpriced.add(model)
            log.warning(
                "price_unknown model=%s: what it costs does not count for budgets in usd; give alias `%s` a `price`",
                model,
                alias,
            )


def _shown(cap: Cap, spent: int, now: float, key: GatewayKey | None) -> str:
    """What a client reads of a budget: the amounts only of its own, unless its key is an operator's."""
    sees = key is None or key.operator or cap.whose == f"key:{key.id}"
    return state_of(cap, spent, now) if sees else state_for_client(cap, spent, now)
