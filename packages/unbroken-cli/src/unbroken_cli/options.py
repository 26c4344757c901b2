"""The options that several commands share. A command lists the ones it takes and receives them as one `Setup`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints
from urllib.parse import urlsplit, urlunsplit

import typer

from unbroken.logs import LEVELS, VARIABLE
from unbroken.models.retrying import ATTEMPTS
from unbroken.tools.schedule import Schedule
from unbroken_wires.wires import WIRES

if TYPE_CHECKING:
    pass


ADMIN_KEY = "UNBROKEN_ADMIN_KEY"
"""The variable that holds the key for the admin API of a gateway."""
SCHEDULES = [schedule.value for schedule in Schedule]

ModelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="UNBROKEN_MODEL",
        metavar="PROVIDER:MODEL",
        help="For example openai:gpt-5, ollama:qwen3; demo is a script and local a small model, without a key.",
    ),
]
BaseUrl: TypeAlias = Annotated[str, typer.Option(metavar="URL", help="Another server with the provider's wire.")]
ApiKeyEnv: TypeAlias = Annotated[
    str, typer.Option(metavar="VARIABLE", help="The variable that holds the key; by default the provider's own.")
]
WireName: TypeAlias = Annotated[str, typer.Option(help=f"One of {', '.join(WIRES)}; by default the provider's first.")]
Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--tools", "-t", metavar="FILE.py", help="A file or module with @tool functions; may be repeated."),
]
Mcp: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="COMMAND|URL", help="An MCP server: its command, or its address; may be repeated."),
]
Instructions: TypeAlias = Annotated[
    str, typer.Option("--instructions", "-i", metavar="TEXT|@FILE", help="Instructions for the model.")
]
ScheduleName: TypeAlias = Annotated[
    str, typer.Option(metavar="|".join(SCHEDULES), help="How the calls of one response run.")
]
Rounds: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", help="Limit of responses with calls; then the model must answer.", show_default="16"),
]
Calls: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Limit of calls; then the model must answer.")]
Seconds: TypeAlias = Annotated[
    float | None, typer.Option(metavar="S", help="Limit of seconds; then the model must answer.")
]
OneCall: TypeAlias = Annotated[bool, typer.Option("--one-call", help="Ask for one call in each response.")]
Todo: TypeAlias = Annotated[bool, typer.Option("--todo", help="Let the model keep a to-do list.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Approve every call that needs an approval.")]
NoStream: TypeAlias = Annotated[bool, typer.Option("--no-stream", help="Ask for responses without streaming.")]
Attempts: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", help="Attempts at each response, including the first.", show_default=str(ATTEMPTS)),
]
Fallback: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PROVIDER:MODEL", help="The model to use if the first has failed; may be repeated."),
]
RawLog: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="Log the raw requests and responses in this file, without secrets.")
]
Record: TypeAlias = Annotated[str, typer.Option(metavar="DIR", help="Record each run in a file in this folder.")]
RecordFailure: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="stop|continue",
        help="If the recording cannot be written: start no tool that may change something, or continue.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Events as JSON on standard output, one per line.")]
LogLevelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log-level", metavar="|".join(LEVELS), help=f"Log to standard error from this level on; also {VARIABLE}."
    ),
]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Log what happens; show the traceback of an error.")]


def is_journal(place: str) -> bool:
    """Is this the URL of a journal, and not the name of a file?"""
    return place.startswith(("sqlite:///", "postgresql://", "postgres://"))


def shown_place(place: str) -> str:
    """The name of a file, or the URL of a journal, without its password."""
    if not is_journal(place) or place.startswith("sqlite"):
        return place
    parts = urlsplit(place)
    login, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{login.partition(':')[0]}{at}{host}", parts.path, "", parts.fragment))


@dataclass(frozen=True, slots=True)
class Setup:
    """The options from the command line, unchecked."""

    model: ModelName = ""
    base_url: BaseUrl = ""
    api_key_env: ApiKeyEnv = ""
    wire: WireName = ""
    tools: Tools = None
    mcp: Mcp = None
    instructions: Instructions = ""
    schedule: ScheduleName = Schedule.EAGER.value
    rounds: Rounds = None
    calls: Calls = None
    seconds: Seconds = None
    one_call: OneCall = False
    todo: Todo = False
    yes: Yes = False
    no_stream: NoStream = False
    attempts: Attempts = None
    fallback: Fallback = None
    raw_log: RawLog = ""
    record: Record = ""
    record_failure: RecordFailure = "stop"
    json: AsJson = False
    debug: Debug = False
    log_level: LogLevelName = ""


ALL = tuple(field.name for field in fields(Setup))
MODEL = ("model", "base_url", "api_key_env", "wire")
OUTPUT = ("json", "debug", "log_level")


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the command receives these options in its parameter `setup`. typer reads options from the signature,
    so that parameter is replaced there by one for each option."""
    types = get_type_hints(Setup, include_extras=True)
    defaults = {field.name: field.default for field in fields(Setup)}
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=types[name]) for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[Parameter] = []
        for parameter in signature(command, eval_str=True).parameters.values():
            own = [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
            parameters += shared if parameter.name == "setup" else own

        @wraps(command)
        def call(**given: Any) -> None:
            setup = Setup(**{name: given.pop(name) for name in names})
            command(setup=setup, **given)

        call.__dict__["__signature__"] = Signature(parameters)
        return call

    return decorate
