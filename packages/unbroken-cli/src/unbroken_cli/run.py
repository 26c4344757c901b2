"""`unbroken run "…"`: one prompt, as many rounds of tool calls as needed, one answer."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from unbroken.agent import Image
from unbroken.agent.prompts import OTHER_TYPE, Prompt
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.agent.resuming import reading
from unbroken.errors import UnbrokenError, UnknownProvider, UserError
from unbroken.events import RunFailed, RunFinished
from unbroken.models.providers import find_provider
from unbroken.tools.approval import Allow, Deny, Edit
from unbroken.trajectory.recording import Recording, lines_until_round, parse_recording, read_recording
from unbroken.trajectory.replay import RecordingEnded, ReplayDiverged
from unbroken_cli import options
from unbroken_cli.exits import EXIT_CODES, code_of_result, ending, print_line
from unbroken_cli.journal_runs import RecordedRuns, open_journal
from unbroken_cli.progress_line import progress
from unbroken_cli.session import build_tools, logged, open_screen, open_session
from unbroken_cli.terminal_text import clean, counted
from unbroken_cli.terminal_text import seconds as in_seconds
from unbroken_cli.timeline import Timeline, legend
from unbroken_wires.messages import Media, Text, ToolResult


@options.takes(*options.ALL)
def run_command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The task; - reads standard input.")],
    setup: options.Setup,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|URL", help="An image to send with the prompt; may be repeated."),
    ] = None,
    timeline: Annotated[bool, typer.Option("--timeline", help="Draw when each call was written and run.")] = False,
) -> None:
    with ending(setup):
        if setup.json and timeline:
            raise UserError("--json and --timeline cannot be used together: choose one of them")
        asked = read_prompt(prompt, image or [])
        with open_session(setup, watched=timeline) as session:
            try:
                with session.running():
                    result = session.thread.play(lambda sink: session.agent.run(asked, sinks=[sink]))
            finally:
                session.print_recorded()
                session.print_order_hint()
        if session.watch:
            session.console.print(Timeline(session.watch), legend(session.console, session.watch))
    raise typer.Exit(code_of_result(result))


run_command.__doc__ = f"""Ask a model, run the tools that it calls, print its answer.

    On a terminal everything is shown as it happens. In a pipe standard output contains only the answer, and standard
    error the progress.

    {EXIT_CODES}
    """


def read_prompt(given: str, images: list[str]) -> Prompt:
    if given == "-":
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
            raise UserError("reading standard input failed: it is closed; give the prompt as an argument")
        given = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not given.strip():
        raise UserError("the prompt is empty; describe the task")
    return [given, *map(_image, images)] if images else given


def _image(place: str) -> Media:
    try:
        return Image(place)
    except UserError as error:
        words = str(error).replace(f"Image({place!r})", f"--image {place}")
        raise UserError(words.replace(OTHER_TYPE, "give a file whose name ends in .png, .jpg, .webp or .gif")) from None


# `unbroken replay FILE`: replays a recorded run without a model, and without running its tools unless --live-tools is
# given.


SAME, DEPARTED = 0, 1


@options.takes("tools", *options.OUTPUT)
def replay_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL#ID", help="A recording, written by `--record` or `record=`, or a run of a journal."
        ),
    ],
    setup: options.Setup,
    live_tools: Annotated[
        bool, typer.Option("--live-tools", help="Run the tools; only the model is replayed.")
    ] = False,
    speed: Annotated[
        float | None,
        typer.Option(metavar="N", help="Replay at N times the original speed, not at once."),
    ] = None,
    until_round: Annotated[
        int, typer.Option(metavar="N", min=0, help="Stop when round N has ended; 0 replays the complete run.")
    ] = 0,
    save: Annotated[
        str,
        typer.Option(
            metavar="NEW.jsonl",
            help="With --until-round: also write this part as a recording, which `unbroken resume` continues.",
        ),
    ] = "",
) -> None:
    """Replay a recorded run: the same requests, answers and results, without asking any model.

    With --live-tools (and --tools with their file) the tools run again and only the model is replayed. A run that
    diverges from the recording is stopped there, and the difference is shown as a diff. --until-round N stops after a
    round, and with --save NEW.jsonl `unbroken resume` continues from there: with another model, for example.

    Exit codes: 0 it went as recorded; 1 it diverged from the recording; 2 wrong use, or not a recording; 3 only a part
    was replayed: the recording ends before the run did, or the run waited for an answer and was continued later.
    """
    with ending(setup), logged(setup):
        if speed is not None and not speed > 0:
            raise UserError(f"--speed {speed:g}: give a number above 0")
        if live_tools and not setup.tools:
            raise UserError("--live-tools needs the tools: name their file with --tools FILE.py")
        if save and not until_round:
            raise UserError("--save writes a part of the recording: say which with --until-round N")
        with progress(f"reading {options.shown_place(file)}"):
            recording = _read_until(file, until_round, save) if until_round else _read(file)
        for problem in recording.problems:
            print_line(f"{options.shown_place(file)}: {problem}")
        code = _play(recording, setup, live_tools, speed, until_round)
        if save:
            print_line(f"saved as {save}: `unbroken resume {save}` continues from there")
        raise typer.Exit(code)


def _read(place: str) -> Recording:
    if not options.is_journal(place):
        return read_recording(place)
    with open_journal(place) as runs:
        return runs.recording(_only(runs))


def _only(runs: RecordedRuns) -> str:
    if not runs.one:
        raise UserError(f"{runs.url} is a journal: name one of its runs, as in {runs.url}#ID")
    return runs.name


def _read_until(place: str, rounds: int, save: str) -> Recording:
    """The recording up to the end of a round."""
    path = _read(place).path  # it is one, and it can be read
    if options.is_journal(place):
        with open_journal(place) as runs:
            lines = lines_until_round((line + b"\n" for line in runs.raw_lines(_only(runs))), rounds)
    else:
        with path.open("rb") as data:
            lines = lines_until_round(data, rounds)
    if save:
        try:
            with Path(save).open("xb") as file:
                file.writelines(lines)
        except OSError as error:
            raise UserError(f"--save {save}: {error.strerror or error}; name a new file") from None
    return parse_recording(lines, path)


def _play(
    recording: Recording, setup: options.Setup, live_tools: bool, speed: float | None, until_round: int = 0
) -> int:
    screen, _, _ = open_screen(setup, can_ask=False)
    agent = agent_of(recording, build_tools(setup) if live_tools else None)
    try:
        result = agent.replay(
            recording,
            clock="virtual" if speed is None else "real",
            speed=speed or 1.0,
            tools="live" if live_tools else "recorded",
            output=output_of(recording),
            sinks=[screen.show],
        )
    except ReplayDiverged as diverged:
        screen.close()
        typer.echo(f"unbroken: {clean(str(diverged))}", err=True)
        return DEPARTED
    except RecordingEnded as ended:
        screen.close()
        if until_round:
            print_line(f"replayed as recorded until the end of round {until_round}")
            return SAME
        print_line(str(ended))
        return 3
    except UnbrokenError as error:
        screen.close()
        before = recording.ending
        if not isinstance(before, RunFailed) or before.error != type(error).__name__:
            raise
        print_line(f"replayed as recorded: the run failed with {before.error}")
        return SAME
    screen.close()
    before = recording.ending
    took = in_seconds(before.seconds if isinstance(before, RunFinished) else result.seconds)
    rounds, calls = counted(result.rounds, "round"), counted(len(result.calls), "call")
    if result.stop_reason == "waiting" and _was_continued(recording):
        print_line(f"replayed until the run waited for an answer: {rounds}, {calls}; the rest is not replayed")
        return 3
    print_line(f"replayed as recorded: {rounds}, {calls}; the original took {took}")
    return SAME


def _was_continued(recording: Recording) -> bool:
    """Whether anything happened after the run first waited. A resume without any answer adds nothing."""
    lines = iter(recording.lines)
    for line in lines:
        if line["line"] == "event" and line["event"] == "run_finished":
            break
    return any(line["line"] not in ("resumed", "tools", "event") for line in lines)


# `unbroken resume FILE`: continues a recorded run that was cut off, failed or waits for an answer.


_ANSWERS = "allow, deny, deny:REASON, edit:{JSON} or result:TEXT"


@options.takes(
    "base_url",
    "api_key_env",
    "wire",
    "tools",
    "mcp",
    "todo",
    "yes",
    "no_stream",
    "attempts",
    "fallback",
    "raw_log",
    *options.OUTPUT,
)
def resume_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording, written by `--record` or `record=`.")],
    setup: options.Setup,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL_ID=ANSWER", help=f"The answer for a waiting call: {_ANSWERS}; may be repeated."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="By default the model of the recording.")
    ] = "",
) -> None:
    with ending(setup):
        answers = _answers(answer or ())
        if options.is_journal(file):
            raise UserError("to continue a run of a journal, use `unbroken runs answer` and `unbroken runs drive`")
        recording = read_recording(file)
        for problem in recording.problems:
            print_line(f"{file}: {problem}")
        _check_tools(recording, setup)
        if not model:
            _check_model(recording)
        chosen = replace(setup, model=model or recording.model)
        with open_session(chosen, recording=recording) as session, session.running():
            result = session.thread.play(lambda sink: session.agent.resume(recording, answers, sinks=[sink]))
        for call in result.pending:
            print_line(f"answer with --answer {call.id}=allow|deny|edit:{{…}}|result:TEXT")
    raise typer.Exit(code_of_result(result))


resume_command.__doc__ = f"""Continue a recorded run whose process died, that failed, or that waits for an answer.

    Instructions, schedule and limits come from the recording; name the tools again. Calls that have a result do not run
    again. The run is recorded in the same file.

    {EXIT_CODES}
    """


def _answers(given: Iterable[str]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for id, answer in map(_answer, given):
        if id in answers:
            raise UserError(f"--answer: {id} has two answers; give one answer for each call")
        answers[id] = answer
    return answers


def _answer(given: str) -> tuple[str, Any]:
    id, _, words = given.partition("=")
    kind, colon, rest = words.partition(":")
    if id and kind == "allow" and not colon:
        return id, Allow()
    if id and kind == "deny":
        return id, Deny(rest)
    if id and kind == "result" and colon:
        return id, ToolResult(id, (Text(rest),))
    if id and kind == "edit" and colon:
        return id, Edit(_arguments(given, rest))
    raise UserError(f"--answer {given}: write CALL_ID=ANSWER, where ANSWER is {_ANSWERS}")


def _arguments(given: str, text: str) -> dict[str, Any]:
    try:
        value: Any = json_text.loads(text)
    except ValueError as error:
        raise UserError(f"--answer {given}: the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"--answer {given}: the arguments must be a JSON object, such as {{}}")
    return cast("dict[str, Any]", value)


def _check_model(recording: Recording) -> None:
    """A program may have recorded it with a custom model."""
    try:
        find_provider(recording.model.partition(":")[0])
    except UnknownProvider:
        raise UserError(
            f"{recording.path} was recorded with `{recording.model}`, which no provider has: choose one with --model"
        ) from None


def _check_tools(recording: Recording, setup: options.Setup) -> None:
    """Checks that the tools are given. Without them every call of the run would be answered with an error, and that
    would be recorded."""
    with reading(recording):
        names = [str(tool["name"]) for line in recording.of("tools") for tool in line["tools"]]
    if names and not (setup.tools or setup.mcp or setup.todo):
        names_in_use = ", ".join(dict.fromkeys(names))
        raise UserError(
            f"{recording.path} uses the tools {names_in_use}: name their sources with --tools, --mcp or --todo"
        )
