"""How often a key may send requests, and how many at once: exact in any minute; refused requests do not count."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.clock import VirtualClock
from unbroken_gateway.http.admission import KeyLimits, OverLimit
from unbroken_gateway.keys import GatewayKey


def ask(limits: KeyLimits, key: GatewayKey) -> OverLimit | None:
    with limits.admit(key) as refused:
        return refused


def test_a_key_without_limits_is_never_refused() -> None:
    limits = KeyLimits(VirtualClock())
    assert [ask(limits, GatewayKey("a")) for _ in range(1000)] == [None] * 1000


def test_a_refused_request_learns_when_the_next_one_is_possible() -> None:
    clock = VirtualClock()
    limits, key = KeyLimits(clock), GatewayKey("a", requests_per_minute=2)
    assert ask(limits, key) is None
    clock.advance(10)
    assert ask(limits, key) is None
    clock.advance(5)
    refused = ask(limits, key)
    assert refused == OverLimit("key `a` may begin 2 requests a minute: wait 45 s", 45.0)
    clock.advance(45.0)
    assert ask(limits, key) is None
    assert ask(limits, key) == OverLimit("key `a` may begin 2 requests a minute: wait 10 s", 10.0)


def test_each_key_has_its_own_count() -> None:
    limits = KeyLimits(VirtualClock())
    a, b = GatewayKey("a", requests_per_minute=1), GatewayKey("b", requests_per_minute=1)
    assert [ask(limits, key) is None for key in (a, b, a, b)] == [True, True, False, False]


def test_a_lowered_limit_applies_at_once() -> None:
    clock = VirtualClock()
    limits = KeyLimits(clock)
    for _ in range(5):
        assert ask(limits, GatewayKey("a", requests_per_minute=5)) is None
        clock.advance(1)
    lowered = GatewayKey("a", requests_per_minute=2)
    refused = ask(limits, lowered)
    assert refused is not None
    assert refused.retry_after == 58.0  # the fourth of the five, which began 2 s ago, is the last but one that counts
    clock.advance(58.0)
    assert ask(limits, lowered) is None


def test_requests_in_flight_are_counted_until_they_end() -> None:
    limits, key = KeyLimits(VirtualClock()), GatewayKey("a", in_flight=2)
    with limits.admit(key) as first, limits.admit(key) as second:
        assert (first, second) == (None, None)
        refused = ask(limits, key)
        assert refused is not None
        assert refused.words == "key `a` has 2 requests in flight and may have 2: wait until one has ended"
        assert ask(limits, GatewayKey("b", in_flight=2)) is None
    assert ask(limits, key) is None
    single = GatewayKey("c", in_flight=1)
    with limits.admit(single):
        refused = ask(limits, single)
        assert refused is not None
        assert refused.words == "key `c` has 1 request in flight and may have 1: wait until one has ended"


def test_a_failed_request_has_ended_too() -> None:
    limits, key = KeyLimits(VirtualClock()), GatewayKey("a", in_flight=1)
    with pytest.raises(ZeroDivisionError), limits.admit(key):
        raise ZeroDivisionError
    assert ask(limits, key) is None


def test_a_request_refused_for_one_limit_does_not_count_for_the_other() -> None:
    limits, key = KeyLimits(VirtualClock()), GatewayKey("a", requests_per_minute=2, in_flight=1)
    with limits.admit(key):
        assert [ask(limits, key) is None for _ in range(5)] == [False] * 5
    assert ask(limits, key) is None
    assert ask(limits, key) is not None


@given(st.lists(st.floats(0, 40), max_size=60), st.integers(1, 5), st.integers(1, 3))
def test_no_minute_has_more_requests_than_allowed_and_a_client_that_waits_as_told_is_served(
    gaps: list[float], per_minute: int, in_flight: int
) -> None:
    clock = VirtualClock()
    limits, key = KeyLimits(clock), GatewayKey("a", requests_per_minute=per_minute, in_flight=in_flight)
    begun: list[float] = []
    with ExitStack() as open_ones:
        for at, gap in enumerate(gaps):
            clock.advance(gap)
            if at % 4 == 3:
                open_ones.close()
            refused = open_ones.enter_context(limits.admit(key))
            if refused is not None and "minute" in refused.words:
                assert refused.retry_after > 0
                clock.advance(refused.retry_after + 1e-6)
                refused = open_ones.enter_context(limits.admit(key))
                assert refused is None or "in flight" in refused.words
            if refused is None:
                begun.append(clock.elapsed())
    for earlier, later in zip(begun, begun[per_minute:], strict=False):
        assert later - earlier > 60 - 1e-6


def test_a_new_key_with_the_name_of_a_revoked_one_starts_with_a_fresh_count() -> None:
    limits = KeyLimits(VirtualClock())
    old, new = (GatewayKey("ann", requests_per_minute=1, id=id) for id in ("first", "second"))
    assert ask(limits, old) is None
    assert ask(limits, old) is not None
    assert ask(limits, new) is None
    assert ask(limits, new) is not None
