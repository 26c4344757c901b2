"""An amount of money or tokens for a day, a month or for ever: `20usd/day`. Money is counted in whole nano-dollars, so
that sums are exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from math import inf
from typing import Literal, TypeAlias

from unbroken.errors import UserError

Unit: TypeAlias = Literal["usd", "tokens"]
Period: TypeAlias = Literal["day", "month", "total"]

NANO = 1_000_000_000
"""Nano-dollars in a dollar."""
MOST = 2**53
"""Nine million dollars: larger amounts are mistakes, and would not be exact in JSON."""

_WRITTEN = re.compile(
    r"(\$?)\s*(\d{1,15}(?:\.\d{1,9})?)\s*(usd|\$|tokens)?\s*(?:/\s*(day|month|total))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """`str()` writes it as `read_allowance` reads it."""

    amount: int
    """In nano-dollars, or in tokens (input plus output)."""
    unit: Unit = "usd"
    period: Period = "total"

    def __str__(self) -> str:
        amount = f"{Decimal(self.amount) / NANO:f}" if self.unit == "usd" else str(self.amount)
        return f"{amount}{self.unit}/{self.period}"


def read_allowance(text: str) -> Allowance:
    """`20usd/day`, `$20/month`, `500000tokens/day`, `100usd` for a total. Raises `UserError`."""
    found = _WRITTEN.fullmatch(text.strip())
    unit: Unit = "tokens" if found is not None and (found[3] or "").lower() == "tokens" else "usd"
    if found is None or not (found[1] or found[3]) or (unit == "tokens" and (found[1] or "." in found[2])):
        raise UserError(
            f"a budget of {text!r} cannot be read: write 20usd/day, 200usd/month, 1000usd/total or 500000tokens/day"
        )
    amount = int(Decimal(found[2]) * (NANO if unit == "usd" else 1))
    if not 0 < amount <= MOST:
        raise UserError(f"a budget of {text!r} is out of range: give an amount above 0 and below 9,000,000 usd")
    period = (found[4] or "total").lower()
    return Allowance(amount, unit, "day" if period == "day" else "month" if period == "month" else "total")


def period_of(period: Period, now: float) -> tuple[str, float]:
    """The period that this time is in: its name (`2026-11-18`, `2026-11`, `total`), and when it ends, in seconds since
    1970. Days and months are those of UTC."""
    return ("total", inf) if period == "total" else _period(period, int(now // 60))


@lru_cache(16)
def _period(period: Period, minute: int) -> tuple[str, float]:
    """Cached: each request needs it several times."""
    at = datetime.fromtimestamp(minute * 60, UTC)
    if period == "day":
        start = at.replace(hour=0, minute=0, second=0, microsecond=0)
        return f"{start:%Y-%m-%d}", (start + timedelta(days=1)).timestamp()
    year, month = divmod(at.year * 12 + at.month, 12)
    return f"{at:%Y-%m}", datetime(year, month + 1, 1, tzinfo=UTC).timestamp()


def dollars(nano: int) -> str:
    """`1.25 USD`: cents, and for less than a dollar as many more digits as three that count need."""
    amount = Decimal(nano) / NANO
    if not nano or abs(amount) >= 1:
        return f"{amount:,.2f} USD"
    zeros = -amount.adjusted() - 1
    text = f"{amount:.{min(9, max(2, zeros + 3))}f}"
    whole, _, digits = text.partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(2, '0')} USD"
