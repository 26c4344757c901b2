"""`unbroken replay FILE`: a recorded run once more, without a model, and without its tools unless they are wanted."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from unbroken.agent.rebuilding import agent_of, output_of
from unbroken.cli import options
from unbroken.cli.cleaning import clean
from unbroken.cli.exits import ending, tell
from unbroken.cli.live import LiveScreen
from unbroken.cli.plain import JsonScreen, PlainScreen
from unbroken.cli.screen import Screen, is_terminal
from unbroken.cli.wording import counted
from unbroken.cli.wording import seconds as in_seconds
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import RunFailed, RunFinished
from unbroken.trajectory.departure import Departed
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.replay import RecordingEnded

SAME, DEPARTED = 0, 1


def replay_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording, as `--record` and `record=` make them.")],
    live_tools: Annotated[bool, typer.Option("--live-tools", help="Run the tools; only the model is played.")] = False,
    tools: options.Tools = None,
    speed: Annotated[
        float | None, typer.Option(metavar="N", help="In real time, N times as fast; without it, at once.")
    ] = None,
    json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Play a recorded run again: the same requests, answers and results, without asking anybody.

    With --live-tools (and the --tools that they are in) the tools run again and only the model is played. A run that
    goes another way than it went is stopped there, and told as a diff.

    Exit codes: 0 it went as it was recorded; 1 it departed from the recording; 2 wrong use, or no recording; 3 it is
    played to a part: the recording ends before the run did, or the run waited for somebody, and went on later.
    """
    setup = options.Setup(tools=tuple(tools or ()), json=json, debug=debug)
    with ending(setup):
        if speed is not None and not speed > 0:
            raise UserError(f"--speed {speed:g}: it is a number above 0")
        if live_tools and not tools:
            raise UserError("--live-tools needs the tools: name the file that they are in with --tools FILE.py")
        recording = read_recording(file)
        for problem in recording.problems:
            tell(f"{file}: {problem}")
        raise typer.Exit(_play(recording, setup, live_tools, speed))


def _play(recording: Recording, setup: options.Setup, live_tools: bool, speed: float | None) -> int:
    console = Console(highlight=False)
    live = not setup.json and is_terminal(sys.stdout) and not console.is_dumb_terminal
    screen: Screen
    if live:
        screen = LiveScreen(console, asks=False)
    else:
        screen = (JsonScreen if setup.json else PlainScreen)(sys.stdout, sys.stderr)
    agent = agent_of(recording, options.build_tools(setup) if live_tools else None)
    try:
        result = agent.replay(
            recording,
            clock="virtual" if speed is None else "real",
            speed=speed or 1.0,
            tools="live" if live_tools else "recorded",
            output=output_of(recording),
            sinks=[screen.show],
        )
    except Departed as departed:
        screen.close()
        typer.echo(f"unbroken: {clean(str(departed))}", err=True)
        return DEPARTED
    except RecordingEnded as ended:
        screen.close()
        tell(str(ended))
        return 3
    except UnbrokenError as error:
        screen.close()
        before = recording.ending
        if not isinstance(before, RunFailed) or before.error != type(error).__name__:
            raise
        tell(f"replayed as it was recorded: it failed with {before.error}")
        return SAME
    screen.close()
    before = recording.ending
    took = in_seconds(before.seconds if isinstance(before, RunFinished) else result.seconds)
    rounds, calls = counted(result.rounds, "round"), counted(len(result.calls), "call")
    if result.stop_reason == "waiting" and any(recording.of("resumed")):
        tell(f"replayed to where the run waited for somebody: {rounds}, {calls}; what came then is not played")
        return 3
    tell(f"replayed as it was recorded: {rounds}, {calls}; it took {took} then")
    return SAME
