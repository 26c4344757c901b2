"""The picture of a run: every number of it, and how broken, unusual or very large recordings are handled."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import a_long_run
import pytest
from broken_runs import play, schedules, scripts, wires
from convert_recordings import convert
from hypothesis import given
from hypothesis import strategies as st
from strategies import costly

from unbroken import Agent, CallContext, Edit, Middleware, Schedule, ScriptedModel, ToolCall, ToolResult, tool
from unbroken.errors import UserError
from unbroken.tools.caller import Caller
from unbroken.trajectory.recording import read_recording
from unbroken_cli.run_picture import list_lines, picture_lines
from unbroken_testing import Answer, Call, Uses, run_virtual
from unbroken_viewer.listing import Shelf, recordings_below
from unbroken_viewer.picture import Picture, Totals, draw, moment, picture_json
from unbroken_viewer.picture_data import CallLane, Clipper


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "long.jsonl"
    a_long_run.play(path)
    return path


def drawn(path: Path) -> Picture:
    return draw(read_recording(path))


def recorded(path: Path, *lines: dict[str, Any], head: dict[str, Any] | None = None) -> Path:
    first: dict[str, Any] = {
        "line": "run",
        "schema": 1,
        "run": "r",
        "time": 100.0,
        "model": "m:1",
        "messages": [],
        **(head or {}),
    }
    path.write_bytes(b"".join(convert(json.dumps(line).encode() + b"\n" for line in (first, *lines))))
    return path


def event(kind: str, at: float, /, **fields: Any) -> dict[str, Any]:
    return {"line": "event", "event": kind, "run": "r", "turn": 0, "seq": 0, "time": 100.0 + at, **fields}


def times(call: CallLane) -> tuple[float | None, ...]:
    return call.opened, call.written, call.started, call.ended


def test_the_long_run_is_drawn_exactly(long_run: Path) -> None:
    picture = drawn(long_run)
    assert (picture.state, picture.seconds, picture.schedule, picture.model) == (
        "answered",
        4.55,
        "eager",
        "scripted:demo",
    )
    assert (picture.prompt, picture.time, picture.virtual, picture.banners) == (
        a_long_run.QUESTION,
        a_long_run.START,
        True,
        (),
    )
    assert picture.totals == Totals(
        rounds=3,
        requests=4,
        attempts=5,
        calls=8,
        failed=1,
        early=5,
        duplicates=1,
        adopted=1,
        refused=0,
        uncertain=0,
        retries=1,
        restarts=1,
        input_tokens=1213,
        output_tokens=150,
        estimated=True,
        cost=None,
        tool_seconds=5.5,
        waited=0.0,
    )
    assert [(turn.round, turn.asked, turn.ended, turn.finished) for turn in picture.turns] == [
        (1, 0.0, 0.6, 2.1),
        (2, 2.1, 2.7, 3.8),
        (3, 3.8, 3.8, 4.05),
        (0, 4.05, 4.55, None),
    ]


def test_a_picture_and_the_list_have_the_cost_of_the_run_and_of_each_request(tmp_path: Path) -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    script = [Call("look"), Uses(1000, 100)], ["Done:\n\n| a | b |\n|---|---|\n  - c", Uses(2000, 50)]
    agent = Agent(ScriptedModel(*script, name="openai:gpt-5-mini"), [look], record=tmp_path / "run.jsonl")
    result = run_virtual(agent.run("Go."))
    picture = drawn(tmp_path / "run.jsonl")
    assert result.cost is not None
    assert picture.totals.cost == result.cost
    first, last = picture.turns
    assert first.cost is not None
    assert last.cost is not None
    assert (first.round_cost, last.round_cost) == (first.cost, None)
    assert first.cost + last.cost == pytest.approx(result.cost)
    (row,) = Shelf(tmp_path).rows()
    assert row.cost == result.cost
    shown = "".join(line.plain for line in [*list_lines([row], 120), *picture_lines(picture, 120)])
    assert shown.count(f"{result.cost:.4f}") == 2
    answer = [line.plain for line in picture_lines(picture, 120)][-5:]
    assert answer == ["Done:", "", "| a | b |", "|---|---|", "  - c"]  # in its own lines
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    called = next(place for place, line in enumerate(lines) if b'"event":"tool_calls_detected"' in line)
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines[: called + 1]))  # its process died
    assert drawn(tmp_path / "run.jsonl").totals.cost == first.cost
    (row,) = Shelf(tmp_path).rows()
    assert row.cost == first.cost


def test_each_call_of_the_long_run_has_its_times_and_its_end(long_run: Path) -> None:
    calls = [call for turn in drawn(long_run).turns for call in turn.calls]
    assert [(call.name, *times(call), call.early, call.state) for call in calls] == [
        ("weather", 0.3, 0.3, 0.3, 0.8, True, "done"),
        ("weather", 0.6, 0.6, None, 0.8, False, "shared"),
        ("events_on", 0.6, 0.6, 0.6, 2.1, True, "done"),
        ("events_on", 2.3, 2.3, 2.3, 3.8, True, "done"),  # adopted: from its first byte in the broken answer
        ("map_of", 2.7, 2.7, 2.7, 3.7, True, "failed"),
        ("weather", 2.7, 2.7, 2.7, 3.2, True, "done"),
        ("book", 3.8, 3.8, 3.8, 4.05, False, "done"),
        ("book", 3.8, 3.8, 3.8, 4.05, False, "done"),
    ]
    assert [call.duplicate_of for call in calls if call.state == "shared"] == ["call_r0c0"]
    assert [call.adopted_from for call in calls if call.adopted_from] == ["call_r1c0"]
    late = calls[4]
    assert late.result is not None
    assert late.result.text == "Error: Execution timeout after 1s"
    assert late.arguments is not None
    assert json.loads(late.arguments.text) == {"city": "Reykjavik"}
    assert late.key in {line["key"] for line in read_recording(long_run).of("result") if line["call_id"] == late.id}


def test_an_answer_that_broke_off_is_an_attempt_of_the_same_turn(long_run: Path) -> None:
    first, second = drawn(long_run).turns[1].attempts
    assert (first.asked, first.first, first.ended, first.broken, first.kind) == (
        2.1,
        2.1,
        2.7,
        "the connection was lost",
        "lost",
    )
    assert [(piece.kind, piece.start, piece.end) for piece in first.pieces] == [("text", 2.1, 2.3), ("call", 2.3, 2.3)]
    assert (second.asked, second.ended, second.broken) == (2.7, 2.7, "")


def test_calls_with_the_same_id_are_separate_lanes(tmp_path: Path) -> None:
    """The second one gets another id, but not before it is complete."""
    played = run_virtual(
        play(
            [[Call("look", path="a", id="same"), Call("look", path="b", id="same")], "Done."],
            Schedule.EAGER,
            "openai-chat",
            record=tmp_path,
        )
    )
    assert played.result is not None
    [turn, _] = drawn(next(tmp_path.glob("*.jsonl"))).turns
    assert [(call.id, call.state, call.result and call.result.text) for call in turn.calls] == [
        (record.call.id, "done", record.result.text) for record in played.result.calls
    ]


@costly
@given(scripts, schedules, wires, st.booleans())
def test_the_picture_of_any_broken_run_has_the_calls_of_its_result(
    script: list[Answer], schedule: Schedule, wire: str, several: bool
) -> None:
    with TemporaryDirectory() as folder:
        played = run_virtual(play(script, schedule, wire, several_calls=several, record=folder))
        picture = drawn(next(Path(folder).glob("*.jsonl")))
    if played.result is not None:
        calls = [call for turn in picture.turns for call in turn.calls if call.state not in ("dropped", "withdrawn")]
        assert [(call.id, call.name, call.error) for call in calls] == [
            (record.call.id, record.call.name, record.result.error) for record in played.result.calls
        ]
        assert picture.totals.rounds == played.result.rounds
        assert all(call.ended is not None for call in calls)


def test_messages_of_each_request_are_the_new_ones(long_run: Path) -> None:
    requests = drawn(long_run).requests
    assert [(one.turn, one.at, one.keep, [said.role for said in one.new]) for one in requests] == [
        (0, 0.0, 0, ["system", "user"]),
        (1, 2.1, 2, ["assistant", "tool"]),
        (2, 3.8, 4, ["assistant", "tool"]),
        (3, 4.05, 6, ["assistant", "tool"]),
    ]
    results = requests[2].new[1].parts
    assert [(part.kind, part.name, part.error) for part in results] == [
        ("result", "events_on", False),
        ("result", "map_of", True),
        ("result", "weather", False),
    ]
    assert requests[3].tools == ("weather", "events_on", "map_of", "book")


def test_every_line_is_an_entry_and_events_are_marked(long_run: Path) -> None:
    recording, picture = read_recording(long_run), drawn(long_run)
    assert len(picture.entries) == len(recording.lines)
    assert [entry.fields["seq"] for entry in picture.entries if entry.event] == list(range(len(recording.events)))
    assert [entry.at for entry in picture.entries if entry.kind == "request_retried"] == [2.7]


def test_an_unfinished_run_is_marked_and_the_rest_is_shown(long_run: Path, tmp_path: Path) -> None:
    whole = long_run.read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: whole.index(b'"call":5,"seconds":')])
    picture = drawn(cut)
    assert picture.state == "unfinished"
    assert picture.banners[0].startswith(f"This run has no end. Its last line is from {moment(a_long_run.START + 3.7)}")
    assert "`unbroken resume cut.jsonl --tools tools.py` continues it." in picture.banners[0]
    assert "is cut" in picture.banners[1]
    assert [call.state for call in picture.turns[1].calls] == ["running", "running", "done"]
    assert picture.totals.calls == 6
    assert sum(line.plain.endswith("no end") for line in picture_lines(picture, 80)) == 2


def test_every_prefix_of_a_recording_can_be_drawn(long_run: Path, tmp_path: Path) -> None:
    lines = long_run.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    for count in range(1, len(lines)):
        cut.write_bytes(b"".join(lines[:count]))
        picture = drawn(cut)
        assert picture.state == "unfinished"
        assert len(picture.entries) == count - 1


def test_a_gateways_recording_has_released_calls(tmp_path: Path) -> None:
    call: dict[str, Any] = {"id": "c1", "name": "search", "arguments": {"q": "x"}, "complete": True}
    path = recorded(
        tmp_path / "g.jsonl",
        event("run_started", 0.0, model="m:1", schedule=""),
        event("request_sent", 0.0, messages=1, tools=1, final=False),
        {"line": "request", "at": 0.0, "turn": 0, "keep": 0, "messages": []},
        {"line": "delta", "at": 0.4, "turn": 0, "delta": "call_opened", "index": 0, "name": "search", "id": "c1"},
        {"line": "delta", "at": 0.5, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "delta", "at": 0.6, "turn": 0, "delta": "ended", "verdict": {"kind": "whole"}},
        event(
            "run_finished", 0.6, text="", stop_reason="answered", rounds=0, requests=1, calls=1, usage={}, seconds=0.6
        ),
        head={"agent_name": "gateway"},
    )
    picture = drawn(path)
    [turn] = picture.turns
    assert (turn.asked, turn.ended, turn.attempts[0].first) == (0.0, 0.6, 0.4)
    assert [(one.name, one.opened, one.written, one.state) for one in turn.calls] == [("search", 0.4, 0.5, "handed")]
    assert picture.agent == "gateway"


def test_waits_and_approvals_are_between_complete_and_started(tmp_path: Path) -> None:
    call: dict[str, Any] = {"id": "c1", "name": "pay", "arguments": {}, "complete": True}
    path = recorded(
        tmp_path / "w.jsonl",
        event("request_sent", 0.0, messages=1, tools=1, final=False),
        {"line": "delta", "at": 0.5, "turn": 0, "delta": "call_ready", "call": call},
        event("approval_asked", 0.6, call_id="c1", name="pay", arguments={}),
        {"line": "approval", "at": 1.5, "turn": 0, "call_id": "c1", "decision": "deny", "reason": "too dear"},
        event("call_finished", 1.5, call_id="c1", name="pay", seconds=0, error=True, text="Denied", executed=False),
        event("limit_reached", 1.6, kind="round_limit", limit=3),
    )
    picture = drawn(path)
    [one] = picture.turns[0].calls
    assert (one.asked, one.decided, one.decision, one.state) == (0.6, 1.5, "deny: too dear", "refused")
    assert picture.totals.waited == 1.0
    assert [(mark.at, mark.kind, mark.text) for mark in picture.marks] == [(1.6, "limit", "round_limit: 3")]


@pytest.mark.parametrize("by", ["approver", "middleware"])
def test_a_call_whose_arguments_were_edited_is_shown_as_it_ran(by: str, tmp_path: Path) -> None:
    class Halves(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            return await call_next(replace(call, arguments={"amount": 2}), context)

    @tool(approve=by == "approver")
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    path = tmp_path / "edited.jsonl"
    middleware = [Halves()] if by == "middleware" else []
    model = ScriptedModel([Call("pay", amount=5)], "Done.")
    agent = Agent(model, [pay], on_approval=lambda call: Edit({"amount": 2}), middleware=middleware, record=path)
    run_virtual(agent.run("Pay."))
    picture = drawn(path)
    [one] = picture.turns[0].calls
    assert one.arguments is not None
    assert one.made is not None
    assert (one.edited, one.arguments.text, one.made.text) == (True, '{"amount": 2}', '{"amount": 5}')
    assert "pay (edited) 2" in "\n".join(line.plain for line in picture_lines(picture, 100))


def test_a_request_that_begins_otherwise_than_the_last_is_marked(tmp_path: Path) -> None:
    sent = {"messages": 1, "tools": 1, "final": False}
    lines = [event("request_sent", 1.0, **sent), event("request_sent", 2.0, **{**sent, "turn": 1, "changed": "tools"})]
    picture = drawn(recorded(tmp_path / "run.jsonl", *lines))
    assert [(mark.at, mark.kind, mark.text) for mark in picture.marks] == [(2.0, "prefix", "tools changed")]


def test_a_call_that_died_with_its_process_runs_again_after_the_resume(tmp_path: Path) -> None:
    call: dict[str, Any] = {"id": "c1", "name": "slow", "arguments": {}, "complete": True}
    path = recorded(
        tmp_path / "d.jsonl",
        event("request_sent", 0.0, messages=1, tools=1, final=False),
        {"line": "delta", "at": 0.5, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "delta", "at": 0.6, "turn": 0, "delta": "ended", "verdict": {"kind": "whole"}},
        event("call_started", 0.6, call_id="c1", name="slow", arguments={}),
        {"line": "note", "at": 0.9, "turn": 0, "text": "a line could not be written"},
        {"line": "resumed", "time": 160.0},
        event("call_started", 60.0, call_id="c1", name="slow", arguments={}),
        event("call_finished", 61.0, call_id="c1", name="slow", seconds=1.0, error=False, text="ok"),
    )
    picture = drawn(path)
    [one] = picture.turns[0].calls
    assert one.died == [(0.6, 0.9)]
    # Nothing is drawn for the minute between the processes.
    assert (one.started, one.ended, one.state) == (0.9, 1.9, "done")
    assert [(mark.at, mark.text) for mark in picture.marks if mark.kind == "resumed"] == [
        (0.9, "the run continues here, 59.10 s later")
    ]
    assert "a line could not be written" in picture.banners[1]


def test_arguments_of_five_megabytes_are_shortened_and_their_size_is_shown(tmp_path: Path) -> None:
    huge = "x" * 5_000_000
    call: dict[str, Any] = {"id": "c1", "name": "write", "arguments": {"text": huge}, "complete": True}
    path = recorded(
        tmp_path / "h.jsonl",
        event("request_sent", 0.0, messages=1, tools=1, final=False),
        {"line": "delta", "at": 0.5, "turn": 0, "delta": "call_ready", "call": call},
        event("call_finished", 1.5, call_id="c1", name="write", seconds=1, error=False, text=huge),
    )
    picture = drawn(path)
    [one] = picture.turns[0].calls
    assert one.arguments is not None
    assert one.arguments.cut
    assert (len(one.arguments.text), one.arguments.size) == (100_000, 5_000_012)
    assert len(picture_json(picture)) < 300_000


def test_once_a_picture_is_full_texts_are_shortened_more() -> None:
    clips = Clipper(most=10_000, altogether=15_000)
    assert [len(clips.text("y" * 20_000).text) for _ in range(4)] == [10_000, 10_000, 1_000, 1_000]


def test_any_content_in_the_fields_of_a_recording_can_be_drawn(long_run: Path, tmp_path: Path) -> None:
    chance = random.Random(6)
    strange: list[Any] = [None, True, -1, 1e308, 10**30, "", "\ud800", "</script>", [], {}, [1], {"a": [None]}]
    lines = [json.loads(line) for line in long_run.read_text().splitlines()]
    broken = tmp_path / "strange.jsonl"
    for _ in range(60):
        bent: list[dict[str, Any]] = []
        for line in lines[1:]:
            if chance.random() < 0.3:
                names = [name for name in line if name not in ("line", "at", "turn", "keep", "messages", "time")]
                line = line | {chance.choice(names): chance.choice(strange)} if names else line
            if chance.random() < 0.95:
                bent.append(line)
        broken.write_text("".join(json.dumps(line) + "\n" for line in (lines[0], *bent)))
        assert json.loads(picture_json(drawn(broken)))["run"] == "the-long-run"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "recording"),
        (b"hello\n", "not a recording"),
        (b'{"line":"run","schema":99}\n', "newer version"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused_with_a_message(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        Shelf(path)


def test_a_folder_lists_runs_with_failures_and_bad_files_with_their_reason(long_run: Path, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_bytes(long_run.read_bytes())
    (tmp_path / "bad.jsonl").write_text("{}\n")
    (tmp_path / "other.txt").write_text("not looked at")
    good, bad = Shelf(tmp_path).rows()
    assert (good.name, good.state, good.rounds, good.calls, good.failed) == ("good.jsonl", "answered", 3, 8, 1)
    assert (good.seconds, good.tokens, good.prompt) == (4.550000004, 1363, a_long_run.QUESTION)
    assert "not a recording" in bad.problem
    with pytest.raises(UserError, match="no recording"):
        Shelf(tmp_path).draw("bad.jsonl")


def call_lines(at: float, index: int, name: str, **arguments: Any) -> list[dict[str, Any]]:
    call: dict[str, Any] = {"id": f"c{index}", "name": name, "index": index, "arguments": arguments, "complete": True}
    opened = {"delta": "call_opened", "index": index, "name": name, "id": f"c{index}"}
    return [
        {"line": "delta", "at": at, "turn": 0, **fields} for fields in (opened, {"delta": "call_ready", "call": call})
    ]


def ended(at: float, turn: int = 0) -> dict[str, Any]:
    return {"line": "delta", "at": at, "turn": turn, "delta": "ended", "verdict": {"kind": "whole"}}


def asked(at: float, turn: int = 0, *, final: bool = False) -> list[dict[str, Any]]:
    said = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
    return [
        event("request_sent", at, turn=turn, messages=1, tools=1, final=final),
        {"line": "request", "at": at, "turn": turn, "keep": 0, "messages": [said]},
    ]


def done(at: float, index: int, seconds: float) -> dict[str, Any]:
    return event("call_finished", at, call_id=f"c{index}", name="x", seconds=seconds, error=False, text="ok")


def killed_and_resumed(path: Path, again: list[dict[str, Any]]) -> Picture:
    """`slow` had ended and `die` was running when the process died; a minute later `again` comes."""
    before = [
        *asked(0.0),
        *call_lines(0.1, 0, "slow"),
        *call_lines(0.2, 1, "die"),
        ended(0.3),
        event("call_started", 0.3, call_id="c0", name="slow", arguments={}),
        done(1.0, 0, 0.7),
        event("call_started", 1.0, call_id="c1", name="die", arguments={}),
    ]
    rest = [
        event("call_started", 61.0, call_id="c0", name="slow", arguments={}),
        done(61.0, 0, 0.0001),
        event("call_started", 61.0, call_id="c1", name="die", arguments={}),
        done(61.5, 1, 0.5),
        *asked(61.5, 1),
        {"line": "delta", "at": 0.6, "turn": 1, "delta": "text", "text": "Done."},
        ended(0.7, 1),
        event("run_finished", 61.7, turn=1, text="Done.", stop_reason="answered", rounds=1, requests=2, calls=2,
              usage={}, seconds=1.7),
    ]  # fmt: skip
    lines: list[dict[str, Any]] = [*before, {"line": "resumed", "time": 161.0}, *again, *rest]
    for line in lines[len(before) + 1 :]:
        if line["line"] == "request":
            line["at"] -= 61.0  # from where the run was resumed
    return drawn(recorded(path, *lines))


def test_a_resumed_run_is_drawn_as_one_run(tmp_path: Path) -> None:
    played = [*asked(61.0), *call_lines(0.0, 0, "slow"), *call_lines(0.0, 1, "die"), ended(0.0)]
    picture = killed_and_resumed(tmp_path / "r.jsonl", played)
    first, answer = picture.turns
    assert (picture.totals.rounds, picture.totals.calls, picture.seconds) == (1, 2, 1.7)
    assert [(call.name, *times(call), call.died, call.state) for call in first.calls] == [
        ("slow", 0.1, 0.1, 0.3, 1.0, [], "done"),
        ("die", 0.2, 0.2, 1.0, 1.5, [(1.0, 1.0)], "done"),
    ]
    assert [(one.asked, one.ended, one.broken) for one in first.attempts] == [(0.0, 0.3, "")]
    assert (answer.asked, answer.ended) == (1.5, 1.7)
    assert [(one.turn, one.keep, len(one.new)) for one in picture.requests] == [(0, 0, 1), (0, 1, 0), (1, 0, 1)]


def test_a_request_repeated_after_a_resume_is_another_attempt(tmp_path: Path) -> None:
    """This time it writes text first; the identical calls continue."""
    words = {"line": "delta", "at": 0.0, "turn": 0, "delta": "text", "text": "Well."}
    anew = [*asked(61.0), words, *call_lines(0.0, 0, "slow"), *call_lines(0.0, 1, "die"), ended(0.0)]
    picture = killed_and_resumed(tmp_path / "r.jsonl", anew)
    turn = picture.turns[0]
    assert [(one.asked, one.ended, one.broken) for one in turn.attempts] == [
        (0.0, 0.3, "it was requested again"),
        (1.0, 1.0, ""),
    ]
    assert [(call.name, call.started, call.ended, call.state) for call in turn.calls] == [
        ("slow", 0.3, 1.0, "done"),
        ("die", 1.0, 1.5, "done"),
    ]


def test_calls_that_are_refused_after_a_limit_are_not_a_round(tmp_path: Path) -> None:
    refused = event("call_finished", 0.3, call_id="c0", name="x", seconds=0, error=True, text="no", executed=False)
    path = recorded(tmp_path / "l.jsonl", *asked(0.0, final=True), *call_lines(0.1, 0, "x"), ended(0.2), refused)
    picture = drawn(path)
    assert (picture.totals.rounds, picture.totals.calls, picture.totals.refused) == (0, 1, 1)


def failed_attempt(at: float, kind: str) -> dict[str, Any]:
    verdict = {"kind": kind, "reason": kind}
    return {"line": "delta", "at": at, "turn": 0, "delta": "attempt_failed", "verdict": verdict, "wait": 0.0,
            "elsewhere": False}  # fmt: skip


def test_only_an_answer_that_broke_off_is_a_restart(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.jsonl", *asked(0.0), failed_attempt(0.1, "limited"), failed_attempt(0.2, "lost"))
    totals = drawn(path).totals
    assert (totals.retries, totals.restarts) == (2, 1)


def test_a_call_that_nobody_adopted_is_not_a_second_lane(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "b.jsonl",
        *asked(0.0),
        *call_lines(0.0, 0, "look"),
        event("call_started", 0.0, call_id="c0", name="look", arguments={}, early=True),
        failed_attempt(0.2, "lost"),
        {"line": "delta", "at": 0.2, "turn": 0, "delta": "restarted", "dropped": ["c0"]},
        {"line": "result", "at": 0.5, "turn": 0, "call_id": "c0", "key": "k", "result": {"content": []}},
        {"line": "failed", "at": 0.6, "turn": 0, "error": "ChainBroken", "message": "it broke"},
        event("call_finished", 0.6, call_id="c0", name="look", seconds=0.5, error=False, text="", dropped=True),
        event("run_failed", 0.6, error="ChainBroken", message="it broke"),
    )
    picture = drawn(path)
    [one] = picture.turns[0].calls
    assert (one.state, one.started, one.ended, one.key) == ("dropped", 0.0, 0.5, "k")
    totals = picture.totals
    assert (totals.rounds, totals.calls, totals.early, totals.tool_seconds) == (0, 0, 1, 0.5)


def test_a_file_of_the_recorded_fixture_is_not_a_run_that_died(tmp_path: Path) -> None:
    head = {"agent_name": "recorded", "run": "test_it"}
    path = recorded(tmp_path / "t.jsonl", *asked(0.0)[1:], *call_lines(0.1, 0, "look"), ended(0.2), head=head)
    picture = drawn(path)
    assert (picture.state, picture.prompt) == ("recorded", "Go.")
    assert [call.state for call in picture.turns[0].calls] == ["handed"]
    assert "fixture `recorded`" in picture.banners[0]
    assert [row.state for row in Shelf(tmp_path).rows()] == ["recorded"]


def test_many_broken_lines_and_notes_do_not_hide_the_run(long_run: Path, tmp_path: Path) -> None:
    first, *lines = long_run.read_text().splitlines()
    path = tmp_path / "b.jsonl"
    notes = ['{"line":"note","text":"full"}'] * 30
    path.write_text("\n".join([first, *["broken"] * 30, *notes, *lines]) + "\n")
    picture = drawn(path)
    assert len(picture.banners) == 8
    assert "27 more lines" in picture.banners[3]
    assert picture.totals.calls == 8


def test_missing_events_are_reported(long_run: Path, tmp_path: Path) -> None:
    lines = long_run.read_text().splitlines(keepends=True)
    path = tmp_path / "half.jsonl"
    path.write_text("".join(line for line in lines if '"event":"call_started"' not in line))
    assert [banner for banner in drawn(path).banners if "7 events are missing" in banner]


def test_names_of_many_megabytes_are_shortened(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    end = event("run_finished", 1.0, text="", stop_reason=long, rounds=0, requests=1, calls=0, usage={}, seconds=1.0)
    path = recorded(
        tmp_path / "n.jsonl", *asked(0.0), *call_lines(0.1, 0, long), {"line": "note", "text": long}, end,
        head={"model": long},
    )  # fmt: skip
    assert len(picture_json(drawn(path))) < 20_000
    assert len(picture_json(Shelf(path).rows())) < 5_000


def test_twenty_thousand_calls_with_one_id_are_drawn_quickly(tmp_path: Path) -> None:
    opened = [
        {"line": "delta", "at": 0.3, "turn": 0, "delta": "call_opened", "index": index, "name": "w", "id": "same"}
        for index in range(20_000)
    ]
    path = recorded(tmp_path / "s.jsonl", *asked(0.0), *opened)
    began = time.process_time()
    assert drawn(path).totals.calls == 20_000
    assert time.process_time() - began < 5.0  # it was ten times that


def test_ten_thousand_requests_are_drawn_quickly(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    for turn in range(10_000):
        sent, request = asked(float(turn), turn)
        lines += [sent | {"seq": turn}, request | {"keep": turn}]
    path = recorded(tmp_path / "t.jsonl", *lines)
    began = time.process_time()
    picture = drawn(path)
    assert (picture.requests[-1].keep, len(picture.requests[-1].new)) == (9_999, 1)
    assert time.process_time() - began < 5.0


def test_a_file_whose_name_is_not_valid_text_can_be_opened(long_run: Path, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.jsonl")).write_bytes(long_run.read_bytes())
    [row] = Shelf(tmp_path).rows()
    assert row.name == "caf\\xe9.jsonl"
    assert Shelf(tmp_path).draw(row.name).totals.calls == 8


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.jsonl")
    with pytest.raises(UserError, match="is not a file but a pipe"):
        Shelf(tmp_path / "f.jsonl")


def test_counting_failures_continues_when_the_list_is_requested_again(long_run: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(long_run.read_bytes())
    shelf, size = Shelf(tmp_path), long_run.stat().st_size
    assert [row.failed for row in shelf.rows(size)] == [1, None]
    assert [row.failed for row in shelf.rows(size)] == [1, 1]


def test_folders_with_recordings_are_found_below(long_run: Path, tmp_path: Path) -> None:
    below = tmp_path / "recordings" / "test_file"
    below.mkdir(parents=True)
    (below / "test_name.jsonl").write_bytes(long_run.read_bytes())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.jsonl").write_text("{}\n")
    assert recordings_below(tmp_path) == [below]


def line_3(kind: str, at: float, **fields: Any) -> dict[str, Any]:
    """An event as it is recorded today."""
    return {"line": "event", "event": kind, "time": 100.0 + at, **fields}


def recorded_today(path: Path, *lines: dict[str, Any]) -> Picture:
    head: dict[str, Any] = {"line": "run", "schema": 3, "run": "r", "time": 100.0, "model": "m:1", "messages": []}
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in (head, *lines)))
    return drawn(path)


def resumed_at(at: float) -> list[dict[str, Any]]:
    return [{"line": "resumed", "schema": 3, "time": 100.0 + at}, line_3("run_started", at, model="m:1", turn=0)]


def written_call(at: float, number: int) -> list[dict[str, Any]]:
    call = {"id": "c", "name": "slow", "arguments": {"n": 1}}
    delta = {"line": "delta", "at": at, "turn": 0, "delta": "call_ready", "call": call}
    return [delta, line_3("call_written", 0.0, call=number)]


WHOLE: dict[str, Any] = {"line": "delta", "at": 0.0, "turn": 0, "delta": "ended", "verdict": {"kind": "whole"}}


def test_a_call_that_died_and_did_not_run_again_died_once(tmp_path: Path) -> None:
    """The second process died before it had started the call again."""
    sent, end = line_3("request_sent", 0.0, messages=1, tools=1), {**WHOLE, "at": 0.1}
    picture = recorded_today(
        tmp_path / "d.jsonl",
        *[sent, *written_call(0.0, 0), end, line_3("call_started", 0.2, call=0)],
        {"line": "note", "at": 1.0, "text": "alive"},
        *resumed_at(10.0),
        *[sent, *written_call(0.0, 1), line_3("call_adopted", 10.0, call=1, adopted=0), WHOLE],
        {"line": "note", "at": 3.0, "text": "alive"},
        *resumed_at(20.0),
        *[sent, *written_call(0.0, 2), line_3("call_adopted", 20.0, call=2, adopted=1), WHOLE],
        line_3("call_started", 20.0, call=2),
        line_3("call_finished", 22.0, call=2, seconds=2.0, text="ok"),
    )
    (call,) = picture.turns[0].calls
    assert (call.died, call.started, call.ended, call.state) == ([(0.2, 1.0)], 4.0, 6.0, "done")
    assert len(picture.turns[0].attempts) == 1  # its answer was complete, and was replayed twice


def test_a_call_that_was_cancelled_and_ran_again_has_its_later_result(tmp_path: Path) -> None:
    """A call in the background keeps its number when the run is resumed."""
    picture = recorded_today(
        tmp_path / "c.jsonl",
        *[line_3("request_sent", 0.0, messages=1, tools=1), *written_call(0.0, 0), WHOLE],
        line_3("call_started", 0.0, call=0),
        line_3("call_backgrounded", 0.1, call=0, handle="$call_1"),
        line_3("call_finished", 1.0, call=0, seconds=1.0, error=True, outcome="cancelled", text="Error: cancelled"),
        line_3("run_failed", 1.0, error="CancelledError", message=""),
        *resumed_at(10.0),
        line_3("call_started", 10.0, call=0, call_id="c", name="slow", arguments={"n": 1}),
        line_3("call_finished", 12.0, call=0, seconds=2.0, text="ok"),
    )
    (call,) = picture.turns[0].calls
    assert (call.state, call.error, call.started, call.ended, call.seconds) == ("done", False, 1.0, 3.0, 2.0)
    assert picture.totals.failed == 0


def test_an_approval_before_the_events_of_its_call_is_not_a_second_call(tmp_path: Path) -> None:
    """A run that waited is recorded from where it was resumed."""
    about = {"call_id": "c", "name": "slow"}
    picture = recorded_today(
        tmp_path / "a.jsonl",
        {"line": "approval", "at": 0.0, "turn": 0, "decision": "allow", **about},
        line_3("call_started", 0.5, call=3, arguments={}, **about),
        line_3("call_finished", 1.0, call=3, seconds=0.5, text="ok"),
    )
    assert [(call.id, call.decision, call.state) for turn in picture.turns for call in turn.calls] == [
        ("c", "allow", "done")
    ]


def test_pieces_that_arrived_together_are_one_event(tmp_path: Path) -> None:
    sent = line_3("request_sent", 0.0, messages=1, tools=0, seq=1)
    pieces = {"line": "pieces", "turn": 0, "delta": "text", "pieces": [[0.1, "a", "b"], [0.2, "c"]]}
    picture = recorded_today(tmp_path / "p.jsonl", sent, pieces, line_3("text_finished", 0.3, seq=4, final=True))
    assert [(entry.kind, entry.fields.get("seq"), entry.fields["text"]) for entry in picture.entries[1:]] == [
        ("text_added", 2, "a"),
        ("text", None, "b"),
        ("text_added", 3, "c"),
        ("text_finished", 4, "abc"),
    ]


def inside(at: float, kind: str, **fields: Any) -> dict[str, Any]:
    """An event of an agent that runs as a tool."""
    event = {"event": kind, "run": "i", "turn": 0, "seq": 0, "time": 7.0, "call_id": "i", "name": "look", **fields}
    return line_3("inner_event", at, call=0, agent="main/clerk", inner=event)


def test_a_call_inside_of_an_agent_that_is_adopted_is_drawn_once(tmp_path: Path) -> None:
    look: dict[str, Any] = {"city": "Rome"}
    picture = recorded_today(
        tmp_path / "i.jsonl",
        *[line_3("request_sent", 0.0, messages=1, tools=1), *written_call(0.0, 0), WHOLE],
        line_3("call_started", 0.0, call=0),
        inside(0.1, "call_written", call=0, arguments=look),
        inside(0.2, "call_started", call=0, arguments=look),
        inside(0.3, "call_written", call=1, arguments=look),
        inside(0.3, "call_adopted", call=1, adopted=0),
        inside(0.5, "call_finished", call=1, seconds=0.3, error=False, text="ok", outcome="done"),
    )
    (call,) = picture.turns[0].calls
    assert [(lane.agent, lane.name, lane.started, lane.ended) for lane in call.inner] == [
        ("main/clerk", "look", 0.2, 0.5)
    ]


def test_an_event_of_a_later_version_inside_of_an_agent_is_not_drawn(tmp_path: Path) -> None:
    picture = recorded_today(
        tmp_path / "i.jsonl",
        *[line_3("request_sent", 0.0, messages=1, tools=1), *written_call(0.0, 0), WHOLE],
        line_3("call_started", 0.0, call=0),
        inside(0.1, "call_written", call=0, arguments={}),
        inside(0.2, "call_started", call=0, arguments={}),
        inside(0.3, "sneezed", call=0),
    )
    (call,) = picture.turns[0].calls
    assert ([lane.name for lane in call.inner], [step[2] for step in call.steps]) == (["look"], ["look {}"])
    assert not any("cannot be read" in banner for banner in picture.banners)
