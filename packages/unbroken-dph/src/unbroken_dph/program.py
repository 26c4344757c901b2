"""`run_program`: runs a program with its model, tools and variables, from the check to the result. `running` executes
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
from unbroken.errors import UserError
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.context import RunContext
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recorder import Recorder
from unbroken_dph.checking import check_program
from unbroken_dph.evaluating import Environment, types_beside
from unbroken_dph.outputs import BlockRun, ProgramEvent, ProgramSink
from unbroken_dph.parsing import parse_program, read_source
from unbroken_dph.problems import InvalidProgram, Problem, ProgramFailed, Source
from unbroken_dph.running import ENDING, Library, Runner, TooDeep
from unbroken_dph.syntax import Program, lists_of
from unbroken_dph.values import Scope, value_of
from unbroken_wires.messages import Json, Usage
from unbroken_wires.transcript import Transcript
from unbroken_wires.validation import checked


@dataclass(frozen=True, slots=True)
class ProgramResult:
    value: Json
    """The value of the statement that ran last."""
    variables: dict[str, Json] = field(default_factory=dict[str, Json])
    usage: Usage = field(default_factory=Usage)
    requests: int = 0
    seconds: float = 0.0
    failed_blocks: tuple[BlockRun, ...] = ()
    """The blocks that stopped with `tool_failure`, because all calls of a response ran and failed."""


class ProgramRun(Streamed[ProgramEvent, ProgramResult]):
    """A running program: `result = await run_program(…)`, or `async for event in run_program(…)`, after which `result`
    is set. If you stop iterating, the program ends."""

    def __init__(
        self,
        perform: Callable[[ProgramSink], Awaitable[ProgramResult]],
        scope: Scope,
        warnings: Sequence[Problem],
    ) -> None:
        super().__init__(perform)
        self._scope = scope
        self.warnings = warnings
        """The warnings of the check before the program started."""

    @property
    def variables(self) -> dict[str, Json]:
        """The current variables, also after it was ended early."""
        return self._scope.snapshot()

    def __await__(self) -> Generator[Any, None, ProgramResult]:
        return self._to_its_end().__await__()

    async def _to_its_end(self) -> ProgramResult:
        async with self:
            while await anext(self, None) is not None:
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
    """Runs a program: its text, or the path of its file. If the check finds a mistake, the program does not start and
    `InvalidProgram` is raised. If it stops while it runs, `ProgramFailed` is raised.

        - `model`: the model for blocks that do not name one; None if no block needs it.
        - `models`: names for `model="name"` in a block; otherwise a block writes `provider:model`.
        - `types`: the types for `output="obj/Type"`; classes in the modules of the tools are found without it.
        - `on_approval`, `deps`, `record`: as for an `Agent`.
    """
    program = load_program(source)
    asked = connect(model) if isinstance(model, str) else model
    recorder = record if isinstance(record, Recorder) or record is None else Recorder(record)
    toolset = ToolSet(tools)

    async def perform(emit: ProgramSink) -> ProgramResult:
        async with toolset.opened():
            toolbox = await toolset.toolbox(RunContext(), Transcript())
            environment = Environment(
                run=secrets.token_hex(6),
                model=asked,
                toolbox=toolbox,
                models=models or {},
                types={**types_beside(toolbox), **(types or {})},
                emit=emit,
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
            raise UserError(f"the variable `{name}` is not a JSON value: {error}; convert it to JSON") from None
    return found


def load_program(source: str | Path | Source | Program) -> Program:
    """Loads a program. A string is the program itself, unless it is just the name of a `.dph` file; a path is its
    file."""
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
    blocks = tuple(environment.failed_blocks)
    return ProgramResult(value, dict(scope), environment.usage, environment.requests, seconds, blocks)
