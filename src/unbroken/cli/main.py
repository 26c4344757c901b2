"""Where the commands are hung up, and where our errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import cast

import typer

from unbroken import __version__
from unbroken.cli.chat import chat_command
from unbroken.cli.decode import decode_command
from unbroken.cli.faults import app as faults_app
from unbroken.cli.keys import app as keys_app
from unbroken.cli.output import READER_GONE, Output
from unbroken.cli.probe import probe_command
from unbroken.cli.run import run_command
from unbroken.cli.serve import serve_command
from unbroken.errors import UnbrokenError

app = typer.Typer(
    name="unbroken",
    help="Runs the tool calls of language models: each answered exactly once, in order, as fast as the stream allows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # it fills the lines of a docstring to the width of the terminal
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"unbroken {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Runs the tool calls of language models: each answered exactly once, in order, as fast as the stream allows."""


app.command("run")(run_command)
app.command("chat")(chat_command)
app.command("serve")(serve_command)
app.add_typer(keys_app, name="keys")
app.command("decode")(decode_command)
app.command("probe")(probe_command)
app.add_typer(faults_app, name="faults")


def main() -> None:
    out = _open_streams()
    try:
        app()
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
