"""How hard Hypothesis tries: the same examples each time, or `UNBROKEN_FUZZ` fresh ones for each property; that
interrupts reach the programs that tests start; that garbage is looked for among what tests make; and that what a test
logs can be carried from a worker."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores interrupts, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["UNBROKEN_PROVIDERS"] = ""  # a developer's own provider profiles must not change the tests

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
_fuzz = int(os.environ.get("UNBROKEN_FUZZ") or 0)
if _fuzz:
    settings.register_profile("fuzz", settings.get_profile("ci"), derandomize=False, max_examples=min(_fuzz, 2000))
settings.load_profile("fuzz" if _fuzz else "ci")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command that runs in the process of a test sets up logging, as it should in its own: afterwards all is as
    before. A hook, because a fixture for each of 20,000 tests takes seconds."""
    root, ours = logging.getLogger(), logging.getLogger("unbroken")
    levels, handlers = (root.level, ours.level), list(root.handlers)
    outcome = yield
    if (root.level, ours.level) != levels:  # setting one empties the cache of all loggers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
    for handler in root.handlers[:]:
        if handler not in handlers and "_pytest" not in type(handler).__module__:
            root.removeHandler(handler)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Some 18,000 tests are made, which no test frees: every collection of garbage would look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests of odd characters log half a surrogate pair, and a report with one in it cannot leave its worker."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
