"""The commands of `unbroken`, each loaded when it is called or when `--help` lists them all. Those of other packages
are entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from unbroken.errors import UserError, needs_extra
from unbroken_cli.exits import MISUSED, print_line
from unbroken_cli.streams import print_version
from unbroken_wires.plugins import load, plugins

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "run": "unbroken_cli.run:run_command",
    "resume": "unbroken_cli.run:resume_command",
    "chat": "unbroken_cli.chat:chat_command",
    "replay": "unbroken_cli.run:replay_command",
    "runs": "durable",
    "runs serve": "gateway",
    "worker": "durable",
    "dph": "dph",
    "serve": "gateway",
    "keys": "gateway",
    "admin": "gateway",
    "decode": "unbroken_cli.decode:decode_command",
    "probe": "testing",
    "faults": "testing",
    "view": "unbroken_cli.view:view_command",
    "top": "unbroken_cli.top:top_command",
    "stats": "unbroken_cli.stats:stats_command",
    "spend": "gateway",
    "eval": "testing",
    "mcp": "unbroken_cli.mcp_serve:app",
    "demo": "unbroken_cli.demo:demo_command",
}
"""In the order in which `--help` lists them: where each lies, or the extra of `unbroken` that adds it. Two words: a
command of a group."""
GROUP = "unbroken.commands"
"""The entry points by which packages, plugins too, add commands."""
_TITLE = "`unbroken {}`"


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
    for name, command in _commands(wanted).items():
        if isinstance(command, typer.Typer):
            _extend(command, name)
            for one in command.registered_commands:
                one.cls = _Command
            app.add_typer(command, name=name, cls=_Group)
        else:
            app.command(name, cls=_Command)(command)
    return app


def _commands(wanted: str) -> dict[str, Any]:
    """The function, or the group of commands, of each name. Loading all of them takes twice as long as loading one."""
    if ":" in (home := COMMANDS.get(wanted, "")):
        return {wanted: _load(home)}
    added = _added()
    if wanted in added:
        return {wanted: load(added[wanted], _TITLE)}
    if home:
        raise _not_installed(wanted, home)
    found: dict[str, Any] = {}
    for name in (*COMMANDS, *sorted(added.keys() - COMMANDS.keys())):
        if " " in name:
            continue  # its group has it
        if ":" in (home := COMMANDS.get(name, "")):
            found[name] = _load(home)
        elif name in added:
            found[name] = load(added[name], _TITLE)
    return found


def _load(home: str) -> Any:
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def _added() -> Mapping[str, EntryPoint]:
    """The commands that other packages add."""
    return plugins(GROUP, _TITLE, [name for name, home in COMMANDS.items() if ":" in home], "unbroken-cli")


def _extend(group: typer.Typer, name: str) -> None:
    """Adds the commands of other packages to a group."""
    added = _added()
    for full in dict.fromkeys((*COMMANDS, *added)):  # always in the same order
        if not full.startswith(f"{name} "):
            continue
        options: dict[str, Any] = {"hidden": True, "context_settings": {"ignore_unknown_options": True}}
        if full in added:
            group.command(full.partition(" ")[2])(load(added[full], _TITLE))
        else:
            group.command(full.partition(" ")[2], **options)(partial(_refuse, full, COMMANDS[full]))


def _refuse(name: str, extra: str, words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    raise _not_installed(name, extra)


def _not_installed(name: str, extra: str) -> UserError:
    return needs_extra(f"`unbroken {name}`", f"unbroken-{extra}", extra)


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
