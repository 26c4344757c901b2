"""The pytest plugin: fixtures that start servers of `unbroken_testing` and stop them when the test has ended.

pytest loads it in every project that has Unbroken installed, so it imports nothing large before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

if TYPE_CHECKING:
    from unbroken.models.scripted import Line
    from unbroken_testing.faults import Fault
    from unbroken_testing.faulty import FaultyServer
    from unbroken_testing.recorded import Recordable, RecordedModel
    from unbroken_testing.server import ScriptedServer


class ScriptedUpstream(Protocol):
    def __call__(self, *answers: Line, **options: Any) -> ScriptedServer: ...


class FaultyUpstream(Protocol):
    def __call__(
        self,
        fault: str | Fault | Sequence[str | Fault] | None = None,
        answers: Line | Sequence[Line] = (),
        **options: Any,
    ) -> FaultyServer: ...


class Recorded(Protocol):
    def __call__(self, model: Recordable) -> RecordedModel: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("unbroken").addoption(
        "--rerecord", action="store_true", help="record new answers for the models of `recorded`"
    )


PASSED = pytest.StashKey[bool]()
"""Whether the test passed. If not, unused recorded answers are not reported as a failure."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    if call.when == "call":
        item.stash[PASSED] = outcome.get_result().passed


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Generator[Recorded]:
    """`agent = Agent(recorded("openai:gpt-5"), tools)`: the first run asks the model and records it next to the test,
    in `recordings/`; later runs replay that. `pytest --rerecord` records again."""
    models: list[RecordedModel] = []
    from unbroken_testing.recorded import RecordedModel, file_of  # noqa: PLC0415 - start-up time of every pytest

    def make(model: Recordable) -> RecordedModel:
        file = file_of(request.path.parent, request.node.nodeid, len(models) + 1)
        made = RecordedModel(model, file, bool(request.config.getoption("--rerecord")))
        models.append(made)
        return made

    yield make
    passed = request.node.stash.get(PASSED, False)
    for model in models:
        model.end(complete=passed)


@pytest.fixture
def scripted_upstream() -> Generator[ScriptedUpstream]:
    """`server = scripted_upstream("Hello.")`: a fake provider on a local port. Options: `ScriptedServer`."""
    with ExitStack() as servers:

        def start(*answers: Line, **options: Any) -> ScriptedServer:
            from unbroken_testing.server import serve  # noqa: PLC0415 - start-up time

            return servers.enter_context(serve(*answers, **options))

        yield start


@pytest.fixture
def faulty_upstream() -> Generator[FaultyUpstream]:
    """`server = faulty_upstream("reset", answers=["Hello."])`: a fake provider whose first response breaks. A single
    answer needs no list; without answers it plays `story`. Options: `FaultyServer`."""
    with ExitStack() as servers:

        def start(
            fault: str | Fault | Sequence[str | Fault] | None = None,
            answers: Line | Sequence[Line] = (),
            **options: Any,
        ) -> FaultyServer:
            from unbroken_testing.faulty import serve_faulty, story  # noqa: PLC0415 - start-up time

            several = isinstance(answers, Sequence) and not isinstance(answers, str)
            given = cast("Sequence[Line]", answers if several else [answers])
            return servers.enter_context(serve_faulty(*(given or [story]), fault=fault, **options))

        yield start
