"""The pytest plugin: fixtures that start servers of `unbroken.testing` and stop them when the test has ended.

pytest loads it in every project that has Unbroken installed, so it imports nothing of weight before a fixture is asked
for.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

if TYPE_CHECKING:
    from unbroken.models.script import Line
    from unbroken.testing.faults import Fault
    from unbroken.testing.faulty import FaultyServer
    from unbroken.testing.server import ScriptedServer


class ScriptedUpstream(Protocol):
    def __call__(self, *answers: Line, **options: Any) -> ScriptedServer: ...


class FaultyUpstream(Protocol):
    def __call__(
        self,
        fault: str | Fault | Sequence[str | Fault] | None = None,
        answers: Line | Sequence[Line] = (),
        **options: Any,
    ) -> FaultyServer: ...


@pytest.fixture
def scripted_upstream() -> Generator[ScriptedUpstream]:
    """`server = scripted_upstream("Hello.")`: a provider on a port of this machine. Options: `ScriptedServer`."""
    with ExitStack() as servers:

        def start(*answers: Line, **options: Any) -> ScriptedServer:
            server = importlib.import_module("unbroken.testing.server")
            return servers.enter_context(server.serve(*answers, **options))

        yield start


@pytest.fixture
def faulty_upstream() -> Generator[FaultyUpstream]:
    """`server = faulty_upstream("reset", answers=["Hello."])`: one whose first response breaks. A single answer
    needs no list; without answers it plays `story`. Options: `FaultyServer`."""
    with ExitStack() as servers:

        def start(
            fault: str | Fault | Sequence[str | Fault] | None = None,
            answers: Line | Sequence[Line] = (),
            **options: Any,
        ) -> FaultyServer:
            faulty = importlib.import_module("unbroken.testing.faulty")
            several = isinstance(answers, Sequence) and not isinstance(answers, str)
            given = cast("Sequence[Line]", answers if several else [answers])
            return servers.enter_context(faulty.serve_faulty(*(given or [faulty.story]), fault=fault, **options))

        yield start
