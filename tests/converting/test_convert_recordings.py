"""Recordings of schemas 1 and 2, as earlier versions wrote them: converted, they are viewed, replayed and resumed like
current ones.

`schema_1/` has four: the long run; a response that broke off, whose retry reuses its ids for other calls; a run whose
process was killed between two writes; and a run that waits for an approval. `schema_2/` has six, with an agent that ran
as a tool, a background call and a hand-off, a broken answer, a run that was resumed, a summary, a masked secret.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from call_lives import assert_lives
from checkout import ROOT
from convert_recordings import convert
from scenes import only
from thorough import some

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallFinished,
    CallStarted,
    Event,
    Metrics,
    ScriptedModel,
    UserError,
    Wait,
    tool,
)
from unbroken.agent.recorded_agent import agent_of
from unbroken.agent.streaming import Collected
from unbroken.events import (
    CallAdopted,
    CallDropped,
    CallEvent,
    CallWritten,
    ReasoningAdded,
    RunFinished,
    TextAdded,
    TextFinished,
    event_from_json,
)
from unbroken.models.scripted import Call, Say
from unbroken.trajectory.recording import Recording, list_recordings, parse_recording, read_recording
from unbroken_testing import run_virtual
from unbroken_viewer.listing import count_failed
from unbroken_viewer.picture import draw

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("schema_1/*.jsonl"))
OF_SCHEMA_2 = sorted(HERE.glob("schema_2/*.jsonl"))

every_recording = pytest.mark.parametrize("name", FILES)


def read(name: str) -> Recording:
    return parse_recording(converted(name), Path(name))


def converted(name: str) -> list[bytes]:
    return list(convert((HERE / "schema_1" / name).read_bytes().splitlines(keepends=True)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Those of schema 1, converted on the command line."""
    into = tmp_path / "converted"
    script = [sys.executable, str(ROOT / "scripts" / "convert_recordings.py"), str(HERE / "schema_1"), "--into"]
    done = subprocess.run([*script, str(into)], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == (f"4 recordings converted into {into}\n", "", 0)
    return into


@pytest.mark.parametrize("path", OF_SCHEMA_2, ids=[path.stem for path in OF_SCHEMA_2])
def test_a_recording_of_schema_2_has_the_same_events_results_and_history(path: Path) -> None:
    raw = path.read_bytes().splitlines(keepends=True)
    before = [json.loads(line) for line in raw]
    recording = parse_recording(convert(raw), path)
    assert (recording.problems, recording.damaged) == ([], 0)
    told = [event_from_json(line) for line in before if line["line"] == "event"]
    events = {event.seq: event for event in recording.events}
    assert [_without_messages(events[event.seq]) for event in told] == [_without_messages(event) for event in told]
    streamed = [event for event in recording.events if event.seq not in {event.seq for event in told}]
    assert all(isinstance(event, TextAdded | ReasoningAdded) for event in streamed)
    for kind in ("result", "approval", "waits", "cancelled", "closed", "failed", "tools", "stage"):
        assert list(recording.of(kind)) == [line for line in before if line["line"] == kind]
    if isinstance(recording.ending, RunFinished):
        results = {line["call_id"]: line["result"] for line in before if line["line"] == "result"}
        said = [each for message in recording.ending.messages for each in message.get("results", ())]
        assert {each["call_id"]: each for each in said if each["call_id"] in results} == {
            each["call_id"]: results[each["call_id"]] for each in said if each["call_id"] in results
        }


def _without_messages(event: Event) -> Event:
    return replace(event, messages=[]) if isinstance(event, RunFinished) else event


def test_converted_recordings_are_at_most_four_fifths_as_long() -> None:
    before = sum(path.stat().st_size for path in OF_SCHEMA_2)
    after = sum(len(line) for path in OF_SCHEMA_2 for line in convert(path.read_bytes().splitlines(keepends=True)))
    assert after <= 0.8 * before


def test_what_is_no_recording_of_schema_1_or_2_is_refused(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="it is of schema 3, and not 1 or 2"):
        list(convert((tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)))


@pytest.mark.parametrize("path", [HERE / "schema_1" / FILES[0], OF_SCHEMA_2[0]], ids=["1", "2"])
def test_an_earlier_schema_is_refused_with_the_way_to_convert_it(path: Path) -> None:
    with pytest.raises(UserError, match=r"was recorded by an earlier version \(schema [12], .*convert_recordings\.py"):
        read_recording(path)


def lives(events: list[Event]) -> list[tuple[str, int, str]]:
    return [(type(event).__name__, event.call, event.call_id) for event in only(CallEvent, events)]


@tool(effect="read")
async def look(at: int, context: CallContext[Any]) -> str:
    """Look at a place."""
    context.report(f"looking at {at}")
    await asyncio.sleep(float(at))
    return f"seen {at}"


@tool
async def put(at: int) -> str:
    """Put something in a place."""
    return f"put {at}, in the second process"


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


TOOLS = [look, put, pay]


@every_recording
def test_it_is_read_without_problems_and_its_calls_are_consistent(name: str) -> None:
    recording = read(name)
    assert (recording.problems, recording.damaged) == ([], 0)
    assert_lives(recording.events, died=name == "killed.jsonl")
    assert [event.seq for event in recording.events] == sorted(event.seq for event in recording.events)


def test_calls_that_share_an_id_are_distinguished() -> None:
    events = read("broken_response.jsonl").events
    started = [(event.call, event.call_id, event.arguments["at"]) for event in only(CallStarted, events)]
    assert started == [(0, "a", 3), (1, "b", 1), (3, "b", 2)]
    assert [(event.call, event.call_id) for event in only(CallDropped, events)] == [(0, "a")]
    assert [(event.call, event.call_id, event.adopted) for event in only(CallAdopted, events)] == [(2, "a", 1)]
    assert {event.call: event.outcome for event in only(CallFinished, events)} == {
        0: "cancelled",
        2: "done",
        3: "done",
        4: "not_executed",
        5: "not_executed",
    }
    given = read("broken_response.jsonl").of("result")
    results = [(line["call"], line["result"]["content"][0]["text"]) for line in given]
    assert results == [(1, "seen 1"), (3, "seen 2")]
    (cut,) = (event for event in only(CallWritten, events) if event.arguments is None)
    assert (cut.call, [event.text for event in only(TextFinished, events)]) == (5, ["So. ", "Done."])


def test_it_is_counted_and_collected_like_a_current_recording() -> None:
    metrics = Metrics.of(read("broken_response.jsonl").events)
    counted = (metrics.tool_calls, metrics.tool_executions, metrics.adopted, metrics.dropped, metrics.refused)
    assert counted == (4, 3, 1, 1, 2)
    collected = Collected.of(read("broken_response.jsonl").events)
    first, second, *_ = collected.calls
    assert (first.number, first.id, first.text) == (2, "a", "seen 1")
    assert (second.number, second.id, second.text) == (3, "b", "seen 2")
    assert [(call.number, call.id) for call in collected.dropped] == [(0, "a")]


@every_recording
def test_it_can_be_viewed(name: str) -> None:
    picture = draw(read(name))
    states = {
        "broken_response.jsonl": ["dropped", "done", "done", "refused", "spoiled"],
        "killed.jsonl": ["running", "running", "running"],
        "long_run.jsonl": ["done", "shared", "done", "done", "failed", "done", "done", "done"],
        "waiting.jsonl": ["done", "handed"],
    }
    assert [call.state for turn in picture.turns for call in turn.calls] == states[name]
    assert not any("missing" in banner for banner in picture.banners)


def test_the_long_run_is_drawn_like_a_current_one(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "today.jsonl")
    before, now = draw(read("long_run.jsonl")), draw(read_recording(tmp_path / "today.jsonl"))
    assert (before.totals, before.turns, before.seconds) == (now.totals, now.turns, now.seconds)


def test_a_folder_lists_old_recordings(folder: Path) -> None:
    assert {each.path.name: (each.problem, each.stop_reason) for each in list_recordings(folder)} == {
        "broken_response.jsonl": ("", "answered"),
        "killed.jsonl": ("", ""),
        "long_run.jsonl": ("", "answered"),
        "waiting.jsonl": ("", "waiting"),
    }
    assert [count_failed((folder / name).read_bytes().splitlines()) for name in FILES] == [2, 0, 1, 0]


def test_the_long_run_is_replayed_by_the_current_agent(folder: Path) -> None:
    again: list[Event] = []
    result = a_long_run.agent().replay(folder / "long_run.jsonl", sinks=[again.append])
    assert result.text == "Swim in the morning, whales at noon; both are booked."
    assert sorted(lives(again)) == sorted(lives(read("long_run.jsonl").events))


@pytest.mark.parametrize(("name", "text"), [("long_run.jsonl", "both are booked."), ("broken_response.jsonl", "Done.")])
def test_it_is_replayed_without_its_code(name: str, text: str) -> None:
    again: list[Event] = []
    result = agent_of(read(name)).replay(read(name), sinks=[again.append])
    assert result.text.endswith(text)
    assert {each.number: each.text for each in Collected.of(again).calls} == {
        each.number: each.text for each in Collected.of(read(name).events).calls
    }


def test_a_run_that_was_killed_is_resumed_and_its_recording_continues(folder: Path) -> None:
    path = folder / "killed.jsonl"
    heard: list[Event] = []
    agent = Agent(ScriptedModel("Done."), TOOLS, sinks=[heard.append])
    result = run_virtual(lambda: agent.resume(path), 1_700_000_100.0)
    assert result.text == "Done."
    assert [(call.id, call.outcome, call.result.text[:22]) for call in result.calls] == [
        ("a", "done", "seen 1"),
        ("b", "done", "put 1"),
        ("c", "unknown", "Error: outcome unknown"),
    ]
    assert [(event.call, event.adopted) for event in only(CallAdopted, heard)] == [(3, 0), (4, 1), (5, 2)]
    recording = read_recording(path)
    (resumed,) = recording.of("resumed")
    assert (recording.head["schema"], resumed["schema"], recording.problems) == (3, 3, [])
    assert_lives(recording.events)
    assert [call.state for turn in draw(recording).turns for call in turn.calls] == ["done", "done", "uncertain"]


def test_a_waiting_run_is_resumed_with_the_numbers_of_its_calls(folder: Path) -> None:
    path = folder / "waiting.jsonl"
    result = run_virtual(lambda: Agent(ScriptedModel("Done."), TOOLS).resume(path, {"b": Allow()}), 1_700_000_100.0)
    assert (result.text, [call.result.text for call in result.calls]) == ("Done.", ["seen 1", "paid 5"])
    recording = read_recording(path)
    assert_lives(recording.events)
    assert [(event.call, event.call_id) for event in only(CallFinished, recording.events)] == [(0, "a"), (1, "b")]


def test_a_recording_that_a_newer_version_resumed_is_refused(folder: Path) -> None:
    path = folder / "killed.jsonl"
    resumed = {"line": "resumed", "schema": 4, "time": 0.0, "model": "m"}
    path.write_bytes(path.read_bytes() + json.dumps(resumed).encode() + b"\n")
    with pytest.raises(UserError, match="a newer version \\(schema 4"):
        read_recording(path)


@every_recording
def test_a_damaged_line_is_skipped_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    lines = b"".join(converted(name)).splitlines()
    for place in some(range(1, len(lines)), 3):
        odd = lines[place].replace(b'"call_id":"', b'"call_id":7,"x":"')
        for spoiled in (b"{", b"[]", b'{"line":"event","event":"call_finished"}', odd):
            path = tmp_path / "run.jsonl"
            path.write_bytes(b"\n".join([*lines[:place], spoiled, *lines[place + 1 :], b""]))
            recording = read_recording(path)
            assert len(recording.problems) <= 3
            draw(recording)
            Metrics.of(recording.events)
            Collected.of(recording.events)


def test_a_result_that_was_saved_before_calls_had_numbers_is_resumed() -> None:
    async def main() -> None:
        agent = Agent(
            ScriptedModel([Say("Well. "), Call("pay", amount=5, id="b")], "Done."), TOOLS, on_approval=lambda _: Wait()
        )
        waiting = (await agent.run("Go.")).to_json()
        assert (waiting["numbers"], waiting["next_call"]) == ({"b": 0}, 1)
        del waiting["numbers"], waiting["next_call"]
        heard: list[Event] = []
        assert (await agent.resume(waiting, {"b": Allow()}, sinks=[heard.append])).text == "Done."
        assert_lives(heard)

    run_virtual(main())
