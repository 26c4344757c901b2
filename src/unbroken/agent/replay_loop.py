"""A recorded run once more: the agent is asked what it was asked then, and the recording plays the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from unbroken.agent.result import Result
from unbroken.agent.run_lifecycle import Performance
from unbroken.trajectory.divergence import ReplayDiverged
from unbroken.trajectory.replay import Playback, RecordingEnded
from unbroken.virtual import Deadlock

T = TypeVar("T")


def play_again(playback: Playback, prepare: Callable[[], Performance]) -> Result:
    """`prepare` makes the run that the playback goes along with. On a loop of its own, which has the recording's
    time; where a loop runs already, in a thread."""

    async def play() -> Result:
        result = await prepare()()
        if (stopped := playback.diverged or playback.ended) is not None:
            raise stopped
        if playback.left:
            raise ReplayDiverged(
                f"the run diverges from its recording: it ended, and {playback.left} inputs were still to come"
            )
        return result

    def run() -> Result:
        with asyncio.Runner(loop_factory=playback.loop) as runner:
            try:
                return runner.run(play())
            except Deadlock:  # lines of the recording are missing
                path = playback.recording.path
                raise RecordingEnded(f"{path} does not say how the run went on: lines are missing in it") from None

    return _aside(run) if _in_a_loop() else run()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _aside(work: Callable[[], T]) -> T:
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run, name="unbroken-replay")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
