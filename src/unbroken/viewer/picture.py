"""One run as a picture: plain data, from which the page and the terminal draw the same. Pure: a `Recording` in.

It says what is there in seconds from the start of the run, with long texts cut (`clips`). It does not say how anything
looks. `folding` finds the turns and calls in it, `asked` the messages.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import orjson

from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken.viewer.asked import AskedRequest, prompt_of, requests_of
from unbroken.viewer.clips import Clip, Clipper
from unbroken.viewer.entries import Entry, entries_of
from unbroken.viewer.fields import count, flag, inner, number, text
from unbroken.viewer.folding import Lanes
from unbroken.viewer.lanes import CallLane, Mark, Turn

RECORDED = "recorded"
"""The agent's name, and the state, of what the fixture `recorded` keeps."""


@dataclass(frozen=True, slots=True)
class Totals:
    rounds: int
    requests: int
    attempts: int
    """Requests that were sent, with those that failed."""
    calls: int
    failed: int
    early: int
    duplicates: int
    adopted: int
    refused: int
    """Answered without their tool."""
    restarts: int
    input_tokens: int
    output_tokens: int
    estimated: bool
    """Somebody had to guess the tokens."""
    tool_seconds: float
    """Of all tools, one after the other."""
    waited: float
    """Seconds that calls were whole and did not run yet."""


@dataclass(frozen=True, slots=True)
class Picture:
    file: str
    run: str
    agent: str
    model: str
    time: float
    """When it began, in seconds since the epoch."""
    schedule: str
    virtual: bool
    """Its clock was a virtual one."""
    prompt: str
    state: str
    """Its stop reason; `failed`; `unfinished` if it has no end; `recorded` if it is no run, but what a model said."""
    answer: Clip
    """What it came to: the text, or the error."""
    seconds: float
    """Without the time in which nobody was there, before it was resumed."""
    banners: tuple[str, ...]
    """What somebody should know who looks at it, in words."""
    totals: Totals
    turns: tuple[Turn, ...]
    marks: tuple[Mark, ...]
    requests: tuple[AskedRequest, ...]
    entries: tuple[Entry, ...]


def draw(recording: Recording, clips: Clipper | None = None) -> Picture:
    clips = clips or Clipper()
    tape = is_tape(recording)
    lanes = Lanes(clips, _began(recording), tape)
    lanes.read(recording.lines)
    end = lanes.end or {}
    return Picture(
        recording.path.name,
        text(recording.head, "run"),
        text(recording.head, "agent_name"),
        text(recording.head, "model"),
        _began(recording),
        text(inner(recording.head, "settings"), "schedule"),
        bool(recording.head.get("virtual")),
        prompt_of(recording),
        RECORDED if tape else _state(lanes.end),
        clips.text(_answer(end)),
        _seconds(lanes),
        tuple(_banners(recording, lanes, tape)),
        _totals(lanes, end),
        tuple(lanes.turns),
        tuple(lanes.marks),
        requests_of(recording, clips, lanes.times),
        entries_of(recording, lanes.times),
    )


def picture_json(picture: object) -> bytes:
    """A picture, or whatever else is made of these dataclasses."""
    try:
        return orjson.dumps(picture)
    except (TypeError, ValueError):  # half a surrogate pair, an integer beyond 64 bits
        return json.dumps(picture, default=asdict).encode()


def _began(recording: Recording) -> float:
    began = number(recording.head, "time")
    if began is None:
        began = next((time for line in recording.lines if (time := number(line, "time")) is not None), 0.0)
    return began


def _state(end: Line | None) -> str:
    if end is None:
        return "unfinished"
    return "failed" if text(end, "event") == "run_failed" else text(end, "stop_reason") or "answered"


def _answer(end: Line) -> str:
    if text(end, "event") == "run_failed":
        return f"{text(end, 'error')}: {text(end, 'message')}"
    return text(end, "text")


def _seconds(lanes: Lanes) -> float:
    return max([lanes.now, *(call.ended or 0.0 for call in lanes.calls())])


def is_tape(recording: Recording) -> bool:
    """Only what a model was asked and said, in a test: the run around it is not recorded."""
    return text(recording.head, "agent_name") == RECORDED and next(recording.of("event"), None) is None


def _banners(recording: Recording, lanes: Lanes, tape: bool) -> list[str]:
    said: list[str] = []
    if tape:
        said.append(
            "This is what a model said in a test (the fixture `recorded`). The tools ran there, and are not in it."
        )
    elif lanes.end is None:
        said.append("This run has no end: its process died, or it still goes on. What there is of it is shown.")
    elif text(lanes.end, "event") == "run_failed":
        said.append(f"The run failed. {_answer(lanes.end)[:1000]}")
    said += [f"Of the recording, {problem}." for problem in recording.problems[:20]]
    if len(recording.problems) > 20:
        said.append(f"{len(recording.problems) - 20} more lines of the recording cannot be read.")
    said += [f"The recorder noted: {mark.text}" for mark in lanes.marks if mark.kind == "note"]
    if not recording.lines:
        said.append("The recording holds nothing but its first line.")
    return said


def _totals(lanes: Lanes, end: Line) -> Totals:
    calls = [call for call in lanes.calls() if call.state not in ("dropped", "withdrawn")]
    usage = inner(end, "usage")
    turns = lanes.turns
    attempts = sum(len(turn.attempts) for turn in turns)
    return Totals(
        rounds=sum(turn.round > 0 for turn in turns),
        requests=len(turns),
        attempts=attempts,
        calls=len(calls),
        failed=sum(call.error for call in calls),
        early=sum(call.early for call in calls),
        duplicates=sum(call.state == "shared" for call in calls),
        adopted=sum(bool(call.adopted_from) for call in calls),
        refused=sum(call.state in ("refused", "spoiled") for call in calls),
        restarts=sum(bool(attempt.kind) for turn in turns for attempt in turn.attempts),
        input_tokens=count(usage, "input_tokens") or sum(turn.input_tokens for turn in turns),
        output_tokens=count(usage, "output_tokens") or sum(turn.output_tokens for turn in turns),
        estimated=flag(usage, "estimated"),
        tool_seconds=round(sum(call.seconds or 0.0 for call in calls), 6),
        waited=round(sum(map(waited, calls)), 6),
    )


def waited(call: CallLane) -> float:
    """Seconds between the last byte of a call and its start."""
    if call.written is None or call.state in ("shared", "spoiled"):
        return 0.0
    until = call.started if call.started is not None else call.ended
    return max(until - call.written, 0.0) if until is not None else 0.0
