"""Reading recordings: whatever is in a file, complete lines are read, and only files that are not recordings are
refused."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from thorough import some

from unbroken import Agent, CallContext, RunView, ScriptedModel, tool
from unbroken.errors import Unauthorized, UserError
from unbroken.events import Event, RunFinished
from unbroken.models.scripted import Call, Fail
from unbroken.trajectory.lines import SCHEMA, Line
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import Recording, Summary, is_recording, list_recordings, read_recording, summarize
from unbroken_testing import run_virtual


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The long run's recording."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    a_long_run.play(path)
    return path.read_bytes()


def read_all(path: Path) -> Recording:
    """Reads everything of a recording."""
    recording = read_recording(path)
    for name in ("run", "agent_name", "model", "time", "settings", "virtual", "requests", "events", "ending"):
        getattr(recording, name)
    return recording


def change(data: bytes, number: int, **fields: Any) -> bytes:
    """The same recording with other fields in one of its lines."""
    lines = data.splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | fields).encode()
    return b"\n".join(lines) + b"\n"


# Files that are not recordings

NOT_RECORDINGS = {
    "empty": b"",
    "a blank line": b"\n",
    "binary": bytes(range(256)) * 20,
    "zeros": b"\0" * 1000,
    "text": b"Dear diary,\n",
    "other JSON": b'{"name": "demo", "version": 3}\n',
    "a list": b'[{"line": "run", "schema": 1}]\n',
    "a number": b"5\n",
    "a raw log": b'{"raw_log":1,"exchange":"a-1-1","kind":"request","body":"{}"}\n',
    "a line of one": b'{"line":"event","event":"said","run":"r","turn":0,"seq":1,"time":0.0,"text":"x"}\n',
    "a run without its schema": b'{"line":"run","run":"r"}\n',
    "deep": b"[" * 100_000,
    "UTF-16": '{"line":"run","schema":1}\n'.encode("utf-16"),
}


@pytest.mark.parametrize("data", NOT_RECORDINGS.values(), ids=NOT_RECORDINGS.keys())
def test_a_file_that_is_not_a_recording_is_refused_with_a_message(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(data)
    with pytest.raises(UserError) as refused:
        read_recording(path)
    assert str(path) in str(refused.value)
    assert "recording" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert summarize(path).problem == str(refused.value)
    assert not is_recording(path) or b'{"line":"run"' in data


@pytest.mark.parametrize("place", ["nowhere.jsonl", ".", "a\0b"])
def test_a_file_that_cannot_be_opened_is_refused_with_a_message(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        read_recording(place)
    assert summarize(Path(place)).problem
    assert not is_recording(place)


@pytest.mark.parametrize("schema", [SCHEMA + 1, 99, 10**30])
def test_a_newer_schema_is_refused_with_a_hint(schema: int, recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(change(recorded, 0, schema=schema))
    with pytest.raises(UserError, match=f"newer version .schema {schema}, and this one reads {SCHEMA}.: update"):
        read_recording(path)
    assert "update unbroken" in summarize(path).problem


@pytest.mark.parametrize("schema", ["1", None, 1.5, [], {}])
def test_an_invalid_schema_number_is_refused(schema: Any, recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(change(recorded, 0, schema=schema))
    with pytest.raises(UserError):
        read_recording(path)


def test_lines_and_fields_of_a_later_version_are_ignored(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    head, *rest = recorded.splitlines()
    news = [
        b'{"line":"weather","sun":true}',
        b'{"line":"event","event":"sun_rose","run":"r","turn":0,"seq":1,"time":0}',
    ]
    path.write_bytes(b"\n".join([head, *news, *rest]) + b"\n")
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(recorded)
    recording, before = read_all(path), read_all(plain)
    assert recording.problems == []
    assert (recording.events, recording.requests) == (before.events, before.requests)


def of_agent(of: dict[str, Any]) -> bytes:
    """The line of an event of an agent that runs as a tool."""
    call = {"call": 99, "call_id": "c", "name": "clerk", "agent": "main/clerk"}
    line = {"line": "event", "event": "inner_event", "run": "r", "turn": 0, "seq": 1, "time": 1.0, **call, "inner": of}
    return json.dumps(line).encode()


@pytest.mark.parametrize(
    ("wrong", "problems"),
    [
        ({"event": "sun_rose", "run": "i", "turn": 0, "seq": 0, "time": 1.0, "warm": []}, 0),
        ({"event": "sun_rose"}, 1),
        ({"event": "text_added", "run": "i", "turn": 0, "seq": 0, "time": 1.0}, 1),
        ({"event": "text_added", "run": "i", "turn": 0, "seq": 0, "time": 1.0, "text": 7}, 1),
        ({"event": ["text_added"]}, 1),
        ({}, 1),
    ],
    ids=["of a later version", "no event", "half", "a wrong type", "a list", "nothing"],
)
def test_an_event_of_an_inner_run_is_one_or_its_line_is_left_out(
    wrong: dict[str, Any], problems: int, recorded: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    *lines, end = recorded.splitlines()
    nested = json.loads(of_agent(wrong))
    path.write_bytes(b"\n".join([*lines, of_agent(wrong), of_agent(nested), end]) + b"\n")
    recording = read_all(path)
    assert len(recording.problems) == 2 * problems
    view = RunView.of(recording.events)
    assert (view.text[:4], len(view.calls)) == ("Swim", 9 - problems)


# Cut and broken


def test_a_recording_that_is_cut_at_any_byte_is_read_up_to_its_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    agent = Agent(ScriptedModel([Call("no_such_tool")], "Done."), record=path)
    run_virtual(lambda: agent.run("Go."))
    recorded, whole = path.read_bytes(), read_all(path)
    ends = [at for at, byte in enumerate(recorded) if byte == 10]
    for cut in some(range(len(recorded)), 3):
        path.write_bytes(recorded[:cut])
        if cut < ends[0]:
            with pytest.raises(UserError):
                read_recording(path)
            assert summarize(path).problem
            continue
        # A line that lacks only its line break is complete.
        complete = sum(end <= cut for end in ends) - 1
        recording = read_all(path)
        assert recording.lines == whole.lines[:complete]
        cleanly = cut in ends or cut - 1 in ends
        assert len(recording.problems) == (not cleanly)
        assert all("is cut" in problem for problem in recording.problems)
        assert summarize(path).problem == ""
    assert len(whole.lines) > 10


def test_a_long_recording_that_is_cut_anywhere_is_read_up_to_its_last_complete_line(
    recorded: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorded)
    lines = read_all(path).lines
    for cut in range(recorded.index(b"\n"), len(recorded), 101):
        path.write_bytes(recorded[:cut])
        recording = read_all(path)
        assert recording.lines == lines[: len(recording.lines)]
        assert len(recording.lines) - recorded[:cut].count(b"\n") in (-1, 0)
        assert len(recording.problems) <= 1


def test_broken_lines_in_the_middle_are_skipped_and_reported(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = recorded.splitlines()
    noise = [b"\xff\xfe\x00", b"{", b'{"line":5}', b"[]", b"null", b'{"at":1}', b'{"line":"delta","at":"x","turn":0}']
    for number, broken in enumerate(noise):
        lines.insert(10 * (number + 1), broken)
    path.write_bytes(b"\n".join(lines) + b"\n")
    recording = read_all(path)
    (tmp_path / "whole.jsonl").write_bytes(recorded)
    assert recording.problems == [f"line {10 * (n + 1) + 1} cannot be read and is left out" for n in range(len(noise))]
    assert recording.lines == read_all(tmp_path / "whole.jsonl").lines
    assert recording.ending is not None


def test_a_line_that_was_cut_before_a_run_was_resumed_is_skipped(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    resumed = b'\n{"line":"resumed","time":1700000100.5,"model":"m"}\n{"line":"something","at":1.5,"turn":1}\n'
    path.write_bytes(recorded[:4990] + resumed)
    recording = read_all(path)
    assert len(recording.problems) == 1
    assert [line["at"] for line in recording.lines[-2:]] == [100.5, 102.0]


BIG = b"0123456789" * 5_000_000


@pytest.mark.parametrize("where", [b'"line":"delta"', b'"line":"pieces"', b'"event":"run_finished"', b'"line":"run"'])
def test_a_line_of_50_megabytes_is_read_and_listed(where: bytes, tmp_path: Path) -> None:
    @tool(effect="read")
    async def look(what: str) -> str:
        return "seen"

    path = tmp_path / "run.jsonl"
    heard: list[Event] = []
    agent = Agent(ScriptedModel([Call("look", what="MARK")], "MARK"), [look], record=path)
    run_virtual(lambda: agent.run("MARK", sinks=[heard.append]))
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if where in line and b"MARK" in line)
    lines[number] = lines[number].replace(b"MARK", BIG, 1)
    path.write_bytes(b"".join(lines))
    began = time.process_time()
    (summary,) = list_recordings(tmp_path)
    assert time.process_time() - began < 3
    assert (summary.calls, summary.stop_reason, summary.problem) == (1, "answered", "")
    assert len(summary.prompt) <= 500
    recording = read_all(path)
    assert recording.problems == []
    assert [event.seq for event in recording.events] == [event.seq for event in heard]
    assert len(recording.requests) == 2


# Wrong types

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    3,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    -(2**70),
    10**400,
    "",
    "x",
    [],
    [1],
    ["a"],
    [{}],
    [[]],
    [None],
    {},
    {"a": 1},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [*value.items()]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - any JSON
    elif isinstance(value, list):
        items = [*enumerate(value)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - any JSON
    for name, inner in items:
        yield from places(inner, (*path, name))


def mutate(line: Line, dice: random.Random) -> Line:
    """Replaces some value by something unusual, or removes it; values near the top more often."""
    changed = copy.deepcopy(line)
    found = [*places(changed)]
    depth = dice.choice([1, 1, 2, 99])
    place = dice.choice([path for path in found if len(path) <= depth])
    holder: Any = changed
    for name in place[:-1]:
        holder = holder[name]
    if dice.random() < 0.2:
        del holder[place[-1]]
    else:
        holder[place[-1]] = dice.choice(ODD)
    return changed


def read_or_refused(path: Path) -> Recording | None:
    try:
        return read_all(path)
    except UserError:
        return None


@pytest.mark.parametrize("seed", some(range(10), 3))
def test_lines_of_wrong_types_only_raise_our_own_errors(seed: int, recorded: bytes, tmp_path: Path) -> None:
    dice = random.Random(seed)
    path = tmp_path / "run.jsonl"
    lines: list[Line] = [json.loads(line) for line in recorded.splitlines()]
    for _ in range(100):
        changed = list(lines)
        if dice.random() < 0.3:
            changed.insert(dice.randrange(1, len(lines)), {"line": "resumed", "time": 1700000100.0, "model": "m"})
        for _ in range(dice.choice([1, 1, 2, 6])):
            # The first and the last line have most to say.
            at = dice.choice([0, len(changed) - 1, dice.randrange(len(changed)), dice.randrange(len(changed))])
            changed[at] = mutate(changed[at], dice)
        path.write_text("".join(json.dumps(line) + "\n" for line in changed), "utf-8")
        recording, summary = read_or_refused(path), summarize(path)
        if recording is None:
            assert summary.problem
            continue
        assert summary.problem == ""
        assert isinstance(recording.settings, dict)
        assert all(type(event.seq) is int for event in recording.events)
        assert all(isinstance(event.time, int | float) for event in recording.events)


# Many


def test_a_list_shows_how_each_run_ended(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "long.jsonl")
    agent = Agent(ScriptedModel("Hi."), name="greeter", record=tmp_path / "short.jsonl")
    run_virtual(lambda: agent.run("Say hi.", run_id="short"), a_long_run.START + 60)
    (tmp_path / "notes.jsonl").write_text("mine\n")
    (tmp_path / "other.txt").write_text("not looked at")
    (tmp_path / "folder.jsonl").mkdir()
    short, long, none = list_recordings(tmp_path)
    told = asdict(long)
    assert told.pop("size") == (tmp_path / "long.jsonl").stat().st_size
    tokens = told.pop("tokens")
    assert tokens > 1000
    assert told == {
        "path": tmp_path / "long.jsonl",
        "run": "the-long-run",
        "agent_name": "main",
        "model": "scripted:demo",
        "time": a_long_run.START,
        "prompt": a_long_run.QUESTION,
        "stop_reason": "answered",
        "text": "Swim in the morning, whales at noon; both are booked.",
        "rounds": 3,
        "requests": 4,
        "calls": 8,
        "seconds": pytest.approx(4.55),  # pyright: ignore[reportUnknownMemberType] - pytest's own
        "problem": "",
        "cost": None,
        "own_prices": False,
    }
    assert (short.run, short.agent_name, short.prompt, short.text) == ("short", "greeter", "Say hi.", "Hi.")
    assert (none.path.name, none.run) == ("notes.jsonl", "")
    assert "is not a recording" in none.problem


def test_an_unfinished_run_is_listed_with_the_time_it_took_so_far(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorded[: recorded.rindex(b'{"line":"event","event":"run_finished"')])
    summary = summarize(path)
    assert (summary.stop_reason, summary.text, summary.problem) == ("", "", "")
    assert summary.seconds == pytest.approx(4.55)  # pyright: ignore[reportUnknownMemberType] - pytest's own


def test_a_run_that_was_killed_in_its_first_answer_is_listed_with_the_time_until_its_last_line(
    recorded: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorded[: recorded.index(b'{"line":"event","event":"call_written"')])
    assert summarize(path).seconds == pytest.approx(0.3)  # pyright: ignore[reportUnknownMemberType] - pytest's own


def test_an_unfinished_run_is_listed_with_its_usage_so_far(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = recorded.splitlines(keepends=True)
    found: list[tuple[int, int, int, int]] = []
    for number in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:number]))
        summary = summarize(path)
        used = summary.requests, summary.rounds, summary.calls, summary.tokens
        if not found or found[-1] != used:
            found.append(used)
    assert found == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (1, 0, 1, 0),  # a call starts while the first answer is being written
        (1, 0, 2, 0),
        (1, 1, 3, 0),  # it had three: one is shared
        (2, 1, 3, 120),
        (2, 1, 4, 120),  # this answer breaks off
        (2, 1, 5, 120),
        (2, 1, 6, 120),
        (2, 2, 6, 120),
        (3, 2, 6, 573),  # what broke off is estimated
        (3, 3, 8, 573),
        (4, 3, 8, 913),
        (4, 3, 8, 1363),
    ]


def test_a_run_that_died_during_a_progress_report_is_listed_with_the_time_of_the_report(tmp_path: Path) -> None:
    @tool
    async def pack(context: CallContext[Any]) -> str:
        for part in range(4):
            await asyncio.sleep(1.0)
            context.report("packing", part / 4)
        return "packed"

    path = tmp_path / "run.jsonl"
    run_virtual(lambda: Agent(ScriptedModel([Call("pack")], "Done."), [pack], record=path).run("Pack."))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b'{"line":"result"')])
    summary = summarize(path)
    assert (summary.seconds, summary.rounds, summary.calls, summary.stop_reason) == (4.0, 1, 1, "")


def test_an_invalid_folder_is_refused_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be listed: .*; name a folder of recordings"):
        list_recordings(tmp_path / "nowhere")
    assert list_recordings(tmp_path) == []


@pytest.mark.parametrize("ended", [True, False])
def test_1000_recordings_are_listed_quickly(ended: bool, recorded: bytes, tmp_path: Path) -> None:
    data = recorded if ended else recorded[: recorded.rindex(b'{"line":"event","event":"run_finished"')]
    for number in range(1000):
        (tmp_path / f"{number}.jsonl").write_bytes(data)
    began = time.process_time()
    found = list_recordings(tmp_path)
    assert time.process_time() - began < 2  # 0.1 s on an idle machine
    assert len(found) == 1000
    assert {(each.run, each.stop_reason) for each in found} == {("the-long-run", "answered" if ended else "")}


def test_the_summary_of_a_failed_run_counts_its_rounds_and_calls(tmp_path: Path) -> None:
    model = ScriptedModel([Call("look")], Fail(Unauthorized("no key")))

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        return "seen"

    with pytest.raises(Unauthorized):
        run_virtual(Agent(model, tools=[look], record=tmp_path).run("Look."))
    (summary,) = list_recordings(tmp_path)
    assert (summary.stop_reason, summary.rounds, summary.calls) == ("failed", 1, 1)


def test_a_summary_equals_the_complete_recording(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorded)
    recording, summary = read_all(path), summarize(path)
    ending = recording.ending
    assert isinstance(ending, RunFinished)
    assert summary == Summary(
        path,
        len(recorded),
        recording.run,
        recording.agent_name,
        recording.model,
        recording.time,
        a_long_run.QUESTION,
        ending.stop_reason,
        ending.text,
        ending.rounds,
        ending.requests,
        ending.calls,
        ending.seconds,
        ending.usage["input_tokens"] + ending.usage["output_tokens"],
    )


def test_a_recording_that_is_still_being_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    heard: list[Event] = []
    seen: list[int] = []

    @tool
    async def look_at_it() -> str:
        recording = read_all(path)
        assert recording.problems == []
        assert recording.ending is None
        assert recording.events == heard
        seen.append(len(recording.events))
        return "seen"

    agent = Agent(ScriptedModel([Call("look_at_it")], [Call("look_at_it")], "Done."), [look_at_it])
    run_virtual(lambda: agent.run("Go.", sinks=[heard.append, Recorder(path)]))
    assert len(seen) == 2


def test_pieces_that_share_a_line_are_read_as_their_deltas(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run_virtual(Agent(ScriptedModel("One two three."), record=Recorder(path)).run("Count."))
    raw = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    [line] = [line for line in raw if line["line"] == "pieces"]
    assert [text for _, text in line["pieces"]] == ["One ", "two ", "three."]
    deltas = [delta for delta in read_recording(path).of("delta") if delta["delta"] == "text"]
    assert [(delta["at"], delta["text"]) for delta in deltas] == [tuple(piece) for piece in line["pieces"]]


@pytest.mark.parametrize(
    "broken",
    [
        {"pieces": "One"},
        {"pieces": [["soon", "One"]]},
        {"pieces": [[0.0]]},
        {"pieces": [0.0, "One"]},
        {"delta": "ended"},
        {"turn": -1},
    ],
    ids=str,
)
def test_invalid_pieces_are_skipped_and_reported(broken: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run_virtual(Agent(ScriptedModel("One two three."), record=Recorder(path)).run("Count."))
    data = path.read_bytes()
    place = next(n for n, line in enumerate(data.splitlines()) if b'"line":"pieces"' in line)
    path.write_bytes(change(data, place, **broken))
    recording = read_recording(path)
    assert recording.problems == [f"line {place + 1} cannot be read and is left out"]
    assert not [delta for delta in recording.of("delta") if delta["delta"] == "text"]
