"""Where the commands are hung up, and where our errors become one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from unbroken import __version__
from unbroken.cli.output import READER_GONE, Output
from unbroken.errors import UnbrokenError

COMMANDS = {
    "run": "unbroken.cli.run:run_command",
    "chat": "unbroken.cli.chat:chat_command",
    "replay": "unbroken.cli.replay:replay_command",
    "dph": "unbroken.cli.dph:app",
    "serve": "unbroken.cli.serve:serve_command",
    "keys": "unbroken.cli.keys:app",
    "decode": "unbroken.cli.decode:decode_command",
    "probe": "unbroken.cli.probe:probe_command",
    "faults": "unbroken.cli.faults:app",
    "view": "unbroken.cli.view:view_command",
    "stats": "unbroken.cli.stats:stats_command",
}
"""In the order in which `--help` lists them. Only the one that is wanted is loaded: a gateway needs no agent."""


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))


def _flags_alone(params: Sequence[Any]) -> Sequence[Any]:
    """typer's help shows `<bool>` behind an option that takes no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def build(wanted: str = "") -> typer.Typer:
    """The command line with the wanted command; with all of them where none, or none that there is, is named."""
    app = typer.Typer(
        name="unbroken",
        cls=_Group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",  # it fills the lines of a docstring to the width of the terminal
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name, place in COMMANDS.items():
        if wanted in (name, "") or wanted not in COMMANDS:
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            if isinstance(command, typer.Typer):
                for one in command.registered_commands:
                    one.cls = _Command
                app.add_typer(command, name=name, cls=_Group)
            else:
                app.command(name, cls=_Command)(command)
    return app


def _version(value: bool) -> None:
    if value:
        typer.echo(f"unbroken {__version__}")
        raise typer.Exit


def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Runs the tool calls of language models: each answered exactly once, in order, as fast as the stream allows."""


def main() -> None:
    out = _open_streams()
    try:
        build(sys.argv[1] if len(sys.argv) > 1 else "")()
    except UnbrokenError as error:
        typer.echo(f"unbroken: {error}", err=True)
        sys.exit(2)
    except SystemExit:
        if out is not None and out.gone:
            sys.exit(READER_GONE)  # not 1, which means something in most commands
        raise


def _open_streams() -> Output | None:
    """A shell may have closed them; then Python has none. Gives what standard output is now."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - see above
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it is open as long as the program runs
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - see above
        typer.echo("unbroken: standard output is closed, and the answer goes there; send it to /dev/null", err=True)
        sys.exit(2)
    out, err = sys.stdout, sys.stderr
    if isinstance(err, TextIOWrapper):
        err.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? and nothing breaks
    if not isinstance(out, TextIOWrapper):
        return None
    sys.stdout = told = Output.over(cast("TextIOWrapper", out))
    return told
