"""Replays a run with an agent: it gets the recorded prompt, and the recording provides the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from unbroken.agent.limits import limits_of
from unbroken.agent.options import Options, ReplayOptions
from unbroken.agent.ready_run import PreparesRuns, ReadyRun
from unbroken.agent.result import Result
from unbroken.agent.resuming import reading, replace_recorder
from unbroken.clock import Deadlock
from unbroken.events import Compacted, TextFinished, ToolCallsDetected
from unbroken.middleware import as_middleware
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.replay import Playback, PlayedClock, PlayedTools, RecordingEnded, ReplayDiverged, replay
from unbroken_wires.validation import check_options


def replay_run(
    agent: PreparesRuns,
    recording: str | os.PathLike[str] | Recording,
    clock: PlayedClock,
    tools: PlayedTools,
    speed: float,
    options: ReplayOptions,
    output: Any,
) -> Result[Any]:
    """The agent gets the same prompt, and the recording provides the rest."""
    check_options("agent.replay", ReplayOptions, options, also=("clock", "tools", "speed", "output"))
    recorded = recording if isinstance(recording, Recording) else read_recording(recording)
    with reading(recorded):
        playback = replay(recorded, clock=clock, tools=tools, speed=speed)
        messages, question, limits = playback.messages, playback.question, limits_of(recorded)

    def prepare() -> ReadyRun:
        given: Options = {
            "limits": limits,
            **options,
            "history": messages,
            "run_id": playback.run,
            "open_calls": "execute",
        }
        ready = agent.prepare(None if question is None else question.parts, given, output)
        # The recording takes the recorder's place. The replay itself is recorded only if its `sinks` do so.
        replayed = replace_recorder(agent.settings.middleware, playback)
        ready.middleware = (*agent.settings.sinks, *as_middleware(options.get("sinks", ())), *replayed)
        ready.past = playback
        account = ready.account
        account.recorded = _costs(recorded)
        if "limits" not in options:  # not the agent's prices: the cost is the recorded one
            account.limits = replace(account.limits, prices=limits.prices)
        return ready

    return _play(playback, prepare)


def _costs(recording: Recording) -> dict[int, float | None]:
    """What the request of each turn cost."""
    return {
        event.turn: event.cost
        for event in recording.events
        if isinstance(event, TextFinished | ToolCallsDetected | Compacted)
    }


def _play(playback: Playback, prepare: Callable[[], ReadyRun]) -> Result[Any]:
    """`prepare` makes the run for the playback. It runs on its own loop, which has the recording's time; if a loop is
    running already, in a thread."""

    async def play() -> Result[Any]:
        result = await prepare()()
        if (stopped := playback.diverged or playback.ended) is not None:
            raise stopped
        if playback.left:
            raise ReplayDiverged(
                f"the run diverges from its recording: it ended with {playback.left} recorded inputs left"
            )
        return result

    def run() -> Result[Any]:
        with asyncio.Runner(loop_factory=playback.loop) as runner:
            try:
                return runner.run(play())
            except Deadlock:  # lines of the recording are missing
                path = playback.recording.path
                raise RecordingEnded(f"{path} does not show how the run continued: lines are missing in it") from None

    if not _in_a_loop():
        return run()
    with ThreadPoolExecutor(1, "unbroken-replay") as thread:
        return thread.submit(run).result()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
