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
from unbroken.cli import options, which_model
from unbroken.cli.exits import EXIT_CODES, INTERRUPTED, code_of_stop, ending, tell, tell_error
from unbroken.cli.screen import is_terminal
from unbroken.cli.session import Session, open_session
from unbroken.cli.wording import one_line
from unbroken.errors import UnbrokenError, UserError
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recording import SUFFIX

with suppress(ImportError):  # not everywhere; where it is, `input` has a line editor and remembers
    import readline as readline

COMMANDS = {
    "/help": "what can be said here",
    "/tools": "the tools that the model has",
    "/save FILE": "write the conversation to a file; --save does it after each turn",
    "/load FILE": "go on with a conversation that was saved",
    "/exit": "leave; so does Ctrl-D",
}


def chat_command(
    model: which_model.ModelName = "",
    base_url: which_model.BaseUrl = "",
    api_key_env: which_model.ApiKeyEnv = "",
    wire: which_model.WireName = "",
    tools: options.Tools = None,
    mcp: options.Mcp = None,
    instructions: options.Instructions = "",
    schedule: options.ScheduleName = Schedule.EAGER.value,
    rounds: options.Rounds = None,
    calls: options.Calls = None,
    seconds: options.Seconds = None,
    one_call: options.OneCall = False,
    todo: options.Todo = False,
    yes: options.Yes = False,
    no_stream: options.NoStream = False,
    attempts: options.Attempts = None,
    fallback: options.Fallback = None,
    raw_log: options.RawLog = "",
    record: options.Record = "",
    save: Annotated[str, typer.Option(metavar="FILE", help="Go on with this conversation, and keep it there.")] = "",
    json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    setup = options.Setup(
        model=model,
        base_url=base_url,
        api_key_env=api_key_env,
        wire=wire,
        tools=tuple(tools or ()),
        mcp=tuple(mcp or ()),
        instructions=instructions,
        schedule=schedule,
        rounds=rounds,
        calls=calls,
        seconds=seconds,
        one_call=one_call,
        todo=todo,
        yes=yes,
        no_stream=no_stream,
        attempts=attempts,
        fallback=tuple(fallback or ()),
        raw_log=raw_log,
        record=record,
        json=json,
        debug=debug,
    )
    with ending(setup):
        if record.endswith(SUFFIX):
            raise UserError(f"--record {record}: each turn is recorded in a file of its own; name a folder")
        with open_session(setup) as session:
            code = Chat(session, setup, save).go_on()
    raise typer.Exit(code)


chat_command.__doc__ = f"""Talk with a model that has tools. Ctrl-C ends a turn, at the prompt it ends the chat.

    In a pipe each line is a turn, and the first one that fails ends the chat. Say /help for the commands.

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

    def go_on(self) -> int:
        """Until the person leaves. Gives the exit code: that of the last turn that did not end with an answer."""
        code = 0
        if self._person:
            self._screen.line(f"Talking with {self._session.agent.model.name}. /help says what else can be said here.")
        for line in _typed() if self._person else _piped():
            if line == "/exit":
                break
            try:
                if line.startswith("/"):
                    self._obey(line)
                elif line:
                    code = self._say(line) or code
            except KeyboardInterrupt:
                self._screen.close()
                tell("interrupted; the conversation goes on")
                if not self._person:
                    return INTERRUPTED
            except UnbrokenError as error:
                if not self._person:
                    raise
                self._screen.close()
                tell_error(error, self._setup)
            if self._save:
                self._chat.save(self._save)
        return code

    def _say(self, line: str) -> int:
        try:
            result = self._session.desk.play(lambda sink: self._chat.say(line, sinks=[sink]))
        finally:
            self._session.tell_recorded()
        return 0 if self._person else code_of_stop(result.stop_reason)

    def _obey(self, line: str) -> None:
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
            raise UserError(f"there is no {one_line(word, 40)} here; /help shows what there is")
        command()

    def _help(self) -> None:
        for command, what in COMMANDS.items():
            self._screen.line(f"{command:<12} {what}")

    def _tools(self) -> None:
        tools = list(Toolbox(*self._session.tools))
        for tool in tools:
            self._screen.line(f"{tool.name:<24} {one_line(tool.spec.description, 90)}")
        if not tools:
            self._screen.line("there are none; --tools FILE.py and --mcp COMMAND give it some")

    def _load(self, path: str) -> None:
        self._chat = Conversation.load(self._session.agent, path)
        self._screen.line(f"going on with {path}: {len(self._chat.messages)} messages")

    def _save_as(self, path: str) -> None:
        self._chat.save(path)
        self._screen.line(f"saved in {path}")


def _file(command: str, name: str) -> str:
    if not name:
        raise UserError(f"{command} needs the name of a file, as in {command} chat.json")
    return name


def _typed() -> Iterator[str]:
    """Lines of a person. Ctrl-D and Ctrl-C end them."""
    while True:
        try:
            yield input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return


def _piped() -> Iterator[str]:
    """Lines as they come: who writes them may wait for the answer."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
        raise UserError("reading standard input failed: it is closed; write one line for each turn to it")
    rest = b""
    while piece := os.read(sys.stdin.fileno(), 65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
    if rest.strip():
        yield rest.decode("utf-8", "replace").strip()
