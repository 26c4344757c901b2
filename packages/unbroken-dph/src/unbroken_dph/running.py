"""Executes the statements of a program, one after another. `program` starts it.

An error that stops a program names its position. Programs can call each other: `@name(…)` runs the file `name.dph` in
the folder of the caller. Each file is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never, cast

from unbroken.errors import UnbrokenError
from unbroken_dph.arguments import Settings, TooLong, fill, unfit, unknown
from unbroken_dph.asking import ASK, call_tool
from unbroken_dph.evaluating import CannotEvaluate, Environment, evaluate, no_such_tool
from unbroken_dph.outputs import BlockFinished, BlockRun, BlockStarted
from unbroken_dph.parsing import parse_program, read_source
from unbroken_dph.problems import Position, ProgramFailed, Source
from unbroken_dph.syntax import (
    Assignment,
    Block,
    CallStatement,
    Expression,
    For,
    If,
    Parallel,
    Program,
    Statement,
    lists_of,
)
from unbroken_dph.values import Scope, kind_of
from unbroken_wires.messages import Json

ENDING = ".dph"


@dataclass(slots=True)
class Library:
    _read: dict[Path, Program] = field(default_factory=dict[Path, Program])

    def find(self, name: str, caller: Source) -> Program | None:
        """The program with that name, or None. Raises if its file exists but cannot be read."""
        if caller.path is None:
            return None
        path = caller.path.parent / f"{name}{ENDING}"
        if path not in self._read:
            if not path.is_file():
                return None
            self._read[path] = parse_program(read_source(path))
        return self._read[path]


AT_A_TIME = 200
"""How many statements without a model or a tool run before other tasks get a turn."""
CALLS_DEEP = 32
"""How deep programs may call each other: more is considered an endless recursion."""
AT_ONCE = 1_000
"""How many of them may run at the same time: in a `/parallel/`, an endless recursion grows in breadth first."""


class Runner:
    """Runs one program. `calls` are the positions from which it was called, the innermost first."""

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
        """Runs the statements and returns the value of the last one."""
        value: Json = None
        for statement in statements:
            await self._yield_to_others(scope)
            value = await self._statement(statement, scope)
        return value

    async def _yield_to_others(self, scope: Scope) -> None:
        """Lets other tasks run, and an interrupt be noticed, even while a program only computes."""
        environment = self._environment
        environment.steps += 1 + scope.begin_statement()
        if environment.steps > AT_A_TIME:
            environment.steps = 0
            await asyncio.sleep(0)

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
                    await self._yield_to_others(scope)
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
                fill(block.text, scope), settings, scope.history, running.block, self._environment
            )
            if settings.history is True:
                scope.history = asked.messages
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
            inside = Runner(program, self._environment, self._library, calls, running.block.number)
            own = Scope({**{name: [] for name in lists_of(program)}, **arguments})
            try:
                value = await inside.run(program.statements, own)
            except RecursionError:  # blocks may be nested too, and Python has its own limit
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
            "use an /if/ to end the recursion"
        )
        return TooDeep(places[0], message, self._calls)

    async def _parallel(self, statement: Parallel, scope: Scope) -> Json:
        """Runs all children at the same time, each with its own copy of the variables. If one fails the others
        continue: what they set is kept, then its error is raised."""
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
        except* TooDeep as errors:  # an endless recursion: the others would continue it
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
        hint = "; use keys(…) or values(…) of it" if isinstance(value, dict) else ""
        raise self._failed(statement.items.at, f"a loop needs a list, not {kind_of(value)}{hint}")

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
    """An endless recursion: it stops everything else."""


def _together(failed: Sequence[ProgramFailed]) -> ProgramFailed:
    """One error for several children that failed: the first, which names the others."""
    first, *others = failed
    if not others:
        return first
    more = "; ".join(f"line {error.place.line}: {error.message}" for error in others)
    together = ProgramFailed(first.place, f"{first.message} (also: {more})", first.calls)
    together.__cause__ = first.__cause__
    return together


class _Running:
    """Emits the events for the start and the end of a block, whatever ends it."""

    def __init__(self, environment: Environment, block: BlockRun) -> None:
        self.block = block
        self._environment = environment
        self._value: Json = None
        self._stop_reason = ""
        self._started = environment.clock.elapsed()

    def end(self, value: Json, stop_reason: str = "") -> None:
        self._value, self._stop_reason = value, stop_reason

    def __enter__(self) -> _Running:
        self._environment.emit(BlockStarted(self.block))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        seconds = self._environment.clock.elapsed() - self._started
        words = "" if error is None else "cancelled" if isinstance(error, asyncio.CancelledError) else _words(error)
        self._environment.emit(BlockFinished(self.block, self._value, seconds, words, self._stop_reason))


def _words(error: BaseException) -> str:
    return error.message if isinstance(error, ProgramFailed) else str(error) or type(error).__name__
