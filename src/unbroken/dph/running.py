"""Runs programs: goes through the statements, one after another, and hands each block to whoever can do it. A program
that stops says where; what was set until then is in the error."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never, cast

from unbroken.agent.background import BACKGROUND
from unbroken.agent.streaming import Streamed
from unbroken.agent.toolset import ToolSet
from unbroken.clock import Clock, current_clock
from unbroken.dph.arguments import Settings, unfit, unknown
from unbroken.dph.asking import ASK
from unbroken.dph.checking import check_program, lists_of
from unbroken.dph.environment import Environment, no_such_tool, types_beside
from unbroken.dph.evaluating import CannotEvaluate, evaluate
from unbroken.dph.events import BlockFinished, BlockRun, BlockStarted, ProgramEvent, ProgramSink
from unbroken.dph.files import ENDING, Library
from unbroken.dph.filling import TooLong, fill
from unbroken.dph.parsing import parse_program, read_source
from unbroken.dph.problems import InvalidProgram, Problem, ProgramFailed
from unbroken.dph.scope import Scope
from unbroken.dph.source import Position, Source
from unbroken.dph.syntax import (
    Assignment,
    Block,
    CallStatement,
    Expression,
    For,
    If,
    Parallel,
    Program,
    Statement,
)
from unbroken.dph.tool_calls import call_tool
from unbroken.dph.values import kind_of
from unbroken.errors import UnbrokenError
from unbroken.messages import Json, Usage
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.record import Recorder
from unbroken.transcript import Transcript

AT_A_TIME = 200
"""Statements that only reckon, before others get their turn."""
CALLS_DEEP = 32
"""How deep programs may call each other: more is a recursion without end."""
AT_ONCE = 1_000
"""How many of them may run at the same time: in a `/parallel/` a recursion without end grows in breadth first."""


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
    `result` is there. Whoever stops reading ends it."""

    def __init__(
        self,
        perform: Callable[[ProgramSink], Awaitable[ProgramResult]],
        variables: dict[str, Json],
        warnings: Sequence[Problem],
    ) -> None:
        super().__init__(perform)
        self._variables = variables
        self.warnings = warnings
        """What the check found before it began, and is no mistake."""

    @property
    def variables(self) -> dict[str, Json]:
        """As they are now, also after it was ended early."""
        return dict(self._variables)

    def __await__(self) -> Generator[Any, None, ProgramResult]:
        return self._to_its_end().__await__()

    async def _to_its_end(self) -> ProgramResult:
        async for _ in self:
            pass
        return self.result


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

    scope = Scope({**{name: [] for name in lists_of(program)}, **deepcopy(dict(variables or {}))})
    warnings: list[Problem] = []
    return ProgramRun(perform, scope, warnings)


def run_program_sync(
    source: str | Path | Source | Program,
    model: Model | str | None,
    tools: Sequence[Any] | Toolbox = (),
    variables: Mapping[str, Json] | None = None,
    **options: Any,
) -> ProgramResult:
    """`run_program` for programs that cannot await."""

    async def run() -> ProgramResult:
        return await run_program(source, model, tools, variables, **options)

    return BACKGROUND.run(run())


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
        raise InvalidProgram(errors)
    started = environment.clock.elapsed()
    try:
        value = await _Runner(program, environment, library).run(program.statements, scope)
    except ProgramFailed as error:
        failed = ProgramFailed(error.place, error.message, error.calls) if isinstance(error, TooDeep) else error
        failed.variables = dict(scope)
        failed.usage, failed.requests = environment.usage, environment.requests
        raise failed from error.__cause__
    seconds = environment.clock.elapsed() - started
    return ProgramResult(value, dict(scope), environment.usage, environment.requests, seconds)


class _Runner:
    """One program while it runs. `calls` are the places from which it was called, the innermost first."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        library: Library,
        calls: tuple[Position, ...] = (),
        parent: int = 0,
    ) -> None:
        self._program = program
        self._environment = environment
        self._library = library
        self._calls = calls
        self._parent = parent

    async def run(self, statements: Sequence[Statement], scope: Scope) -> Json:
        """The value of the last."""
        value: Json = None
        for statement in statements:
            self._environment.steps += 1
            if self._environment.steps % AT_A_TIME == 0:
                await asyncio.sleep(0)  # others on the loop get their turn, and an interrupt is heard
            value = await self._statement(statement, scope)
        return value

    async def _statement(self, statement: Statement, scope: Scope) -> Json:
        match statement:
            case Block() | CallStatement() | Assignment():
                try:
                    value = await self._value(statement, scope)
                except CannotEvaluate as error:
                    raise self._failed(error.at, str(error)) from None
                except TooLong as error:
                    raise self._failed(statement.at, str(error)) from None
                except ProgramFailed:
                    raise
                except UnbrokenError as error:
                    raise self._failed(statement.at, str(error)) from error
                self._put(statement.target.at, scope, statement.target.name, value, statement.target.append)
                return value
            case If():
                for branch in statement.branches:
                    if branch.condition is None or self._evaluate(branch.condition, scope):
                        return await self.run(branch.body, scope)
                return None
            case For():
                value = None
                for item in self._items(statement, scope):
                    self._put(statement.at, scope, statement.variable, item)
                    value = await self.run(statement.body, scope)
                return value
            case Parallel():
                return await self._parallel(statement, scope)
            case _:
                assert_never(statement)

    def _put(self, at: int, scope: Scope, name: str, value: Json, append: bool = False) -> None:
        try:
            scope.put(name, value, append=append)
        except ValueError as error:
            raise self._failed(at, f"`{name}`: {error}") from None

    async def _value(self, statement: Block | CallStatement | Assignment, scope: Scope) -> Json:
        match statement:
            case Assignment():
                return evaluate(statement.value, scope)
            case Block():
                return await self._ask(statement, scope)
            case CallStatement():
                return await self._call(statement, scope)

    async def _ask(self, block: Block, scope: Scope) -> Json:
        settings = self._settings(block, scope)
        with self._block_run(block.kind, block) as running:
            asked = await ASK[block.kind](
                fill(block.text, scope), settings, scope.said, running.block, self._environment
            )
            if settings.history is True:
                scope.said = asked.messages
            running.end(asked.value, asked.stop_reason)
            return asked.value

    def _settings(self, block: Block, scope: Scope) -> Settings:
        values: dict[str, Any] = {}
        for argument in block.arguments:
            value = evaluate(argument.value, scope, as_written=True)
            if problem := unknown(block.kind, argument.name) or unfit(argument.name, value):
                raise self._failed(argument.at, problem)
            values[argument.name] = value
        return Settings(**values)

    async def _call(self, call: CallStatement, scope: Scope) -> Json:
        arguments = {each.name: evaluate(each.value, scope, as_written=True) for each in call.arguments}
        if call.name in self._environment.toolbox:
            with self._block_run("call", call) as running:
                value = await call_tool(call.name, arguments, running.block, self._environment)
                running.end(value)
                return value
        program = self._library.find(call.name, self._program.source)
        if program is None:
            raise self._failed(call.at, no_such_tool(self._environment.toolbox, call.name))
        place = self._program.source.place(call.at)
        environment = self._environment
        if len(self._calls) >= CALLS_DEEP or environment.programs >= AT_ONCE:
            raise self._too_deep(call)
        environment.programs += 1
        with self._block_run("program", call) as running:
            calls = (place, *self._calls)
            inside = _Runner(program, self._environment, self._library, calls, running.block.number)
            own = Scope({**{name: [] for name in lists_of(program)}, **arguments})
            try:
                value = await inside.run(program.statements, own)
            except RecursionError:  # blocks stand in each other too, and Python has its own limit
                raise self._too_deep(call) from None
            finally:
                environment.programs -= 1
            running.end(value)
            return value

    def _too_deep(self, call: CallStatement) -> ProgramFailed:
        places = (self._program.source.place(call.at), *self._calls)
        names = " < ".join(Path(place.file).name for place in places[:4])
        message = (
            f"programs call each other too deep ({names} < …; at most {CALLS_DEEP}, and {AT_ONCE:,} at once): "
            "a recursion needs an /if/ that ends it"
        )
        return TooDeep(places[0], message, self._calls)

    async def _parallel(self, statement: Parallel, scope: Scope) -> Json:
        """All children at the same time, each with its own copy of the variables. One that fails leaves the others
        alone: what they set counts, then its error is raised."""
        children = [scope.fork() for _ in statement.body]
        failed: list[ProgramFailed] = []
        values: list[Json] = [None] * len(children)

        async def run(number: int) -> None:
            try:
                values[number] = await self._statement(statement.body[number], children[number])
            except TooDeep:
                raise
            except ProgramFailed as error:
                failed.append(error)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(children)):
                    group.create_task(run(number))
        except* TooDeep as errors:  # a recursion without end: the others would go on with it
            raise errors.exceptions[0] from None
        for child in children:
            try:
                scope.join(child)
            except ValueError as error:
                raise self._failed(statement.at, str(error)) from None
        if failed:
            raise _together(sorted(failed, key=lambda error: (error.place.line, error.place.column)))
        return values[-1] if values else None

    def _items(self, statement: For, scope: Scope) -> list[Json]:
        value = self._evaluate(statement.items, scope)
        if isinstance(value, list):
            return cast("list[Json]", value)
        hint = "; go through keys(…) or values(…) of it" if isinstance(value, dict) else ""
        raise self._failed(statement.items.at, f"a loop goes through a list, and this is {kind_of(value)}{hint}")

    def _evaluate(self, expression: Expression, scope: Scope) -> Json:
        try:
            return evaluate(expression, scope)
        except CannotEvaluate as error:
            raise self._failed(error.at, str(error)) from None

    def _failed(self, at: int, message: str) -> ProgramFailed:
        return ProgramFailed(self._program.source.place(at), message, self._calls)

    def _block_run(self, kind: str, statement: Block | CallStatement) -> _Running:
        place = self._program.source.place(statement.at)
        called = statement.name if isinstance(statement, CallStatement) else ""
        block = self._environment.begin(kind, statement.target.name, place, called, self._parent)
        return _Running(self._environment, block)


class TooDeep(ProgramFailed):
    """A recursion without end: while it is on its way up, nothing beside it goes on."""


def _together(failed: Sequence[ProgramFailed]) -> ProgramFailed:
    """One error for several children that failed: the first, which names the others."""
    first, *others = failed
    if not others:
        return first
    more = "; ".join(f"line {error.place.line}: {error.message}" for error in others)
    together = ProgramFailed(first.place, f"{first.message} (and beside it, {more})", first.calls)
    together.__cause__ = first.__cause__
    return together


class _Running:
    """Tells that a block began, and how it ended, whatever ends it."""

    def __init__(self, environment: Environment, block: BlockRun) -> None:
        self.block = block
        self._environment = environment
        self._value: Json = None
        self._stop_reason = ""
        self._started = environment.clock.elapsed()

    def end(self, value: Json, stop_reason: str = "") -> None:
        self._value, self._stop_reason = value, stop_reason

    def __enter__(self) -> _Running:
        self._environment.tell(BlockStarted(self.block))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        seconds = self._environment.clock.elapsed() - self._started
        words = "" if error is None else "cancelled" if isinstance(error, asyncio.CancelledError) else _words(error)
        self._environment.tell(BlockFinished(self.block, self._value, seconds, words, self._stop_reason))


def _words(error: BaseException) -> str:
    return error.message if isinstance(error, ProgramFailed) else str(error) or type(error).__name__
