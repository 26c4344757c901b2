"""`unbroken run "…"`: one prompt, as many rounds of tool calls as it takes, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unbroken.agent import Image
from unbroken.agent.inputs import OTHER_TYPE, Prompt
from unbroken.cli import options, which_model
from unbroken.cli.exits import EXIT_CODES, code_of_stop, ending
from unbroken.cli.session import open_session
from unbroken.cli.timeline import Timeline, legend
from unbroken.errors import UserError
from unbroken.messages import Media
from unbroken.tools.schedule import Schedule


def run_command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be done; - reads standard input.")],
    model: which_model.ModelName = "",
    base_url: which_model.BaseUrl = "",
    api_key_env: which_model.ApiKeyEnv = "",
    wire: which_model.WireName = "",
    tools: options.Tools = None,
    mcp: options.Mcp = None,
    instructions: options.Instructions = "",
    image: Annotated[list[str] | None, typer.Option(metavar="FILE|URL", help="Shown with the prompt.")] = None,
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
    timeline: Annotated[bool, typer.Option("--timeline", help="Draw when each call was written and run.")] = False,
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
        if json and timeline:
            raise UserError("--json and --timeline cannot be used together: choose one of them")
        asked = _prompt(prompt, image or [])
        with open_session(setup, watched=timeline) as session:
            sinks = [session.watch] if session.watch else []
            try:
                result = session.desk.play(lambda sink: session.agent.run(asked, sinks=[*sinks, sink]))
            finally:
                session.tell_recorded()
        if session.watch:
            session.console.print(Timeline(session.watch), legend(session.console, session.watch))
    raise typer.Exit(code_of_stop(result.stop_reason))


run_command.__doc__ = f"""Ask a model, run the tools that it calls, print its answer.

    On a terminal everything is shown as it happens; in a pipe standard output has the answer alone, and standard error
    what happens on the way.

    {EXIT_CODES}
    """


def _prompt(given: str, images: list[str]) -> Prompt:
    if given == "-":
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
            raise UserError("reading standard input failed: it is closed; give the prompt as an argument")
        given = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not given.strip():
        raise UserError("the prompt is empty; say what is to be done")
    return [given, *map(_image, images)] if images else given


def _image(place: str) -> Media:
    try:
        return Image(place)
    except UserError as error:
        words = str(error).replace(f"Image({place!r})", f"--image {place}")
        raise UserError(words.replace(OTHER_TYPE, "give a file whose name ends in .png, .jpg, .webp or .gif")) from None
