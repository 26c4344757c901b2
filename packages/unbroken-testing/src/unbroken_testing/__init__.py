"""Helpers for testing programs that use Unbroken: a scripted model, a loop on virtual time, a scripted HTTP server, and
one that breaks. Each name is imported when it is first used, because pytest loads the plugin of this package
everywhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.clock import Deadlock, VirtualLoop
    from unbroken.clock import run as run_virtual
    from unbroken.models.scripted import (
        Answer,
        Break,
        Call,
        Cut,
        End,
        ErrorInside,
        Fail,
        Pause,
        Raw,
        Say,
        ScriptedModel,
        Step,
        Think,
        Uses,
    )
    from unbroken_testing.faults import FAULTS, Fault, find_fault
    from unbroken_testing.faulty import FaultyServer, serve_faulty, story
    from unbroken_testing.scenario import Sent
    from unbroken_testing.server import ScriptedServer, check_request, serve
    from unbroken_testing.unscripted import TestModel
    from unbroken_wires.wires.wire import ProviderCall

_HOMES: dict[str, tuple[str, ...]] = {
    "unbroken.models.scripted": (
        "Answer",
        "Break",
        "Call",
        "Cut",
        "End",
        "ErrorInside",
        "Fail",
        "Pause",
        "ProviderCall",
        "Raw",
        "Say",
        "Step",
        "Think",
        "Uses",
        "ScriptedModel",
    ),
    "unbroken_testing.faults": ("FAULTS", "Fault", "find_fault"),
    "unbroken_testing.faulty": ("FaultyServer", "serve_faulty", "story"),
    "unbroken_testing.scenario": ("Sent",),
    "unbroken_testing.server": ("ScriptedServer", "check_request", "serve"),
    "unbroken_testing.unscripted": ("TestModel",),
    "unbroken.clock": ("Deadlock", "VirtualLoop", "run_virtual"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_OWN_NAMES = {"run_virtual": "run"}
"""Names that differ in their own module."""


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'unbroken_testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), _OWN_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "FAULTS",
    "Answer",
    "Break",
    "Call",
    "Cut",
    "Deadlock",
    "End",
    "ErrorInside",
    "Fail",
    "Fault",
    "FaultyServer",
    "Pause",
    "ProviderCall",
    "Raw",
    "Say",
    "ScriptedModel",
    "ScriptedServer",
    "Sent",
    "Step",
    "TestModel",
    "Think",
    "Uses",
    "VirtualLoop",
    "check_request",
    "find_fault",
    "run_virtual",
    "serve",
    "serve_faulty",
    "story",
]
