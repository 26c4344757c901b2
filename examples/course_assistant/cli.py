"""The command line: `ask`, `tour`, `serve`, `embed`. Without `--model` the scripted model answers, and nothing needs a
key. Exit codes: 0 answered, 1 the provider failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import aclosing, contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer

from course_assistant.assistant import CourseAssistant, check_question
from course_assistant.config import max_tool_rounds
from course_assistant.embed import write_shipped_vectors
from course_assistant.library import CourseLibrary
from course_assistant.screen import Screen, clean, find_screen
from course_assistant.tours import TOURS, find_tour, scripted_model
from course_assistant.vectors import SHIPPED_VECTORS
from unbroken import Model, UnbrokenError, UserError, connect
from unbroken.logs import LEVELS, VARIABLE, chosen_level, set_up_logs

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
A_WORD = 0.02
"""Seconds per word of the scripted model if somebody is watching."""

app = typer.Typer(
    name="course_assistant",
    help="Questions about course materials, answered with tools in a few rounds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

ModelName: TypeAlias = Annotated[
    str, typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="A real model; by default a script, without key.")
]
BaseUrl: TypeAlias = Annotated[str, typer.Option(metavar="URL", help="Another server with its wire.")]
Rounds: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Rounds of tool calls.", show_default="MAX_TOOL_ROUNDS, or 2")
]
MostRounds: TypeAlias = Annotated[
    int | None, typer.Option("--most-rounds", metavar="N", help="Allow so many rounds while they find something new.")
]
Record: TypeAlias = Annotated[str, typer.Option(metavar="DIR", help="Record each run in this folder.")]
LogLevelName: TypeAlias = Annotated[
    str, typer.Option("--log-level", metavar="|".join(LEVELS), help=f"Log to standard error; also {VARIABLE}.")
]
RawLog: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="Log the raw requests to the model and its responses, without secrets.")
]
Courses: TypeAlias = Annotated[
    str,
    typer.Option("--courses", metavar="DIR", help="Your own Markdown and text files instead of the shipped courses."),
]
Chroma: TypeAlias = Annotated[
    str, typer.Option("--chroma", metavar="DIR", help="The courses of a Chroma store; needs the package chromadb.")
]
CollectionName: TypeAlias = Annotated[
    str, typer.Option("--collection", metavar="NAME", help="The collection of the store, if it has several.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One line of JSON for each question.")]


@app.command()
def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="In English or Chinese; - reads standard input.")],
    model: ModelName = "",
    base_url: BaseUrl = "",
    rounds: Rounds = None,
    most_rounds: MostRounds = None,
    record: Record = "",
    raw_log: RawLog = "",
    courses: Courses = "",
    chroma: Chroma = "",
    collection: CollectionName = "",
    json: AsJson = False,
    log_level: LogLevelName = "",
) -> None:
    """Ask one question. In a pipe standard output gets the answer and its sources, standard error the steps."""
    with ending():
        _log_from(log_level)
        if question == "-":
            question = sys.stdin.buffer.read().decode("utf-8", "replace")
        question = check_question(question)
        with _library(courses, chroma, collection) as library:
            assistant = _assistant(library, model, base_url, rounds, record, raw_log, most_rounds=most_rounds)
            asyncio.run(ask_all([question], assistant, find_screen(json)))
            by_vectors = library.has_vectors and not model and find_tour(question) is not None
            if library.note and not by_vectors and not json:
                typer.echo(f"  note: {library.note}", err=True)


@app.command()
def tour(rounds: Rounds = None, record: Record = "", json: AsJson = False, log_level: LogLevelName = "") -> None:
    """Ask seven questions, one after the other, with the scripted model, and show the rounds and calls of each."""
    with ending(), CourseLibrary.open() as library:
        _log_from(log_level)
        assistant = _assistant(library, "", "", rounds, record, "")
        asyncio.run(ask_all([each.question for each in TOURS], assistant, find_screen(json)))


@app.command()
def serve(
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any free port.")] = 8000,
    model: ModelName = "",
    base_url: BaseUrl = "",
    rounds: Rounds = None,
    most_rounds: MostRounds = None,
    record: Record = "",
    raw_log: RawLog = "",
    courses: Courses = "",
    chroma: Chroma = "",
    collection: CollectionName = "",
    data: Annotated[
        str, typer.Option(metavar="DIR", help="Keep the chats in this folder; - keeps them in memory only.")
    ] = "",
    log_level: LogLevelName = "",
) -> None:
    """Serve the page on this machine: http://127.0.0.1:8000/"""
    with ending(), _library(courses, chroma, collection) as library:
        set_up_logs(level=chosen_level(log_level, "warning") or "warning")
        try:
            server = import_module("course_assistant.web.server")
        except ImportError as error:
            raise UserError(
                f"serving the page needs {error.name}, which is not installed: run `pip install starlette uvicorn`"
            ) from None
        assistant = _assistant(
            library,
            model,
            base_url,
            rounds,
            record,
            raw_log,
            most_rounds=most_rounds,
            watched=True,
        )

        def announce(address: str) -> None:
            typer.echo(f"The course assistant ({assistant.agent.model.name}) is at {address}")

        store = server.open_chats(data)
        app = server.create_app(assistant, library.note, library.note_zh, store)
        try:
            asyncio.run(server.serve(app, port=port, announce=announce))
        finally:
            if store is not None:
                store.close()


@app.command()
def embed() -> None:
    """Compute the shipped vectors again, after a course was changed. Needs the embedding model."""
    with ending():
        vectors = write_shipped_vectors()
        typer.echo(f"{SHIPPED_VECTORS.name}: {len(vectors.chunks)} texts and {len(vectors.queries)} queries")


def _library(courses: str, chroma: str, collection: str) -> CourseLibrary:
    if courses and chroma:
        raise UserError("--courses and --chroma: give one of them")
    if collection and not chroma:
        raise UserError("--collection needs a store: name it with --chroma DIR")
    if chroma:
        return CourseLibrary.of_chroma(Path(chroma), collection)
    return CourseLibrary.of_own_files(Path(courses)) if courses else CourseLibrary.open()


def _log_from(given: str) -> None:
    """Nothing is logged by default: the screen shows the steps."""
    if level := chosen_level(given, None):
        set_up_logs(level=level)


@contextmanager
def ending() -> Generator[None]:
    """Turns errors into one line and an exit code."""
    try:
        yield
    except UserError as error:
        raise _print_error(error, MISUSED) from None
    except UnbrokenError as error:
        raise _print_error(error, FAILED) from None
    except BrokenPipeError:
        raise  # the reader has gone; typer ends quietly
    except OSError as error:
        _drop_output()
        raise _print_error(
            UserError(f"standard output cannot be written to: {error.strerror or error}"), FAILED
        ) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _drop_output() -> None:
    """Drops the buffer: otherwise it would be written at the end of the program, fail again, and print a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _print_error(error: UnbrokenError, code: int) -> typer.Exit:
    typer.echo(f"course_assistant: {clean(' '.join(str(error).split()))}", err=True)
    return typer.Exit(code)


def _assistant(
    library: CourseLibrary,
    model: str,
    base_url: str,
    rounds: int | None,
    record: str,
    raw_log: str,
    *,
    most_rounds: int | None = None,
    watched: bool = False,
) -> CourseAssistant:
    if (base_url or raw_log) and not model:
        option = "--base-url" if base_url else "--raw-log"
        raise UserError(f"{option} needs a real model: name one with --model provider:model")
    asked: Model = scripted_model(_pace(watched))
    if model:
        asked = connect(model, base_url=base_url or None, raw_log=raw_log or None)
    allowed = max_tool_rounds() if rounds is None else rounds
    return CourseAssistant(asked, library, max_tool_rounds=allowed, most_rounds=most_rounds, record=record or None)


def _pace(watched: bool) -> float:
    return A_WORD if watched or sys.stdout.isatty() else 0.0


async def ask_all(questions: Iterable[str], assistant: CourseAssistant, screen: Screen) -> None:
    for question in questions:
        screen.ask(question)
        try:
            async with aclosing(assistant.stream(question, assistant.sessions.apart())) as steps:
                async for step in steps:
                    screen.show(step)
        finally:
            screen.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # If standard output has no Chinese characters, their numbers are printed.
    cast("TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")
    app(prog_name="python -m course_assistant")
