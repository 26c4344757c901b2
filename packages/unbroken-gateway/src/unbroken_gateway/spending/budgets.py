"""Budgets and limits per minute as data: which of them apply to a request, what their counters are called, and what a
client reads that is over one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Literal, TypeAlias

from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.settings import BudgetSettings, GatewaySettings, TeamSettings
from unbroken_gateway.spending.allowance import Allowance, Period, Unit, dollars, period_of
from unbroken_gateway.spending.ledger import RESERVED
from unbroken_gateway.stores.store import Limit

Every: TypeAlias = Period | Literal["minute"]
Counted: TypeAlias = Unit | Literal["requests"]

MINUTE = 60.0
HELD_FOR = 3600.0
"""Seconds. A reservation for a budget lapses when the hour after the one in which it was made is over."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Cap:
    """One limit of what one counter may reach in each of its periods."""

    name: str
    """For people: `ann 20usd/day`."""
    whose: str
    """The counter: `all`, `key:ID`, `team:NAME` or `model:ALIAS`."""
    unit: Counted
    period: Every
    most: int
    warn_at: float = inf

    @property
    def counter(self) -> str:
        return f"{self.unit} {self.whose}"

    def group(self, now: float) -> str:
        """The group of its counter in the period of this time."""
        if self.period == "minute":
            return minute_group(now)
        return period_group(self.period, now)

    def limit(self, now: float, *, with_reserved: bool) -> Limit:
        """The first of its counters is what is spent, the others what is reserved."""
        groups = [self.group(now), *(self._reserved(now) if with_reserved else ())]
        return Limit(tuple((group, self.counter) for group in groups), self.most)

    def reserves_in(self, now: float) -> tuple[str, float]:
        """The group in which a request reserves, and for how many seconds. A request is simply counted."""
        if self.period == "minute":
            return self.group(now) if self.unit == "requests" else self._reserved(now)[0], 2 * MINUTE
        return reserved_groups(now)[0], 2 * HELD_FOR

    def _reserved(self, now: float) -> Sequence[str]:
        if self.unit == "requests":
            return ()
        return [f"{RESERVED}{self.group(now)}"] if self.period == "minute" else reserved_groups(now)

    def resets(self, now: float) -> float:
        """When its period ends, in seconds since 1970; infinite for a total."""
        return (now // MINUTE + 1) * MINUTE if self.period == "minute" else period_of(self.period, now)[1]


def period_group(period: Period, now: float) -> str:
    return f"spent:{period_of(period, now)[0]}"


def minute_group(now: float) -> str:
    return f"minute:{int(now // MINUTE)}"


def reserved_groups(now: float) -> list[str]:
    """Of this hour, and of the one before."""
    hour = int(now // HELD_FOR)
    return [f"{RESERVED}{hour}", f"{RESERVED}{hour - 1}"]


def scopes_of(key_id: str, team: str, alias: str) -> list[str]:
    """The counters that a request of this key for this model adds to."""
    whose = [ALL, f"model:{alias}"]
    whose += [f"key:{key_id}"] if key_id else []
    return [*whose, f"team:{team}"] if team else whose


class Budgets:
    """The budgets and limits of a configuration, found by whom they are for: a gateway may have thousands."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._warn_at = settings.warn_at
        self._budgets: dict[str, list[tuple[int, BudgetSettings]]] = {}
        """By their counter, that of a key with its name, and with their places in the configuration."""
        for place, budget in enumerate(settings.budgets):
            self._budgets.setdefault(_named_counter(budget), []).append((place, budget))
        self._teams: dict[str, list[TeamSettings]] = {}
        for team in settings.teams:
            self._teams.setdefault(team.name, []).append(team)

    def caps_of(self, key: GatewayKey | None, alias: str) -> tuple[Cap, ...]:
        """All budgets and limits that apply to a request."""
        counters = {ALL: ALL, f"model:{alias}": f"model:{alias}"}
        if key is not None:
            counters[f"key:{key.name}"] = f"key:{key.id}"
            counters |= {f"team:{key.team}": f"team:{key.team}"} if key.team else {}
        found = [(*each, whose) for named, whose in counters.items() for each in self._budgets.get(named, ())]
        found.sort(key=lambda each: each[0])
        caps = [
            _cap(budget.name, whose, budget.amount, self._warn_at if budget.warn_at is None else budget.warn_at)
            for _, budget, whose in found
        ]
        if key is None:
            return tuple(caps)
        own = f"key:{key.id}"
        caps += [_cap(f"{key.name} {budget}", own, budget, self._warn_at) for budget in key.budgets]
        caps += _per_minute(f"key `{key.name}`", own, key.requests_per_minute, key.tokens_per_minute)
        for team in self._teams.get(key.team, ()):
            limits = team.requests_per_minute, team.tokens_per_minute
            caps += _per_minute(f"team `{team.name}`", f"team:{team.name}", *limits)
        return tuple(caps)


def _named_counter(budget: BudgetSettings) -> str:
    return next((f"{kind}:{name}" for kind, name in _named(budget) if name), ALL)


def _cap(name: str, whose: str, amount: Allowance, warn_at: float) -> Cap:
    return Cap(name, whose, amount.unit, amount.period, amount.amount, warn_at)


def _per_minute(name: str, whose: str, requests: int | None, tokens: int | None) -> Iterator[Cap]:
    if requests is not None:
        yield Cap(name, whose, "requests", "minute", requests)
    if tokens is not None:
        yield Cap(name, whose, "tokens", "minute", tokens)


def amount_of(unit: Counted, amount: int) -> str:
    return dollars(amount) if unit == "usd" else f"{amount:,} {unit}"


def moment(at: float) -> str:
    return "never" if at == inf else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def state_of(cap: Cap, spent: int, now: float) -> str:
    """`ann 20usd/day: 17.20 USD of 20.00 USD spent, resets 2026-11-19T00:00:00Z`"""
    used = f"{amount_of(cap.unit, spent)} of {amount_of(cap.unit, cap.most)} spent"
    return f"{cap.name}: {used}, resets {moment(cap.resets(now))}"


def state_for_client(cap: Cap, spent: int, now: float) -> str:
    """The same, without the amounts of a budget that a key shares with others."""
    used = "used up" if spent >= cap.most else "nearly used up"
    return f"{cap.name}: {used}, resets {moment(cap.resets(now))}"


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    name: str
    whose: str
    """`all`, or `key`, `team` or `model` and its name."""
    unit: Counted
    period: Every
    amount: int
    """In nano-dollars or tokens."""
    spent: int
    reserved: int
    """For requests in flight, by estimate."""
    resets: float | None
    """When it starts again from 0, in seconds since 1970. None: never."""

    @property
    def share(self) -> float:
        return self.spent / self.amount


def all_budgets(settings: GatewaySettings, keys: Iterable[GatewayKey]) -> Sequence[tuple[Cap, str]]:
    """All budgets of a gateway, each with the key, team or model that it is for, in words."""
    known = {key.name: key for key in keys}
    found: list[tuple[Cap, str]] = []
    for budget in settings.budgets:
        key = known.get(budget.key)
        if budget.key and key is None:
            continue
        whose = f"key:{key.id}" if key is not None else f"team:{budget.team}" if budget.team else ALL
        whose = f"model:{budget.model}" if budget.model else whose
        words = next((f"{kind} {name}" for kind, name in _named(budget) if name), ALL)
        warn_at = settings.warn_at if budget.warn_at is None else budget.warn_at
        found.append((_cap(budget.name, whose, budget.amount, warn_at), words))
    for key in known.values():
        for amount in key.budgets:
            found.append((_cap(f"{key.name} {amount}", f"key:{key.id}", amount, settings.warn_at), f"key {key.name}"))
    return found


def _named(budget: BudgetSettings) -> Sequence[tuple[str, str]]:
    return ("key", budget.key), ("team", budget.team), ("model", budget.model)
