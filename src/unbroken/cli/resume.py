"""`unbroken resume FILE`: continues a recorded run that was cut off, failed or waits for an answer."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from unbroken.agent.resuming import reading
from unbroken.cli import options
from unbroken.cli.exits import EXIT_CODES, code_of_stop, ending, print_line
from unbroken.cli.session import open_session
from unbroken.errors import UnknownProvider, UserError
from unbroken.messages import Text, ToolResult
from unbroken.models.providers import find_provider
from unbroken.tools.approval import Allow, Deny, Edit
from unbroken.trajectory.recording import Recording, read_recording

_ANSWERS = "allow, deny, deny:REASON, edit:{JSON} or result:TEXT"


@options.takes(
    *("base_url", "api_key_env", "wire", "tools", "mcp", "todo", "yes", "no_stream", "attempts", "fallback", "raw_log"),
    *options.OUTPUT,
)
def resume_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording, as `--record` and `record=` make them.")],
    setup: options.Setup,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL_ID=ANSWER", help=f"For a call that waits: {_ANSWERS}; may be repeated."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="Else the model of the recording.")
    ] = "",
) -> None:
    with ending(setup):
        answers = _answers(answer or ())
        recording = read_recording(file)
        for problem in recording.problems:
            print_line(f"{file}: {problem}")
        _check_tools(recording, setup)
        if not model:
            _check_model(recording)
        with open_session(replace(setup, model=model or recording.model), recording=recording) as session:
            result = session.thread.play(lambda sink: session.agent.resume(recording, answers, sinks=[sink]))
        for call in result.pending:
            print_line(f"answer with --answer {call.id}=allow|deny|edit:{{…}}|result:TEXT")
    raise typer.Exit(code_of_stop(result.stop_reason))


resume_command.__doc__ = f"""Continue a recorded run whose process died, that failed, or that waits for an answer.

    Instructions, schedule and limits are those of the recording; name the tools again. Calls that have a result do not
    run again. The run is recorded in the same file.

    {EXIT_CODES}
    """


def _answers(given: Iterable[str]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for id, answer in map(_answer, given):
        if id in answers:
            raise UserError(f"--answer: {id} is answered twice; give one answer for each call")
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
        raise UserError(f"--answer {given}: the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"--answer {given}: the arguments are a JSON object, as in {{}}")
    return cast("dict[str, Any]", value)


def _check_model(recording: Recording) -> None:
    """A program may have recorded it with a model of its own."""
    try:
        find_provider(recording.model.partition(":")[0])
    except UnknownProvider:
        raise UserError(
            f"{recording.path} was recorded with `{recording.model}`, which is no provider's: name one with --model"
        ) from None


def _check_tools(recording: Recording, setup: options.Setup) -> None:
    """Without its tools every call of the run would be answered with an error, and that would be recorded."""
    with reading(recording):
        names = [str(tool["name"]) for line in recording.of("tools") for tool in line["tools"]]
    if names and not (setup.tools or setup.mcp or setup.todo):
        told = ", ".join(dict.fromkeys(names))
        raise UserError(f"{recording.path} has the tools {told}: name where they are with --tools, --mcp or --todo")
