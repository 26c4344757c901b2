"""One run as a picture: plain data, from which the page and the terminal draw the same. Pure: a `Recording` in.

It holds what happened, in seconds from the start of the run, with long texts cut, and of each request the messages that
are new. It does not define how anything looks. `drawn_run` finds the turns and calls.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import orjson

from unbroken.run_view import RunView
from unbroken.trajectory.counting import NO_RESPONSE
from unbroken.trajectory.line_checks import number
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording, fields_of_request, first_prompt, has_own_prices
from unbroken_viewer.drawn_run import DrawnRun
from unbroken_viewer.gateway_turn import AGENT, GatewayTurn, gateway_turn
from unbroken_viewer.picture_data import (
    LONGEST_FIELD,
    CallLane,
    Clip,
    Clipper,
    Entry,
    Mark,
    Turn,
    entries_of,
    flag,
    inner,
    objects,
    part_text,
    text,
    words,
)


@dataclass(frozen=True, slots=True)
class Part:
    """Text, reasoning, a call, a result, or the description of a file."""

    kind: str
    body: Clip
    name: str = ""
    id: str = ""
    error: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """The first `keep` messages are those of the request before; then come `new`."""

    turn: int
    at: float
    keep: int
    new: tuple[Said, ...]
    tools: tuple[str, ...]
    settings: Clip
    """The rest: choice, sampling and so on, without default values. JSON."""


def requests_of(recording: Recording, clips: Clipper, times: Sequence[float]) -> tuple[AskedRequest, ...]:
    """`Recording.requests` has each of them complete; here each message is processed once. `times` are those of all
    lines."""
    found: list[AskedRequest] = []
    sent = (at for at, line in zip(times, recording.lines, strict=True) if line["line"] == "request")
    for at, (line, messages, keep, tools) in zip(sent, recording.asked(), strict=True):
        new = tuple(_said(message, clips) for message in messages[keep:])
        names = tuple(words(tool, "name") for tool in tools)
        found.append(AskedRequest(line["turn"], at, keep, new, names, clips.json(fields_of_request(line))))
    return tuple(found)


def prompt_of(recording: Recording) -> str:
    """The prompt as short text. Answers of a model from a test have it in their first request."""
    request = next(recording.of("request"), None)
    return first_prompt(recording.head) or ("" if request is None else first_prompt(request))


def _said(message: Line, clips: Clipper) -> Said:
    parts: list[Part] = []
    if reasoning := text(message, "reasoning"):
        parts.append(Part("reasoning", clips.text(reasoning)))
    if said := text(message, "content"):
        parts.append(Part("text", clips.text(said)))
    parts += [_part(part, clips) for part in objects(message, "content")]
    for call in objects(message, "calls"):
        arguments = call.get("arguments")
        body = clips.text(text(call, "raw")) if arguments is None else clips.json(arguments)
        parts.append(Part("call", body, words(call, "name"), words(call, "id"), bool(words(call, "problem"))))
    for result in objects(message, "results"):
        given = "".join(part_text(part) for part in objects(result, "content"))
        error = flag(inner(result, "metadata"), "error")
        parts.append(Part("result", clips.text(given), words(result, "name"), words(result, "call_id"), error))
    return Said(words(message, "role"), tuple(parts))


def _part(part: Line, clips: Clipper) -> Part:
    return Part("text" if part.get("type") == "text" else "media", clips.text(part_text(part)))


_TOLD = 3
"""The most banners of one kind, so that they do not hide the picture."""
RECORDED = "recorded"
"""The agent's name, and the state, of what the fixture `recorded` keeps."""


@dataclass(frozen=True, slots=True)
class Totals:
    rounds: int
    requests: int
    attempts: int
    """Requests that were sent, including those that failed."""
    calls: int
    failed: int
    early: int
    duplicates: int
    adopted: int
    refused: int
    """Answered without their tool."""
    uncertain: int
    """Their process died while they ran, and nobody knows whether they took effect."""
    retries: int
    """Requests that were retried, for whatever reason."""
    restarts: int
    """The same, because the answer broke off."""
    input_tokens: int
    output_tokens: int
    estimated: bool
    """The tokens are estimated."""
    cost: float | None
    """What the run cost, or None if that is not known."""
    tool_seconds: float
    """Seconds of all tools, added up."""
    waited: float
    """Seconds that complete calls waited before they ran."""


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
    """Its stop reason; `failed`; `unfinished` if it has no end; `recorded` if it is not a run, but the answers of a
    model."""
    answer: Clip
    """The answer, or the error."""
    seconds: float
    """Without the time before it was resumed."""
    banners: tuple[str, ...]
    """Notes for the viewer."""
    totals: Totals
    turns: tuple[Turn, ...]
    marks: tuple[Mark, ...]
    requests: tuple[AskedRequest, ...]
    entries: tuple[Entry, ...]
    gateway: GatewayTurn | None = None
    """Set if it is a request of a gateway's client."""
    currency: str = "$"
    """Of all costs; empty if the run had prices of its own, which may be of any."""


def draw(recording: Recording, clips: Clipper | None = None, resume: str = "") -> Picture:
    """What the page shows of a recording: its requests and calls over time, its entries, its numbers. `resume`: how a
    run continues whose process has died."""
    clips = clips or Clipper()
    model_only = is_model_only(recording)
    run = DrawnRun(clips, recording.time, model_only, _lead(recording))
    run.read(recording.lines)
    entries, missing = entries_of(recording, run.times)
    gateway = gateway_turn(recording, run.turns)
    requests = requests_of(recording, clips, run.times)
    return Picture(
        shown_name(recording.path),
        words(recording.head, "run"),
        words(recording.head, "agent_name"),
        words(recording.head, "model"),
        recording.time,
        words(recording.settings, "schedule"),
        bool(recording.head.get("virtual")),
        prompt_of(recording),
        RECORDED if model_only else _state(run.view),
        clips.text(_answer(run.view)),
        _seconds(run),
        tuple(_banners(recording, run, model_only, missing, resume)),
        _totals(run, requests),
        tuple(run.turns),
        tuple(run.marks),
        requests,
        entries,
        gateway,
        "" if has_own_prices(recording.head) else "$",
    )


def picture_json(picture: object) -> bytes:
    """A picture, or whatever else is made of these dataclasses."""
    try:
        return orjson.dumps(picture)
    except (TypeError, ValueError):  # half a surrogate pair, an integer beyond 64 bits
        return json.dumps(picture, default=asdict).encode()


def shown_name(path: Path) -> str:
    """The name of a file as text: it may not be valid UTF-8."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


def _lead(recording: Recording) -> float:
    """Seconds before its recording began that the time of a gateway's request includes: its client waited already."""
    if recording.agent_name != AGENT or not recording.lines:
        return 0.0
    end = recording.lines[-1]
    return max(number(end.get("seconds")) - max(number(end.get("time")) - recording.time, 0.0), 0.0)


def _state(view: RunView) -> str:
    if view.ended is None:
        return "unfinished"
    return "failed" if view.failed is not None else view.stop_reason[:LONGEST_FIELD] or "answered"


def _answer(view: RunView) -> str:
    if view.failed is not None:
        return f"{view.failed.error}: {view.failed.message}"
    return view.finished.text if view.finished is not None else ""


def _seconds(run: DrawnRun) -> float:
    return max([run.now, *(call.ended or 0.0 for call in run.calls)])


def is_model_only(recording: Recording) -> bool:
    """Does it hold only requests and answers of a model, from a test, and not a run?"""
    return recording.agent_name == RECORDED and next(recording.of("event"), None) is None


def _banners(recording: Recording, run: DrawnRun, model_only: bool, missing: int, resume: str) -> list[str]:
    said: list[str] = []
    if model_only:
        said.append(
            "This is what a model said in a test (the fixture `recorded`). The tools ran there, and are not in it."
        )
    elif run.view.ended is None:
        said.append(_without_end(recording, run, resume))
    elif run.view.failed is not None:
        said.append(f"The run failed. {_answer(run.view)[:1000]}")
    said += [f"Of the recording, {problem}." for problem in recording.problems[:_TOLD]]
    if len(recording.problems) > _TOLD:
        said.append(f"{len(recording.problems) - _TOLD:,} more lines of the recording cannot be read.")
    if missing:
        said.append(f"By their numbers {missing:,} events are missing: what is shown may be wrong where they were.")
    notes = [mark.text for mark in run.marks if mark.kind == "note"]
    said += [f"The recorder noted: {note}" for note in notes[:_TOLD]]
    if len(notes) > _TOLD:
        said.append(f"The recorder noted {len(notes) - _TOLD:,} more things: they are among the events.")
    if not recording.lines:
        said.append("The recording holds nothing but its first line.")
    return said


def _without_end(recording: Recording, run: DrawnRun, resume: str) -> str:
    """What is known of a run that has no end, and how to continue it."""
    when = moment(recording.time + run.last)
    last = f" Its last line is from {when}, {_seconds(run):.2f} s after the start." if when and run.times else ""
    if recording.agent_name == AGENT:
        return f"This request has no end.{last} The gateway died, or is still answering it."
    command = resume or f"`unbroken resume {shown_name(recording.path)} --tools tools.py`"
    return (
        f"This run has no end.{last} If it is still active, `unbroken top` lists it as running. "
        f"If its process died, {command} continues it."
    )


def moment(time: float) -> str:
    """A time of day on this machine: `2026-01-31 12:00:00 CET`."""
    try:
        return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S %Z}" if time else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _totals(run: DrawnRun, requests: Sequence[AskedRequest]) -> Totals:
    ran = [call for call in run.calls if call.state != "withdrawn"]
    calls = [call for call in ran if call.state != "dropped"]
    view, usage, turns = run.view, run.view.usage, run.turns
    attempts = [attempt.kind for turn in turns for attempt in turn.attempts]
    return Totals(
        rounds=sum(turn.round > 0 for turn in turns),
        requests=len({asked.turn for asked in requests}),  # a resumed run may repeat one
        attempts=len(attempts),
        calls=len(calls),
        failed=sum(call.error for call in calls),
        early=sum(call.early for call in ran),
        duplicates=sum(call.state == "shared" for call in calls),
        adopted=sum(bool(call.adopted_from) for call in calls),
        refused=sum(call.state in ("refused", "spoiled") for call in calls),
        uncertain=sum(call.state == "uncertain" for call in calls),
        retries=sum(map(bool, attempts)),
        restarts=sum(bool(kind) and kind not in NO_RESPONSE for kind in attempts),
        input_tokens=usage.input_tokens or sum(turn.input_tokens for turn in turns),
        output_tokens=usage.output_tokens or sum(turn.output_tokens for turn in turns),
        estimated=usage.estimated,
        cost=_cost_so_far(turns) if view.ended is None else view.cost,
        tool_seconds=round(sum(call.seconds or 0.0 for call in ran), 6),
        waited=round(sum(map(waited, calls)), 6),
    )


def _cost_so_far(turns: Sequence[Turn]) -> float | None:
    """Of a run that has no end: what its complete answers cost, or None if one of them has no known cost."""
    costs = [turn.cost if turn.round_cost is None else turn.round_cost for turn in turns if turn.ended is not None]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def waited(call: CallLane) -> float:
    """Seconds between the last byte of a call and its start."""
    if call.written is None or call.state in ("shared", "spoiled"):
        return 0.0
    until = call.started if call.started is not None else call.ended
    return max(until - call.written, 0.0) if until is not None else 0.0
