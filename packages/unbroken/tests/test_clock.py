"""Clocks are passed as arguments: the real clock runs, the virtual one only moves on request."""

from __future__ import annotations

import time

import pytest

from unbroken.clock import Clock, RealClock, VirtualClock


def measure(clock: Clock) -> tuple[float, float]:
    return clock.now(), clock.elapsed()


def test_the_virtual_clock_does_not_move_by_itself() -> None:
    clock = VirtualClock(start=1000.0)
    assert measure(clock) == measure(clock) == (1000.0, 0.0)
    clock.advance(2.5)
    assert measure(clock) == (1002.5, 2.5)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match=r"time cannot go back: advance\(-1\)"):
        VirtualClock().advance(-1)


def test_the_real_clock_is_correct_and_never_goes_back() -> None:
    clock = RealClock()
    before = time.time()
    (first, start), (second, end) = measure(clock), measure(clock)
    assert before <= first <= second
    assert start <= end
