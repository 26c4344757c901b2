"""A process that records is killed (SIGKILL): its recording is read up to the last complete line, nothing that had an
effect is missing in it, and of the rest no more than the last moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from thorough import some

from unbroken.events import CallFinished, CallStarted, Event
from unbroken.trajectory.jsonl_writer import RecordingFile
from unbroken.trajectory.recording import Recording, list_recordings, read_recording

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

RUNS = """
import asyncio, json, os, signal, sys
import a_long_run
from pathlib import Path
from unbroken import Agent, ScriptedModel, tool
from unbroken.models.scripted import Call, Say

def tell(**what):
    os.write(1, json.dumps(what).encode() + b"\\n")

@tool(effect="read")
async def look(number: int) -> str:
    await asyncio.sleep(0.001 * (number % 3))
    return f"looked at {number}"

@tool
async def write(number: int) -> str:
    tell(effect=number)
    await asyncio.sleep(0.001 * (number % 2))
    return f"wrote {number}"

def hear(event):
    if type(event).__name__ == "CallFinished":
        tell(finished=event.call_id, text=event.text, wrote=event.name == "write")

async def long_and_real(path):
    names = "look", "write", "look", "write"
    rounds = [
        [Say("Let me see what there is.", over=0.002), *(Call(name, number=4 * r + n) for n, name in enumerate(names))]
        for r in range(200)
    ]
    agent = Agent(ScriptedModel(*rounds, "Done."), [look, write], sinks=[hear], record=path, limits=None)
    await agent.run("Go.")

def until(path, last):
    def stop(event):
        if event.seq == last:
            os.kill(os.getpid(), signal.SIGKILL)
    a_long_run.play(Path(path), [stop])

for line in sys.stdin:
    path, last = json.loads(line)
    child = os.fork()
    if child == 0:
        if last is None:
            asyncio.run(long_and_real(path))
        else:
            until(path, last)
        os._exit(0)
    tell(begun=child)
    _, status = os.waitpid(child, 0)
    tell(gone=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
"""
"""For each line that it reads, a separate process that records a run; importing the package is shared."""


class Runs:
    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def begin(self, path: Path, last: int | None = None) -> int:
        """The process that runs now."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(path), last]) + "\n")
        self._process.stdin.flush()
        told = self.hear()
        while "begun" not in told:  # the child may be quicker than its parent
            told = self.hear()
        return told["begun"]

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def rest(self) -> list[dict[str, Any]]:
        """Everything that was reported before it was killed."""
        told: list[dict[str, Any]] = []
        while "gone" not in (one := self.hear()):
            told.append(one)
        assert one["gone"] == signal.SIGKILL
        return told

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runs() -> Generator[Runs]:
    started = Runs()
    yield started
    started.close()


def results_of(recording: Recording) -> dict[str, str]:
    return {line["call_id"]: line["result"]["content"][0]["text"] for line in recording.of("result")}


def begun_in(recording: Recording) -> list[int]:
    events = [event for event in recording.events if isinstance(event, CallStarted) and event.name == "write"]
    return [event.arguments["number"] for event in events]


@pytest.mark.parametrize("seed", range(20))
def test_events_seen_before_a_kill_are_in_the_recording(seed: int, runs: Runs, tmp_path: Path) -> None:
    dice = random.Random(seed)
    path = tmp_path / "run.jsonl"
    process = runs.begin(path)
    told = [runs.hear() for _ in range(dice.randrange(1, 40))]
    time.sleep(dice.uniform(0, 0.003))
    os.kill(process, signal.SIGKILL)
    told += runs.rest()

    recording = read_recording(path)
    assert recording.ending is None
    assert all("is cut" in problem for problem in recording.problems)
    assert len(recording.problems) <= 1
    results = results_of(recording)
    heard = [one for one in told if "finished" in one]
    # Of reads, the last may be missing: they can be repeated.
    kept = [results.get(one["finished"]) == one["text"] for one in heard]
    assert kept == sorted(kept, reverse=True)
    assert [one for one, is_kept in zip(heard, kept, strict=True) if one["wrote"] and not is_kept] == []
    effects = [one["effect"] for one in told if "effect" in one]
    assert set(effects) <= set(begun_in(recording))
    (summary,) = list_recordings(tmp_path)
    assert (summary.problem, summary.stop_reason, summary.prompt) == ("", "", "Go.")


def test_a_run_that_is_killed_at_any_event_is_recorded_up_to_there(runs: Runs, tmp_path: Path) -> None:
    whole: list[Event] = []
    a_long_run.play(sinks=[whole.append])
    for last in some(whole, 4):
        path = tmp_path / f"{last.seq}.jsonl"
        runs.begin(path, last.seq)
        runs.rest()
        recording = read_recording(path)
        assert recording.problems == []
        assert recording.events == whole[: len(recording.events)]
        # What happened just before may still have been on its way.
        earlier = [event for event in whole[: last.seq] if event.time < last.time - RecordingFile.delay - 1e-6]
        assert len(recording.events) >= len(earlier)
        results = results_of(recording)
        for event in whole[: last.seq + 1]:
            if isinstance(event, CallFinished) and event.name == "book":
                assert results[event.call_id] == event.text
