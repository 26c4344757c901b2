"""The options that `run` and `chat` share, and the agent that they make together."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from unbroken.agent import Agent, Limits
from unbroken.errors import UserError
from unbroken.models.connect import connect
from unbroken.models.guarded import ATTEMPTS
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.mcp import MCPServer
from unbroken.tools.schedule import Schedule
from unbroken.tools.todo import todo_write
from unbroken.tools.toolbox import Source, Toolbox
from unbroken.trajectory.companion import RunHead
from unbroken.trajectory.record import Recorder, RunRecorder

SCHEDULES = [schedule.value for schedule in Schedule]

Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--tools", "-t", metavar="FILE.py", help="A file or module with @tool functions; may be repeated."),
]
Mcp: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="COMMAND|URL", help="An MCP server: its command, or its address; may be repeated."),
]
Instructions: TypeAlias = Annotated[
    str, typer.Option("--instructions", "-i", metavar="TEXT|@FILE", help="What the model is told first.")
]
ScheduleName: TypeAlias = Annotated[
    str, typer.Option(metavar="|".join(SCHEDULES), help="How the calls of one response run.")
]
Rounds: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Responses with calls, then an answer.", show_default="16")
]
Calls: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Calls in all, then an answer.")]
Seconds: TypeAlias = Annotated[float | None, typer.Option(metavar="S", help="Seconds in all, then an answer.")]
OneCall: TypeAlias = Annotated[bool, typer.Option("--one-call", help="Ask for one call in each response.")]
Todo: TypeAlias = Annotated[bool, typer.Option("--todo", help="Let the model keep a list of what is to be done.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Approve every call that asks for it.")]
NoStream: TypeAlias = Annotated[bool, typer.Option("--no-stream", help="Ask for whole responses.")]
Attempts: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tries at each answer, the first included.", show_default=str(ATTEMPTS)),
]
Fallback: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PROVIDER:MODEL", help="Who is asked when the model has failed; may be repeated."),
]
RawLog: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="Keep requests and responses there as they are, without secrets.")
]
Record: TypeAlias = Annotated[str, typer.Option(metavar="DIR", help="Record each run in a file there.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Events as JSON, one a line, on standard output.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Log what happens; show where an error came from.")]


@dataclass(frozen=True, slots=True)
class Setup:
    """What was asked for, unchecked."""

    model: str = ""
    base_url: str = ""
    api_key_env: str = ""
    wire: str = ""
    tools: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    instructions: str = ""
    schedule: str = Schedule.EAGER.value
    rounds: int | None = None
    calls: int | None = None
    seconds: float | None = None
    one_call: bool = False
    todo: bool = False
    yes: bool = False
    no_stream: bool = False
    attempts: int | None = None
    fallback: tuple[str, ...] = ()
    raw_log: str = ""
    record: str = ""
    json: bool = False
    debug: bool = False


def build_model(setup: Setup) -> Model:
    if not setup.model.strip():
        raise UserError("no model is named; say --model PROVIDER:MODEL, as in openai:gpt-5, or set UNBROKEN_MODEL")
    attempts = ATTEMPTS if setup.attempts is None else setup.attempts
    if attempts < 1:
        raise UserError(f"--attempts {attempts}: it is a number from 1, and counts the first try too")
    try:
        return connect(
            setup.model.strip(),
            base_url=setup.base_url or None,
            api_key=_key(setup.api_key_env),
            wire=setup.wire or None,
            stream=not setup.no_stream,
            attempts=attempts,
            fallback=setup.fallback,
            raw_log=setup.raw_log or None,
        )
    except UserError as error:
        if not str(error).startswith("raw_log="):
            raise
        raise UserError(str(error).replace("raw_log=", "--raw-log ", 1)) from None


def build_tools(setup: Setup) -> list[Source]:
    own = [todo_write] if setup.todo else []
    return [*map(_tools, setup.tools), *map(_server, setup.mcp), *own]


class NamingRecorder(Recorder):
    """Knows where the last run is."""

    last = ""

    def accompany(self, head: RunHead) -> RunRecorder:
        self.last = ""
        recorder = super().accompany(head)
        self.last = recorder.path
        return recorder


def build_agent(
    setup: Setup,
    model: Model,
    tools: list[Source],
    on_approval: OnApproval | None,
    recorder: Recorder | None = None,
) -> Agent:
    for option, limit in (("--rounds", setup.rounds), ("--calls", setup.calls), ("--seconds", setup.seconds)):
        if limit is not None and not limit >= 0:  # NaN is not
            raise UserError(f"{option} {limit:g}: a limit is 0 or more; leave it out for none")
    limits = Limits(calls=setup.calls, seconds=setup.seconds)
    return Agent(
        model,
        tools,
        _instructions(setup.instructions),
        schedule=_schedule(setup.schedule),
        limits=limits if setup.rounds is None else replace(limits, rounds=setup.rounds),
        several_calls=not setup.one_call,
        on_approval=on_approval,
        record=recorder,
    )


def _key(variable: str) -> str | None:
    if not variable:
        return None
    if key := os.environ.get(variable, "").strip():
        return key
    raise UserError(f"--api-key-env {variable}: that variable is not set; export it, or name the one that has the key")


def _tools(name: str) -> Toolbox:
    if name.endswith(".py") or os.sep in name or Path(name).exists():
        return Toolbox.from_file(name)
    here = os.getcwd()
    sys.path.insert(0, here)  # a module beside you is found as `python -m` finds it
    try:
        return Toolbox(importlib.import_module(name))
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        words = f": {error}" if str(error) else ""
        raise UserError(
            f"--tools {name}: importing this module failed: {type(error).__name__}{words}; "
            "give the path of a .py file, or the name of a module that can be imported"
        ) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _server(place: str) -> MCPServer:
    if place.startswith(("http://", "https://")):
        return MCPServer(url=place)
    return MCPServer(place)


def _instructions(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--instructions {given}: the file cannot be read: {reason}") from None


def _schedule(name: str) -> Schedule:
    if name.lower() not in SCHEDULES:
        raise UserError(f"--schedule {name}: there is no such schedule; there are: {', '.join(SCHEDULES)}")
    return Schedule(name.lower())
