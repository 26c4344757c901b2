"""The commands of `unbroken`, each loaded when it is called or when `--help` lists them all. Those of other packages
are entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unbroken.errors import UserError, needs_extra
from unbroken_cli.exits import MISUSED, print_line
from unbroken_cli.main import print_version

OWN = {
    "run": "unbroken_cli.run:run_command",
    "resume": "unbroken_cli.run:resume_command",
    "chat": "unbroken_cli.chat:chat_command",
    "replay": "unbroken_cli.run:replay_command",
    "decode": "unbroken_cli.decode:decode_command",
    "view": "unbroken_cli.view:view_command",
    "top": "unbroken_cli.top:top_command",
    "stats": "unbroken_cli.stats:stats_command",
    "mcp": "unbroken_cli.mcp_serve:app",
    "demo": "unbroken_cli.demo:demo_command",
}
"""Commands of this package: the module and the name of each."""
EXTRAS = {
    "runs": "durable",
    "worker": "durable",
    "dph": "dph",
    "serve": "gateway",
    "keys": "gateway",
    "admin": "gateway",
    "spend": "gateway",
    "probe": "testing",
    "faults": "testing",
    "eval": "testing",
    "runs serve": "gateway",
}
"""Commands of other packages, with the extra of `unbroken` that installs each. They are entry points of the group
`unbroken.commands`, as those of a plugin; with two words, a command of the group that the first names."""
GROUP = "unbroken.commands"
ORDER = [
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
    "top",
    "stats",
    "spend",
    "eval",
    "mcp",
    "demo",
]
"""How `--help` lists them. What a plugin adds comes last."""


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
    if wanted in OWN:
        return {wanted: _own(wanted)}
    found = {point.name: point for point in _added()}
    if wanted in found:
        return {wanted: found[wanted].load()}
    if wanted in EXTRAS:
        raise _not_installed(wanted, EXTRAS[wanted])
    others = sorted(name for name in found if name not in ORDER and " " not in name)
    names = [*(name for name in ORDER if name in OWN or name in found), *others]
    return {name: _own(name) if name in OWN else found[name].load() for name in names}


def _extend(group: typer.Typer, name: str) -> None:
    """Adds the commands of other packages to a group."""
    found = {point.name: point for point in _added() if point.name.startswith(f"{name} ")}
    for full, point in found.items():
        group.command(full.partition(" ")[2])(point.load())
    for full, extra in EXTRAS.items():
        if full.startswith(f"{name} ") and full not in found:
            group.command(full.partition(" ")[2], hidden=True, context_settings={"ignore_unknown_options": True})(
                partial(_refuse, full, extra)
            )


def _refuse(name: str, extra: str, words: list[str] | None = typer.Argument(None)) -> None:
    raise _not_installed(name, extra)


def _not_installed(name: str, extra: str) -> UserError:
    return needs_extra(f"`unbroken {name}`", f"unbroken-{extra}", extra)


def _own(name: str) -> Any:
    module, _, attribute = OWN[name].partition(":")
    return getattr(import_module(module), attribute)


def _added() -> Iterator[EntryPoint]:
    """The commands that other packages add."""
    homes = dict.fromkeys(OWN, "unbroken_cli")
    for point in entry_points(group=GROUP):
        home = point.value.partition(":")[0]
        if homes.setdefault(point.name, home) != home:
            raise UserError(f"`unbroken {point.name}` is a command of {homes[point.name]} and of {home}: uninstall one")
        yield point


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
