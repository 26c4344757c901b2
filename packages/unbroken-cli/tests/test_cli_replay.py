"""`unbroken replay`: what it says, where, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import a_long_run
import pytest
from terminals import in_pipe

from unbroken import Agent, Allow, ScriptedModel, Wait, tool
from unbroken.models.scripted import Call
from unbroken.trajectory.recording import read_recording

TOOLS = Path(a_long_run.__file__)


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return in_pipe("replay", *map(str, arguments))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a.jsonl"
    a_long_run.play(path)
    return path


def test_only_the_answer_is_on_standard_output(recorded: Path) -> None:
    done = replay(recorded)
    assert done.returncode == 0
    assert done.stdout == "Swim in the morning, whales at noon; both are booked.\n"
    assert "failed: map_of 1.00 s: Error: Execution timeout after 1s" in done.stderr
    assert done.stderr.endswith("unbroken: replayed as recorded: 3 rounds, 8 calls; the original took 4.55 s\n")


def test_json_prints_one_event_per_line(recorded: Path) -> None:
    done = replay(recorded, "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert (events[0]["event"], events[-1]["event"]) == ("run_started", "run_finished")
    assert [event["seq"] for event in events] == list(range(len(events)))


def test_live_tools_run_again_and_the_model_is_replayed_at_the_given_speed(recorded: Path) -> None:
    done = replay(recorded, "--live-tools", "--tools", TOOLS, "--speed", "50")
    assert done.returncode == 0
    assert "done: events_on 1.5" in done.stderr  # the tool takes as long as it takes
    assert "the original took 4.55 s" in done.stderr


def test_a_diverging_run_exits_with_1_and_the_difference(recorded: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS.read_text().replace("4 degrees, wind", "5 degrees, sun"))
    done = replay(recorded, "--live-tools", "--tools", tools)
    assert done.returncode == 1
    assert "the run diverges from its recording: request 1, message 3 (tool) is different now" in done.stderr
    assert '-     "text": "Reykjavik: 4 degrees, wind",' in done.stderr
    assert '+     "text": "Reykjavik: 5 degrees, sun",' in done.stderr


def test_an_incomplete_recording_exits_with_3(recorded: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(recorded.read_bytes()[:9000])
    done = replay(cut)
    assert done.returncode == 3
    assert f"{cut}: line " in done.stderr
    assert "is cut: its process died while it was written" in done.stderr
    assert "its run was cut off; `agent.resume` or `unbroken resume FILE` continues it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_is_replayed_until_a_round_and_continued_from_there(recorded: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.jsonl"
    done = replay(recorded, "--until-round", "2", "--save", part)
    assert done.returncode == 0
    assert "done: events_on 1.50 s" in done.stderr
    assert "book" not in done.stderr
    assert "replayed as recorded until the end of round 2" in done.stderr
    assert recorded.read_bytes().startswith(part.read_bytes())
    assert read_recording(part).ending is None
    model = ScriptedModel("Stay at home.")
    agent = Agent(model, a_long_run.TOOLS, a_long_run.INSTRUCTIONS, guidance=False)
    result = asyncio.run(agent.resume(part))
    assert (result.text, result.rounds, len(result.calls)) == ("Stay at home.", 2, 6)

    for wrong in (("--until-round", "4"), ("--save", part), ("--until-round", "1", "--save", part)):
        done = replay(recorded, *wrong)
        assert done.returncode == 2
        assert any(words in done.stderr for words in ("no round 4", "say which with", "name a new file"))


def test_a_run_that_waited_and_was_continued_is_replayed_until_it_waited(tmp_path: Path) -> None:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    path = tmp_path / "run.jsonl"
    model = ScriptedModel([Call("pay", amount=5)], "Paid.")
    agent = Agent(model, [pay], on_approval=lambda call: Wait(), record=path)
    (call,) = agent.run_sync("Pay.").pending
    done = replay(path)
    assert (done.returncode, "replayed as recorded" in done.stderr) == (0, True)
    assert agent.resume_sync(path, {call.id: Allow()}).text == "Paid."
    done = replay(path)
    assert done.returncode == 3
    assert "replayed until the run waited for an answer: 1 round, 0 calls; the rest is not" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl"], "there is no recording none.jsonl"),
        ([str(TOOLS)], "is not a recording: its first line does not begin with"),
        (["FILE", "--speed", "0"], "--speed 0: give a number above 0"),
        (["FILE", "--live-tools"], "--live-tools needs the tools"),
    ],
)
def test_wrong_use_gives_one_line_and_2(recorded: Path, arguments: list[str], words: str) -> None:
    done = replay(*(str(recorded) if argument == "FILE" else argument for argument in arguments))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
