"""`unbroken run "…"`: one prompt, as many rounds of tool calls as it takes, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unbroken.agent import Image
from unbroken.agent.prompt_parts import OTHER_TYPE, Prompt
from unbroken.cli import options
from unbroken.cli.exits import EXIT_CODES, code_of_stop, ending
from unbroken.cli.session import open_session
from unbroken.cli.timeline import Timeline, legend
from unbroken.errors import UserError
from unbroken.messages import Media


@options.takes(*options.ALL)
def run_command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be done; - reads standard input.")],
    setup: options.Setup,
    image: Annotated[list[str] | None, typer.Option(metavar="FILE|URL", help="Shown with the prompt.")] = None,
    timeline: Annotated[bool, typer.Option("--timeline", help="Draw when each call was written and run.")] = False,
) -> None:
    with ending(setup):
        if setup.json and timeline:
            raise UserError("--json and --timeline cannot be used together: choose one of them")
        asked = _prompt(prompt, image or [])
        with open_session(setup, watched=timeline) as session:
            try:
                result = session.thread.play(lambda sink: session.agent.run(asked, sinks=[sink]))
            finally:
                session.print_recorded()
                session.print_order_hint()
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
