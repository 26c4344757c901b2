"""The commands of `unbroken`, each loaded when it is called or when `--help` lists them all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unbroken_cli.exits import MISUSED, print_line
from unbroken_cli.main import print_version

COMMANDS = [
    *(
        "run",
        "resume",
        "chat",
        "replay",
        "runs",
        "worker",
        "dph",
        "serve",
        "keys",
        "admin",
        "decode",
        "probe",
        "faults",
        "view",
    ),
    *("top", "stats", "spend", "eval", "mcp", "demo"),
]
"""In the order in which `--help` lists them."""


def build(wanted: str = "") -> typer.Typer:
    """The command line with the command `wanted`, or with all of them if there is no command of that name."""
    app = typer.Typer(
        name="unbroken",
        cls=_Group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",  # it wraps a docstring to the width of the terminal
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        command = _load(name)
        if isinstance(command, typer.Typer):
            for one in command.registered_commands:
                one.cls = _Command
            app.add_typer(command, name=name, cls=_Group)
        else:
            app.command(name, cls=_Command)(command)
    return app


def _load(name: str) -> Any:
    """The function, or the group of commands, with this name. Loading all of them takes twice as long as loading
    one."""
    match name:
        case "run":
            from unbroken_cli.run import run_command as command  # noqa: PLC0415 - start-up time
        case "resume":
            from unbroken_cli.run import resume_command as command  # noqa: PLC0415 - start-up time
        case "chat":
            from unbroken_cli.chat import chat_command as command  # noqa: PLC0415 - start-up time
        case "replay":
            from unbroken_cli.run import replay_command as command  # noqa: PLC0415 - start-up time
        case "runs":
            from unbroken_durable.commands.runs import app as command  # noqa: PLC0415 - start-up time
        case "worker":
            from unbroken_durable.commands.worker import worker_command as command  # noqa: PLC0415 - start-up time
        case "dph":
            from unbroken_dph.commands.dph import app as command  # noqa: PLC0415 - start-up time
        case "serve":
            from unbroken_gateway.commands.serve import serve_command as command  # noqa: PLC0415 - start-up time
        case "keys":
            from unbroken_gateway.commands.keys import app as command  # noqa: PLC0415 - start-up time
        case "admin":
            from unbroken_gateway.commands.admin import app as command  # noqa: PLC0415 - start-up time
        case "decode":
            from unbroken_cli.decode import decode_command as command  # noqa: PLC0415 - start-up time
        case "probe":
            from unbroken_testing.commands.probe import probe_command as command  # noqa: PLC0415 - start-up time
        case "faults":
            from unbroken_testing.commands.faults import app as command  # noqa: PLC0415 - start-up time
        case "view":
            from unbroken_cli.view import view_command as command  # noqa: PLC0415 - start-up time
        case "top":
            from unbroken_cli.top import top_command as command  # noqa: PLC0415 - start-up time
        case "stats":
            from unbroken_cli.stats import stats_command as command  # noqa: PLC0415 - start-up time
        case "spend":
            from unbroken_gateway.commands.spend import spend_command as command  # noqa: PLC0415 - start-up time
        case "eval":
            from unbroken_testing.commands.eval import eval_command as command  # noqa: PLC0415 - start-up time
        case "mcp":
            from unbroken_cli.mcp_serve import app as command  # noqa: PLC0415 - start-up time
        case "demo":
            from unbroken_cli.demo import demo_command as command  # noqa: PLC0415 - start-up time
        case _:
            raise ValueError(f"`{name}` is in COMMANDS, and nothing loads it")
    return command


_UsageError: Any = typer.BadParameter.__base__
"""The base of all errors in options and arguments. typer does not export it, and may contain its own copy of click."""


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))


class _Group(TyperGroup):
    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Reports a wrong option in one line on standard error, like every other error."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except _UsageError as error:
            if message := error.format_message():  # none if the help was shown in its place
                way_out = f"; `{error.ctx.command_path} --help` lists the options" if error.ctx else ""
                print_line(f"{message[0].lower()}{message[1:].rstrip('.')}{way_out}")
            sys.exit(MISUSED)
        except typer.Abort:
            print_line("aborted")
            sys.exit(1)
        sys.exit(code or 0)

    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))


def _flags_alone(params: Sequence[Any]) -> Sequence[Any]:
    """Hides the `<bool>` that typer's help shows for an option without a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _version(value: bool) -> None:
    if value:
        print_version()
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Runs the tool calls of language models: each answered exactly once, in order, as fast as the stream allows."""
