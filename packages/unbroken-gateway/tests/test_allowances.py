"""Amounts of money and tokens: read, written, and the periods that they are for."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import pytest

from unbroken import UserError
from unbroken_gateway.spending.allowance import NANO, Allowance, dollars, period_of, read_allowance


@pytest.mark.parametrize(
    ("text", "amount", "unit", "period", "written"),
    [
        ("20usd/day", 20 * NANO, "usd", "day", "20usd/day"),
        (" $0.5 / Month ", NANO // 2, "usd", "month", "0.5usd/month"),
        ("1000 USD", 1000 * NANO, "usd", "total", "1000usd/total"),
        ("0.000000001usd/day", 1, "usd", "day", "0.000000001usd/day"),
        ("500000tokens/day", 500_000, "tokens", "day", "500000tokens/day"),
    ],
)
def test_an_amount_is_read_and_written_the_same(text: str, amount: int, unit: str, period: str, written: str) -> None:
    read = read_allowance(text)
    assert (read.amount, read.unit, read.period) == (amount, unit, period)
    assert str(read) == written
    assert read_allowance(written) == read


@pytest.mark.parametrize(
    "text", ["", "20", "20eur/day", "-1usd/day", "0usd", "1.5tokens", "$5tokens", "1usd/hour", "1e9usd"]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="a budget of"):
        read_allowance(text)


def test_periods_are_those_of_utc() -> None:
    at = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    new_year = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert period_of("day", at) == ("2026-12-31", new_year)
    assert period_of("month", at) == ("2026-12", new_year)
    assert period_of("day", new_year) == ("2027-01-01", new_year + 86400)
    assert period_of("total", at) == ("total", inf)


def test_small_amounts_are_shown_with_digits_that_count() -> None:
    shown = {0: "0.00", NANO: "1.00", 1234 * NANO + NANO // 2: "1,234.50", NANO // 2: "0.50"}
    shown |= {1_234_567: "0.00123", 1: "0.000000001", 999_999_999: "1.00", 20_000_000: "0.02"}
    assert {nano: dollars(nano) for nano in shown} == {nano: f"{text} USD" for nano, text in shown.items()}
    assert Allowance(1) == Allowance(1, "usd", "total")
