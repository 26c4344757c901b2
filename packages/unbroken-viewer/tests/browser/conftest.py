"""The run that the page is tested with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def long_run() -> Callable[[Path], None]:
    """Plays the run of `a_long_run`, which is one folder up, and records it."""
    return importlib.import_module("a_long_run").play
