"""`unbroken dph run` and `unbroken dph check`: programs in DPH. `dph_progress` shows what a program does."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, TypeAlias

import typer

from unbroken.agent.streaming import BACKGROUND
from unbroken.agent.toolset import ToolSet
from unbroken.errors import AnswerInvalid, MissingKey, UnbrokenError, UnknownProvider, UserError
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.context import RunContext
from unbroken_cli import options
from unbroken_cli.exits import ANSWERED, MISUSED, STOPPED, code_of, ending, in_options, print_line
from unbroken_cli.progress_line import progress
from unbroken_cli.session import allow, build_tools, logged, opened_model
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean, counted
from unbroken_dph import InvalidProgram, Problem, Program, ProgramFailed, ProgramResult, load_program, run_program
from unbroken_dph.checking import check_program
from unbroken_dph.commands.dph_progress import JsonShow, PlainShow, Show, TerminalShow, spent
from unbroken_dph.evaluating import types_beside
from unbroken_dph.parsing import read_source
from unbroken_dph.problems import SHOWN
from unbroken_dph.values import ToolCallFailed, read_json
from unbroken_wires.messages import Json
from unbroken_wires.transcript import Transcript

app = typer.Typer(help="Programs for models in the language DPH (docs/dph.md).", no_args_is_help=True)

FINE, WRONG = 0, 1

File: TypeAlias = Annotated[str, typer.Argument(metavar="FILE.dph", help="The program; - reads standard input.")]
Variables: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--variable", "-v", metavar="NAME=VALUE", help="A variable; a JSON value is parsed. May be repeated."),
]
Also: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PROVIDER:MODEL", help='The model for model="NAME" in a block; may be repeated.'),
]


@app.command("run")
@options.takes(*options.MODEL, "tools", "mcp", "yes", "record", *options.OUTPUT)
def run_command(file: File, setup: options.Setup, also: Also = None, variable: Variables = None) -> None:
    """Run a program. Standard output gets its value, which is that of the statement that ran last.

    The program is checked first: if a mistake is found, it does not start. The terminal, or standard error in a pipe,
    shows when each block starts and ends, and its calls. Tools that need an approval are denied without --yes.

    Exit codes: 0 the program ran to its end; 2 wrong use, a program with mistakes, a wrong key; 3 the provider failed;
    4 the program stopped (a tool failed, a loop over a number, …), or an /explore/ in it because all its tool calls
    failed; 130 interrupted.
    """
    show = _show(setup.json)
    live = isinstance(show, TerminalShow)
    with ending(setup), logged(setup), nullcontext() if live else redirect_stdout(sys.stderr):
        try:
            program = _program(file)
            variables = _variables(variable or ())
            models = _models(also or ())
            shown = nullcontext() if setup.json and is_terminal(sys.stdout) else progress(f"running {file}")
            asked = opened_model(setup) if setup.model.strip() else nullcontext()  # a program need not ask a model
            with shown, asked as model:
                result = _run(program, setup, model, variables, models=models, show=show)
        except InvalidProgram as error:
            show.refuse(error)
            _print_problems([*error.warnings, *error.problems])
            raise typer.Exit(MISUSED) from None
        except ProgramFailed as error:
            show.fail(error)
            if setup.debug:
                traceback.print_exception(error, file=sys.stderr)
            typer.echo(clean(_in_words(error)), err=True)
            _print_variables(error.variables)
            if error.requests:
                print_line(f"used so far: {spent(error.requests, error.usage)}")
            raise typer.Exit(_code(error.__cause__)) from None
        show.finish(result)
        for block in result.failed_blocks:
            print_line(f"{block.file}:{block.line}: /explore/ {block.name} stopped: all its tool calls failed")
    raise typer.Exit(STOPPED if result.failed_blocks else ANSWERED)


@app.command("check")
@options.takes("tools", "mcp", "debug")
def check_command(
    files: Annotated[list[str], typer.Argument(metavar="FILE.dph…", help="Programs; - reads standard input.")],
    setup: options.Setup,
    variable: Annotated[
        list[str] | None,
        typer.Option("--variable", "-v", metavar="NAME", help="A variable that `run` will be given; may be repeated."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as mistakes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Problems as JSON on standard output, one per line.")] = False,
) -> None:
    """Find mistakes without running anything: blocks that are not closed, unknown tools and arguments, variables that
    are never set, programs that do not exist. Without --tools, tools are not checked.

    Exit codes: 0 no mistakes; 1 there are some; 2 wrong use, or a file that cannot be read.
    """
    with ending(setup), redirect_stdout(sys.stderr):
        names = {one.partition("=")[0] for one in variable or ()}
        problems: list[Problem] = []
        unreadable: list[UserError] = []
        for file in files:
            try:
                problems += _problems(file, setup, names)
            except UserError as error:
                unreadable.append(error)
    wrong = [problem for problem in problems if strict or problem.kind == "error"]
    if json:
        for problem in problems:
            typer.echo(jsonlib.dumps(problem.to_json(), ensure_ascii=False))
    else:
        _print_problems(problems)
        if not wrong and not unreadable:
            warned = f", {counted(len(problems), 'warning')}" if problems else ""
            looked = "" if setup.tools or setup.mcp else " (tools were not checked: give --tools)"
            typer.echo(f"{counted(len(files), 'program')}: no mistakes found{warned}{looked}")
    for error in unreadable:
        print_line(str(error))
    raise typer.Exit(MISUSED if unreadable else WRONG if wrong else FINE)


def _run(
    program: Program,
    setup: options.Setup,
    model: Model | None,
    variables: dict[str, Json],
    *,
    models: dict[str, Model],
    show: Show,
) -> ProgramResult:
    run = run_program(
        program,
        model,
        build_tools(setup),
        variables,
        models=models,
        on_approval=allow if setup.yes else None,
        record=setup.record or None,
    )

    async def work() -> ProgramResult:
        printed = False
        try:
            async for event in run:
                if not printed:
                    printed = True
                    _print_problems(run.warnings)
                show.show(event)
            if not printed:
                _print_problems(run.warnings)
        except asyncio.CancelledError:
            await run.aclose()
            async for event in run:  # the events of what was in progress, and how it ended
                show.show(event)
            raise
        return run.result

    try:
        return BACKGROUND.run(work())
    except KeyboardInterrupt:
        show.interrupt(run.variables)
        _print_variables(run.variables)
        raise
    finally:
        show.close()


def _print_variables(variables: dict[str, Json]) -> None:
    names = [name for name, value in variables.items() if value != []]  # lists exist from the beginning
    if names:
        print_line(f"variables set so far: {', '.join(names)}")


def _problems(file: str, setup: options.Setup, names: set[str]) -> Sequence[Problem]:
    try:
        program = _program(file)
    except InvalidProgram as error:
        return error.problems
    if not setup.tools and not setup.mcp:
        return check_program(program, None, names)
    toolset = ToolSet(build_tools(setup))

    async def look() -> list[Problem]:
        async with toolset.opened():
            toolbox = await toolset.toolbox(RunContext(), Transcript())
            return check_program(program, toolbox, names, types_beside(toolbox))

    return BACKGROUND.run(look())


def _program(file: str) -> Program:
    if file == "-":
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
            raise UserError("reading standard input failed: it is closed; name the file of the program")
        try:
            return load_program(f"{sys.stdin.buffer.read().decode('utf-8-sig')}\n")
        except UnicodeDecodeError as error:
            raise UserError(f"standard input is not UTF-8 (byte {error.start}); send the program as UTF-8") from None
    return load_program(read_source(file))


def _variables(given: Sequence[str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier() or not name.isascii():
            raise UserError(f"-v {one}: a variable is given as NAME=VALUE, as in -v city=Beijing")
        found[name] = _value(value)
    return found


def _value(text: str) -> Json:
    """Parses numbers, true, false, null, lists, objects and quoted strings as JSON; anything else is a string."""
    try:
        return read_json(text)
    except ValueError:
        return text


def _models(given: Sequence[str]) -> dict[str, Model]:
    found: dict[str, Model] = {}
    for one in given:
        name, equals, model = one.partition("=")
        if not equals or not name or not model:
            raise UserError(f"--also {one}: give a name and a model, as in --also fast=openai:gpt-5-mini")
        found[name] = connect(model)
    return found


def _show(json: bool) -> Show:
    if json:
        return JsonShow(sys.stdout)
    if is_terminal(sys.stdout):
        return TerminalShow()
    return PlainShow(sys.stdout, sys.stderr)


def _in_words(error: ProgramFailed) -> str:
    """The message with command line options. Messages of tools, and the quoted line of the program, are not changed."""
    cause = error.__cause__
    if not isinstance(cause, UnbrokenError) or isinstance(cause, ToolCallFailed):
        return str(error)
    return str(error).replace(error.message, in_options(error.message, cause), 1)


def _code(cause: BaseException | None) -> int:
    if not isinstance(cause, UnbrokenError) or isinstance(cause, AnswerInvalid):
        return STOPPED
    wrong = isinstance(cause, UserError) and not isinstance(cause, MissingKey | UnknownProvider)
    return STOPPED if wrong else code_of(cause)


def _print_problems(problems: Sequence[Problem]) -> None:
    for problem in problems[:SHOWN]:
        mark = "warning: " if problem.kind == "warning" else ""
        where = f"{problem.place}: {mark}{problem.message}"
        typer.echo(clean(f"{where}\n{problem.place.drawn(problem.expected)}"), err=True)
    if len(problems) > SHOWN:
        typer.echo(f"… and {len(problems) - SHOWN} more", err=True)
