"""`run_program`: a program, its model, its tools and its variables, from the check to the result. `running` executes
the statements."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

from unbroken.agent.streaming import BACKGROUND, Streamed
from unbroken.agent.toolset import ToolSet
from unbroken.clock import Clock, current_clock
from unbroken.dph.checking import check_program
from unbroken.dph.evaluating import Environment, types_beside
from unbroken.dph.outputs import ProgramEvent, ProgramSink
from unbroken.dph.parsing import parse_program, read_source
from unbroken.dph.problems import InvalidProgram, Problem, ProgramFailed, Source
from unbroken.dph.running import ENDING, Library, Runner, TooDeep
from unbroken.dph.syntax import Program, lists_of
from unbroken.dph.values import Scope, value_of
from unbroken.errors import UserError
from unbroken.messages import Json, Usage
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recorder import Recorder
from unbroken.transcript import Transcript
from unbroken.validation import checked


@dataclass(frozen=True, slots=True)
class ProgramResult:
    value: Json
    """Of the statement that ran last."""
    variables: dict[str, Json] = field(default_factory=dict[str, Json])
    usage: Usage = field(default_factory=Usage)
    requests: int = 0
    seconds: float = 0.0


class ProgramRun(Streamed[ProgramEvent, ProgramResult]):
    """A program that runs: `result = await run_program(…)`, or `async for event in run_program(…)`, after which
    `result` is there. If you stop reading, it ends."""

    def __init__(
        self,
        perform: Callable[[ProgramSink], Awaitable[ProgramResult]],
        scope: Scope,
        warnings: Sequence[Problem],
    ) -> None:
        super().__init__(perform)
        self._scope = scope
        self.warnings = warnings
        """The warnings of the check before it began."""

    @property
    def variables(self) -> dict[str, Json]:
        """As they are now, also after it was ended early."""
        return self._scope.snapshot()

    def __await__(self) -> Generator[Any, None, ProgramResult]:
        return self._to_its_end().__await__()

    async def _to_its_end(self) -> ProgramResult:
        async for _ in self:
            pass
        return self.result


class ProgramOptions(TypedDict, total=False):
    """Options of `run_program`, which describes them."""

    models: Mapping[str, Model] | None
    types: Mapping[str, Any] | None
    on_approval: OnApproval | None
    deps: Any
    record: str | Path | Recorder | None
    clock: Clock | None


@checked
def run_program(
    source: str | Path | Source | Program,
    model: Model | str | None,
    tools: Sequence[Any] | Toolbox = (),
    variables: Mapping[str, Json] | None = None,
    *,
    models: Mapping[str, Model] | None = None,
    types: Mapping[str, Any] | None = None,
    on_approval: OnApproval | None = None,
    deps: Any = None,
    record: str | Path | Recorder | None = None,
    clock: Clock | None = None,
) -> ProgramRun:
    """Run a program: its text, or the path of its file. A program with a mistake that can be found beforehand is not
    begun: `InvalidProgram`. One that stops on its way raises `ProgramFailed`.

    - `model`: who is asked by blocks that name no other; None will do for a program that asks nobody.
    - `models`: what `model="name"` in a block may name; else it is `provider:model`.
    - `types`: what `output="obj/Type"` may name; classes beside the tools are known without.
    - `on_approval`, `deps`, `record`: as for an `Agent`.
    """
    program = load_program(source)
    asked = connect(model) if isinstance(model, str) else model
    recorder = record if isinstance(record, Recorder) or record is None else Recorder(record)
    toolset = ToolSet(tools)

    async def perform(tell: ProgramSink) -> ProgramResult:
        async with toolset.opened():
            toolbox = toolset.toolbox(0, Transcript())
            environment = Environment(
                run=secrets.token_hex(6),
                model=asked,
                toolbox=toolbox,
                models=models or {},
                types={**types_beside(toolbox), **(types or {})},
                tell=tell,
                clock=clock or current_clock(),
                on_approval=on_approval,
                deps=deps,
                recorder=recorder,
            )
            return await _perform(program, environment, scope, warnings)

    scope = Scope({**{name: [] for name in lists_of(program)}, **_values(variables or {})})
    warnings: list[Problem] = []
    return ProgramRun(perform, scope, warnings)


@checked
def run_program_sync(
    source: str | Path | Source | Program,
    model: Model | str | None,
    tools: Sequence[Any] | Toolbox = (),
    variables: Mapping[str, Json] | None = None,
    **options: Unpack[ProgramOptions],
) -> ProgramResult:
    """`run_program` for programs that cannot await."""

    async def run() -> ProgramResult:
        return await run_program(source, model, tools, variables, **options)

    return BACKGROUND.run(run())


def _values(variables: Mapping[str, Any]) -> dict[str, Json]:
    """Copies of the variables as values of the language."""
    found: dict[str, Json] = {}
    for name, value in variables.items():
        try:
            found[name] = value_of(value)
        except ValueError as error:
            raise UserError(f"the variable `{name}` is no value: {error}; give what can be written as JSON") from None
    return found


def load_program(source: str | Path | Source | Program) -> Program:
    """A text is a program; a path, or a text that is nothing but the name of a `.dph` file, is where one lies."""
    match source:
        case Program():
            return source
        case Source():
            return parse_program(source)
        case str() if "\n" in source or not source.strip().endswith(ENDING):
            return parse_program(source)
        case _:
            return parse_program(read_source(source))


async def _perform(program: Program, environment: Environment, scope: Scope, warnings: list[Problem]) -> ProgramResult:
    library = Library()
    problems = check_program(
        program,
        environment.toolbox,
        set(scope),
        environment.types,
        library,
        has_model=environment.model is not None,
        models=environment.models,
    )
    warnings += [problem for problem in problems if problem.kind == "warning"]
    if errors := [problem for problem in problems if problem.kind == "error"]:
        raise InvalidProgram(errors, warnings)
    started = environment.clock.elapsed()
    try:
        value = await Runner(program, environment, library).run(program.statements, scope)
    except ProgramFailed as error:
        failed = ProgramFailed(error.place, error.message, error.calls) if isinstance(error, TooDeep) else error
        failed.variables = dict(scope)
        failed.usage, failed.requests = environment.usage, environment.requests
        raise failed from error.__cause__
    seconds = environment.clock.elapsed() - started
    return ProgramResult(value, dict(scope), environment.usage, environment.requests, seconds)
