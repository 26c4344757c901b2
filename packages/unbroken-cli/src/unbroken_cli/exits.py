"""Exit codes, and the line on standard error for an error that ends a command. The line names command line options
instead of Python arguments."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from unbroken.errors import ModelNotFound, Unauthorized, UnbrokenError, UserError
from unbroken_cli.terminal_text import clean

if TYPE_CHECKING:  # commands that run no agent start without loading one
    from unbroken.agent.result import Result
    from unbroken_cli.options import Setup

ANSWERED, MISUSED, FAILED, STOPPED, WAITING, INTERRUPTED = 0, 2, 3, 4, 5, 130

EXIT_CODES = (
    "Exit codes: 0 answered, also at a limit; 2 wrong use, a wrong key or a model that does not exist; 3 the provider "
    "failed or its answer broke off; 4 a limit, a loop, failing tools or a check ended the run without an answer (its "
    "text is still printed); 5 calls are waiting for an answer; 130 interrupted."
)

_OPTIONS = {
    "pass api_key=…": "name a variable that holds one with --api-key-env",
    "check api_key": "check the key",
    "set api_key": "set it",
    "pass base_url=…": "give --base-url",
    "base_url=": "--base-url",
    "base_url": "--base-url",
    "raw_log=": "--raw-log ",
}
"""The advice in an error message, and the option that does the same."""


def code_of_result(result: Result[Any]) -> int:
    """An answer that used up a limit is an answer."""
    return WAITING if result.stop_reason == "waiting" else STOPPED if result.cut_off else ANSWERED


def code_of(error: UnbrokenError) -> int:
    return MISUSED if isinstance(error, UserError | Unauthorized | ModelNotFound) else FAILED


def print_line(line: str) -> None:
    """Prints one line on standard error. Line breaks and control characters in it are replaced."""
    typer.echo(f"unbroken: {clean(' '.join(line.split()))}", err=True)


def print_error(error: UnbrokenError, setup: Setup) -> int:
    if setup.debug:
        traceback.print_exception(error, file=sys.stderr)
    message = in_options(str(error), error)
    if setup.api_key_env and isinstance(error, Unauthorized) and error.key_variable:
        message = message.replace(error.key_variable, setup.api_key_env)
    print_line(message)
    return code_of(error)


def in_options(message: str, error: UnbrokenError) -> str:
    """Replaces Python arguments in the message by options. In the user's file of provider profiles `base_url` is a key,
    and no option helps."""
    if not (isinstance(error, UserError) and error.file):
        for spelled, option in _OPTIONS.items():
            message = message.replace(spelled, option)
    return message


@contextmanager
def ending(setup: Setup) -> Generator[None]:
    """Turns an error or an interrupt into a line and an exit code."""
    try:
        yield
    except UnbrokenError as error:
        raise typer.Exit(print_error(error, setup)) from None
    except KeyboardInterrupt:
        print_line("interrupted")
        raise typer.Exit(INTERRUPTED) from None
