"""The corpus of DPH programs: each `NAME.dph` of `dph/programs` with its outcome in `NAME.toml`. Programs without one
are called by others.

An outcome has the model's answers (`answers`, one for each request: a text, or steps) and the expectations: `variables`
(or an `[error]` with its position, its words and what was `unset`), and where it matters the `prompts`, `systems`,
`offered` tools, `choices` and `lengths` of the requests, the `calls` that ran and the `seconds` they took. The number
of requests and the `warnings` of the checker are always compared.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from unbroken import CallStarted, Request, ScriptedModel, System, User, UserError
from unbroken.tools.toolbox import Toolbox
from unbroken_dph import (
    InBlock,
    InvalidProgram,
    ProgramFailed,
    check_program,
    load_program,
    run_program,
)
from unbroken_testing import Call, Pause, Say, Step, Think, run_virtual
from unbroken_wires.messages import OneTool

FOLDER = Path(__file__).parent / "programs"
TOOLS = Path(__file__).parent / "tools.py"
GOOD, BAD = (
    sorted(file.stem for file in FOLDER.glob("*.toml") if file.stem.startswith("bad_") is bad) for bad in (False, True)
)
WAYS_TO_FAIL = {kind.__name__: kind for kind in (InvalidProgram, ProgramFailed, UserError)}

Table = dict[str, Any]


class Played:
    """One program of the corpus, run on the answers of its outcome."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / f"{name}.dph"
        self.outcome: Table = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
        self.model = ScriptedModel(*[_steps(answer) for answer in self.outcome.get("answers", [])], "not asked for")
        self.calls: list[list[Any]] = []
        self.seconds = 0.0
        self.value: Any = None
        self.variables: Table = {}
        self.error: UserError | ProgramFailed | None = None
        try:
            run_virtual(self._run)
        except (UserError, ProgramFailed) as error:
            self.error = error
            self.variables = error.variables if isinstance(error, ProgramFailed) else {}

    async def _run(self) -> None:
        stream = run_program(self.path, self.model, [TOOLS], self.outcome.get("given"))
        async for event in stream:
            if isinstance(event, InBlock) and isinstance(event.event, CallStarted):
                self.calls.append([event.event.name, event.event.arguments])
        self.seconds = asyncio.get_running_loop().time()
        self.value, self.variables = stream.result.value, stream.result.variables

    def agrees(self) -> None:
        """Checks the requests, calls and variables of the outcome."""
        outcome, requests = self.outcome, self.model.requests
        assert len(requests) == len(outcome.get("answers", []))
        for wanted, request in zip(outcome.get("prompts", []), requests, strict=False):
            said = _said(request, User)
            assert said == wanted or (wanted.startswith("That does not match the format") and said.startswith(wanted))
        for wanted, request in zip(outcome.get("systems", []), requests, strict=False):
            assert _said(request, System).startswith(wanted)
        for key, seen in (
            ("offered", [[tool.name for tool in request.tools] for request in requests]),
            ("choices", [_choice(request) for request in requests]),
            ("lengths", [len(request.messages) for request in requests]),
            ("calls", self.calls),
            ("seconds", self.seconds),
            ("value", self.value),
        ):
            assert outcome.get(key, seen) == seen
        variables: Table = outcome.get("variables", {})
        assert {name: self.variables.get(name) for name in variables} == variables


def _steps(answer: str | list[Table]) -> str | list[Step]:
    return answer if isinstance(answer, str) else [_step(dict(each)) for each in answer]


def _step(words: Table) -> Step:
    match words:
        case {"say": text}:
            return Say(text)
        case {"think": text}:
            return Think(text)
        case {"pause": seconds}:
            return Pause(seconds)
        case _:
            return Call(words.pop("call"), words)


def _said(request: Request, role: type[User | System]) -> str:
    return next((message.text for message in reversed(request.messages) if isinstance(message, role)), "")


def _choice(request: Request) -> str:
    return request.choice.name if isinstance(request.choice, OneTool) else request.choice or "auto"


@pytest.mark.parametrize("name", GOOD)
def test_a_good_program_has_the_expected_outcome(name: str) -> None:
    played = Played(name)
    assert played.error is None, played.error
    played.agrees()
    program = load_program(played.path)
    assert program.description == played.outcome.get("description", "")
    found = check_program(program, Toolbox(TOOLS), played.outcome.get("given", {}))
    warnings = played.outcome.get("warnings", [])
    assert [[problem.place.line, problem.place.column] for problem in found] == [each[:2] for each in warnings]
    for problem, (*_, words) in zip(found, warnings, strict=True):
        assert words in problem.message
        assert problem.kind == "warning"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_program_has_one_clear_error(name: str) -> None:
    played = Played(name)
    wanted: Table = played.outcome["error"]
    error = played.error
    assert type(error) is WAYS_TO_FAIL[wanted["kind"]], error
    assert [words for words in wanted["words"] if words not in str(error)] == []
    assert not set(wanted.get("unset", ())) & set(played.variables)
    played.agrees()
    if isinstance(error, InvalidProgram | ProgramFailed):
        places = [problem.place for problem in error.problems] if isinstance(error, InvalidProgram) else [error.place]
        found = [[place.line, place.column] for place in places]
        assert found == wanted.get("places", [[wanted["line"], wanted["column"]]])
        assert places[0].file == str(FOLDER / wanted.get("file", f"{name}.dph"))
        assert (
            not played.model.requests or wanted["kind"] == "ProgramFailed"
        )  # a mistake that the check finds costs nothing


def test_the_corpus_is_not_smaller_than_intended() -> None:
    assert len(GOOD) >= 55
    assert len(BAD) >= 55
