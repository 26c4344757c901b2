"""`unbroken replay FILE`: plays a recorded run again without a model, and without its tools unless you ask for them."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.cli import options
from unbroken.cli.exits import ending, print_line
from unbroken.cli.session import build_tools, logged, open_screen
from unbroken.cli.terminal_text import clean, counted
from unbroken.cli.terminal_text import seconds as in_seconds
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import RunFailed, RunFinished
from unbroken.trajectory.divergence import ReplayDiverged
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.replay import RecordingEnded

SAME, DEPARTED = 0, 1


@options.takes("tools", *options.OUTPUT)
def replay_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording, as `--record` and `record=` make them.")],
    setup: options.Setup,
    live_tools: Annotated[bool, typer.Option("--live-tools", help="Run the tools; only the model is played.")] = False,
    speed: Annotated[
        float | None, typer.Option(metavar="N", help="In real time, N times as fast; without it, at once.")
    ] = None,
) -> None:
    """Play a recorded run again: the same requests, answers and results, without asking anybody.

    With --live-tools (and the --tools that they are in) the tools run again and only the model is played. A run that
    diverges from the recording is stopped there, and shown as a diff.

    Exit codes: 0 it went as it was recorded; 1 it diverged from the recording; 2 wrong use, or no recording; 3 it is
    played to a part: the recording ends before the run did, or the run waited for somebody, and went on later.
    """
    with ending(setup), logged(setup):
        if speed is not None and not speed > 0:
            raise UserError(f"--speed {speed:g}: it is a number above 0")
        if live_tools and not setup.tools:
            raise UserError("--live-tools needs the tools: name the file that they are in with --tools FILE.py")
        recording = read_recording(file)
        for problem in recording.problems:
            print_line(f"{file}: {problem}")
        raise typer.Exit(_play(recording, setup, live_tools, speed))


def _play(recording: Recording, setup: options.Setup, live_tools: bool, speed: float | None) -> int:
    screen, _, _ = open_screen(setup, asks=False)
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
        print_line(str(ended))
        return 3
    except UnbrokenError as error:
        screen.close()
        before = recording.ending
        if not isinstance(before, RunFailed) or before.error != type(error).__name__:
            raise
        print_line(f"replayed as it was recorded: it failed with {before.error}")
        return SAME
    screen.close()
    before = recording.ending
    took = in_seconds(before.seconds if isinstance(before, RunFinished) else result.seconds)
    rounds, calls = counted(result.rounds, "round"), counted(len(result.calls), "call")
    if result.stop_reason == "waiting" and _went_on(recording):
        print_line(f"replayed to where the run waited for somebody: {rounds}, {calls}; what came then is not played")
        return 3
    print_line(f"replayed as it was recorded: {rounds}, {calls}; it took {took} then")
    return SAME


def _went_on(recording: Recording) -> bool:
    """Did anything come after the run first waited? A resume that nobody gave an answer to adds nothing."""
    lines = iter(recording.lines)
    for line in lines:
        if line["line"] == "event" and line["event"] == "run_finished":
            break
    return any(line["line"] not in ("resumed", "tools", "event") for line in lines)
