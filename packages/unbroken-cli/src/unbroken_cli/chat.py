"""`unbroken chat`: a conversation, turn by turn. In a pipe each line is a turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from unbroken.agent import Conversation
from unbroken.errors import UnbrokenError, UserError
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recording import SUFFIX
from unbroken_cli import options
from unbroken_cli.exits import EXIT_CODES, INTERRUPTED, code_of_result, ending, print_error, print_line
from unbroken_cli.session import Session, open_session
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import counted, one_line

with suppress(ImportError):  # not on every platform; with it, `input` has line editing and history
    import readline as readline

COMMANDS = {
    "/help": "the commands",
    "/tools": "the tools that the model has",
    "/save FILE": "write the conversation to a file; --save does it after each turn",
    "/load FILE": "continue a saved conversation",
    "/exit": "leave (or press Ctrl-D)",
}


@options.takes(*options.ALL)
def chat_command(
    setup: options.Setup,
    save: Annotated[str, typer.Option(metavar="FILE", help="Continue this conversation, and save it there.")] = "",
) -> None:
    with ending(setup):
        if setup.record.endswith(SUFFIX):
            raise UserError(f"--record {setup.record}: each turn is recorded in a separate file; name a folder")
        with open_session(setup) as session:
            code = Chat(session, setup, save).run()
    raise typer.Exit(code)


chat_command.__doc__ = f"""Talk with a model that has tools. Ctrl-C ends a turn; at the prompt it ends the chat.

    In a pipe each line is a turn, and the first one that fails ends the chat. Type /help for the commands.

    {EXIT_CODES}
    """


class Chat:
    def __init__(self, session: Session, setup: options.Setup, save: str) -> None:
        self._session = session
        self._screen = session.screen
        self._save = save
        self._setup = setup
        self._person = is_terminal(sys.stdin)
        self._chat = Conversation(session.agent)
        if save and Path(save).exists():
            self._load(save)

    def run(self) -> int:
        """Runs until the person leaves. Returns the exit code of the last turn that did not end with an answer."""
        code = 0
        if self._person:
            self._screen.line(f"Talking with {self._session.agent.model.name}. /help lists the commands.")
        for line in _typed() if self._person else _piped():
            if line == "/exit":
                break
            try:
                if line.startswith("/"):
                    self._run_command(line)
                elif line:
                    code = self._say(line) or code
            except KeyboardInterrupt:
                self._screen.close()
                print_line("interrupted; the conversation continues")
                if not self._person:
                    return INTERRUPTED
            except UnbrokenError as error:
                if not self._person:
                    raise
                self._screen.close()
                print_error(error, self._setup)
            if self._save:
                self._chat.save(self._save)
        return code

    def _say(self, line: str) -> int:
        try:
            result = self._session.thread.play(lambda sink: self._chat.say(line, sinks=[sink]))
        finally:
            self._session.print_recorded()
        return 0 if self._person else code_of_result(result)

    def _run_command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        commands: dict[str, Callable[[], None]] = {
            "/help": self._help,
            "/tools": self._tools,
            "/save": lambda: self._save_as(_file(word, rest or self._save)),
            "/load": lambda: self._load(_file(word, rest)),
        }
        command = commands.get(word)
        if command is None:
            raise UserError(f"there is no command {one_line(word, 40)}; /help lists the commands")
        command()

    def _help(self) -> None:
        for command, what in COMMANDS.items():
            self._screen.line(f"{command:<12} {what}")

    def _tools(self) -> None:
        tools = list(Toolbox(*self._session.tools))
        for tool in tools:
            self._screen.line(f"{tool.name:<24} {one_line(tool.spec.description, 90)}")
        if not tools:
            self._screen.line("there are none; add some with --tools FILE.py or --mcp COMMAND")

    def _load(self, path: str) -> None:
        self._chat = Conversation.load(self._session.agent, path)
        self._screen.line(f"continuing {path}: {counted(len(self._chat.messages), 'message')}")

    def _save_as(self, path: str) -> None:
        self._chat.save(path)
        self._screen.line(f"saved in {path}")


def _file(command: str, name: str) -> str:
    if not name:
        raise UserError(f"{command} needs the name of a file, as in {command} chat.json")
    return name


def _typed() -> Iterator[str]:
    """Lines that a person types, until Ctrl-D or Ctrl-C."""
    while True:
        try:
            yield input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return


def _piped() -> Iterator[str]:
    """Lines as they arrive: the program that writes them may wait for the answer."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
        raise UserError("reading standard input failed: it is closed; write one line for each turn to it")
    rest = b""
    while piece := os.read(sys.stdin.fileno(), 65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
    if rest.strip():
        yield rest.decode("utf-8", "replace").strip()
