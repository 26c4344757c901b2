"""Reads recordings: one completely, or a summary of many.

As much of a recording is read as possible: a line that is cut, broken or does not follow the schema is left out, and
`problems` reports it. Only a file that is not a recording, or has an unknown schema, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, cast

from unbroken.errors import UserError
from unbroken.events import Event, ReasoningAdded, RunFailed, RunFinished, TextAdded
from unbroken.trajectory.known import Known
from unbroken.trajectory.line_checks import count, is_number, number
from unbroken.trajectory.line_reader import (
    BEGINNING,
    EventReader,
    LineReader,
    complete,
    read_event,
    read_head,
    read_json,
)
from unbroken.trajectory.lines import Line
from unbroken_wires.validation import checked
from unbroken_wires.wires.json_access import as_dict, as_list, as_text, dicts

SUFFIX = ".jsonl"
_TAIL = 64 * 1024
"""Bytes that are first read from the end of a file to see how the run ended."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One complete request to the model."""

    turn: int
    at: float
    messages: tuple[Line, ...]
    """In the saved form of a history (`transcript.from_json` reads it); the system's message is the first."""
    tools: tuple[Line, ...]
    fields: Line
    """The rest: choice, sampling and so on, without default values."""
    masked: bool = False
    """A secret was masked in the recording: *** stands for anything."""


@dataclass
class Recording:
    """One run as it was recorded. `lines` are all lines that could be read, in order, without the first (`head`)."""

    path: Path
    head: Line
    lines: list[Line]
    problems: list[str] = field(default_factory=list[str])
    """What could not be read."""
    size: int = 0
    """Bytes that the file had when it was read. It only ever grows."""
    damaged: int = 0
    """The number of the first line that cannot be read, 0 if there is none. A line that was cut when a process died
    does not count."""

    @property
    def run(self) -> str:
        """The id of the run, as in its events."""
        return str(self.head.get("run", ""))

    @property
    def agent_name(self) -> str:
        """Whose run it was: `main`, if the agent was given no name."""
        return str(self.head.get("agent_name", "main"))

    @property
    def model(self) -> str:
        """The model: `openai:gpt-5`."""
        return str(self.head.get("model", ""))

    @property
    def time(self) -> float:
        """When it began, in seconds since the epoch."""
        return number(self.head.get("time"))

    @property
    def settings(self) -> Line:
        """How it ran: the schedule, the limits, what happens after a failure."""
        return as_dict(self.head.get("settings"))

    @property
    def virtual(self) -> Line | None:
        """`start` and `elapsed` of the clock at the beginning, if that was a virtual one."""
        clock = as_dict(self.head.get("virtual"))
        return {name: max(number(clock.get(name)), 0.0) for name in ("start", "elapsed")} if clock else None

    @cached_property
    def masked(self) -> bool:
        """Were secrets replaced by ***?"""
        return any(line.get("masked") for line in (self.head, *self.lines))

    def time_at(self, at: float) -> float:
        """The time of day, `at` seconds after the beginning: exactly what a virtual clock returned."""
        clock = self.virtual
        return self.time + at if clock is None else clock["start"] + round(clock["elapsed"] + at, 9)

    @cached_property
    def answer_tool(self) -> str:
        """The tool that takes a typed answer; empty if no agent of the run had one."""
        changed = (line.get("settings") for line in self.of("event") if line["event"] == "agent_changed")
        outputs = (as_dict(as_dict(each).get("output")) for each in (self.settings, *changed))
        return next((str(output["tool"]) for output in outputs if output.get("tool")), "")

    @cached_property
    def requests(self) -> list[RecordedRequest]:
        """Every request, complete."""
        found: list[RecordedRequest] = []
        for line, said, _, tools in self.asked():
            rest = fields_of_request(line)
            found.append(RecordedRequest(line["turn"], line["at"], tuple(said), tuple(tools), rest, self.masked))
        return found

    def asked(self) -> Iterator[tuple[Line, list[Line], int, list[Line]]]:
        """The line of every request with all of its messages, how many of the first ones are those of the request
        before, and the tools. The list of messages is always the same one: it grows from request to request."""
        said, systems, keep = dicts(self.head.get("messages")), 0, 0
        offered: list[Line] = []
        resumed, first = False, True
        for line in self.lines:
            if line["line"] == "resumed":
                resumed = True
            elif line["line"] == "tools":
                offered = [{name: tool.get(name) for name in _OF_SPECS} for tool in line["tools"]]
            elif line["line"] == "request":
                keep, new = min(line["keep"] + systems, len(said)), line["messages"]
                if resumed:  # the complete history is written again
                    keep = systems + _alike(said[systems:], new)
                    new = new[keep - systems :]
                said[keep:] = new
                system = dicts([line["system"]]) if "system" in line else said[:systems]
                if system != said[:systems]:
                    said[:systems], systems, keep = system, len(system), 0
                yield line, said, 0 if first else keep, line.get("tools", offered)
                resumed = first = False

    @cached_property
    def events(self) -> list[Event]:
        """Every event that could be read, as it was emitted."""
        reader = EventReader(self.head, self.time_at)
        found: list[Event] = []
        for line in self.lines:
            event = reader.feed(line)
            if event is not None:
                while found and found[-1].seq >= event.seq and isinstance(found[-1], TextAdded | ReasoningAdded):
                    found.pop()  # a piece that was not emitted
                found.append(event)
        return found

    @cached_property
    def ending(self) -> RunFinished | RunFailed | None:
        """How it ended; None if it did not: its process died, or it is still active."""
        last: RunFinished | RunFailed | None = None
        for line in self.lines:
            if line["line"] == "resumed":
                last = None
            elif line["line"] == "event" and line["event"] in ("run_finished", "run_failed"):
                last = cast("RunFinished | RunFailed | None", read_event(line))
        if isinstance(last, RunFinished):
            return next(event for event in reversed(self.events) if isinstance(event, RunFinished))
        return last

    def of(self, kind: str) -> Iterator[Line]:
        """The lines of one kind (`request`, `delta`, `result`, `event` and so on), in their order."""
        return (line for line in self.lines if line["line"] == kind)


def _alike(before: list[Line], now: list[Line]) -> int:
    """How many of the first messages are the same."""
    pairs = enumerate(zip(before, now, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(now)))


def fields_of_request(line: Line) -> Line:
    """Everything but its messages and tools: choice, sampling and so on, without default values."""
    return {name: value for name, value in line.items() if name not in _OF_REQUESTS}


_OF_REQUESTS = frozenset({"line", "at", "turn", "keep", "messages", "system", "tools", "state", "masked"})
_OF_SPECS = ("name", "description", "parameters", "strict")


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a recording. Raises `UserError` if the file is not one."""
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError(f"{path!r} is not a recording: give the name of its file")
    file = Path(path).expanduser()
    with _open(file) as data:
        return parse_recording(data, file)


def parse_recording(data: Iterable[bytes], path: Path) -> Recording:
    """A recording from its raw lines. `path` is where they are, for errors."""
    reader = LineReader(str(path))
    lines = [line for raw in data for line in reader.feed(raw)]
    if reader.head is None:
        raise _empty(path)
    return Recording(path, reader.head, lines, reader.problems, reader.size, reader.damaged)


def lines_until_round(data: Iterable[bytes], rounds: int) -> list[bytes]:
    """The raw lines of a recording up to the end of a round, counted from 1: a run that can be replayed up to there, or
    resumed from there. Raises `UserError` if there are fewer rounds."""
    kept: list[bytes] = []
    ended: set[object] = set()
    reader = LineReader("the recording")
    for raw in data:
        kept.append(raw)
        for line in reader.feed(raw):
            if line["line"] == "event" and line["event"] == "round_finished":
                ended.add(line["turn"])  # a resumed run may repeat one
                if len(ended) >= rounds:
                    return kept
    raise UserError(f"there is no round {rounds} that ended: the recording has {len(ended)}")


def _empty(path: Path) -> UserError:
    return UserError(f"{path} is empty: it is not a recording")


def _line(raw: bytes) -> Line | None:
    """A line that needs none of those before it; None if it is not valid."""
    line = read_json(raw)
    return None if line is None else complete(Known({}), line)


def run_of(path: Path) -> str | None:
    """The id of the run that a file records; None if it is not a recording."""
    try:
        with _open(path) as file:
            return str(read_head(path, file.readline()).get("run", ""))
    except (UserError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Summary:
    """A short summary of a recording, for a list of many. `problem` is set if it is not a recording or cannot be
    read."""

    path: Path
    size: int = 0
    run: str = ""
    agent_name: str = ""
    model: str = ""
    time: float = 0.0
    prompt: str = ""
    stop_reason: str = ""
    """Empty if the run did not end, `failed` if it ended with an error. If it did not end, the numbers are those of its
    last request, plus the calls since then."""
    text: str = ""
    """The answer, or the error."""
    rounds: int = 0
    requests: int = 0
    calls: int = 0
    seconds: float = 0.0
    tokens: int = 0
    problem: str = ""
    cost: float | None = None
    """None if it is not known."""
    own_prices: bool = False
    """The cost is by `Limits(prices=…)`, which may be of any currency."""


@checked
def list_recordings(folder: str | os.PathLike[str]) -> list[Summary]:
    """Summaries of all recordings in a folder, the latest first. A file that is not a recording is listed with the
    reason. Only the beginning and the end of each file are read."""
    return sorted(map(summarize, recording_files(folder)), key=lambda each: (-each.time, each.path.name))


def recording_files(folder: str | os.PathLike[str], latest: int = 0) -> list[Path]:
    """The files that may be recordings. `latest`: only so many, the last ones by their names."""
    try:
        files = [entry for entry in os.scandir(folder) if entry.name.endswith(SUFFIX) and _is_file(entry)]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} cannot be listed: {why}; name a folder of recordings") from None
    if latest:
        files = nlargest(latest, files, key=lambda entry: entry.name)
    return [Path(entry.path) for entry in files]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads back to itself
        return False


def summarize(path: Path) -> Summary:
    try:
        with _open(path) as file:
            first = file.readline()
            if not first:
                raise _empty(path)
            head = read_head(path, first)
            size = file.seek(0, os.SEEK_END)
            end = _ending(file, size)
    except UserError as error:
        return Summary(path, problem=str(error))
    except OSError as error:
        return Summary(path, problem=f"{path} cannot be read: {error.strerror or error}")
    return _summary(path, size, head, end)


def summarize_ends(name: Path, beginning: bytes, end: bytes, size: int) -> Summary:
    """The summary of a recording that is no file, from its first line and its last lines."""
    try:
        head = read_head(name, beginning.partition(b"\n")[0])
    except UserError as error:
        return Summary(name, problem=str(error))
    return _summary(name, size, head, _ending(BytesIO(end), len(end)))


def _summary(path: Path, size: int, head: Line, end: Line) -> Summary:
    usage = as_dict(end.get("usage"))
    failed = end.get("event") == "run_failed"
    by_gateway = head.get("agent_name") == "gateway"  # it counts calls that its client has not answered yet
    began, ended = number(head.get("time")), number(end.get("time"))
    return Summary(
        path,
        size,
        str(head.get("run", "")),
        str(head.get("agent_name", "main")),
        str(head.get("model", "")),
        began,
        first_prompt(head),
        "failed" if failed else str(end.get("stop_reason", "")),
        f"{end.get('error')}: {end.get('message')}" if failed else str(end.get("text", "")),
        count(end.get("rounds")),
        count(end.get("requests")),
        max(count(end.get("calls")), _pending(end)) if by_gateway else count(end.get("calls")) + _pending(end),
        number(end.get("seconds")) or max(ended - began, 0.0),
        count(usage.get("input_tokens")) + count(usage.get("output_tokens")),
        cost=number(end["cost"]) if is_number(end.get("cost")) else None,
        own_prices=has_own_prices(head),
    )


def has_own_prices(head: Line) -> bool:
    """Whether the run had `Limits(prices=…)`, by the first line of its recording."""
    return bool(as_dict(as_dict(head.get("settings")).get("limits")).get("prices"))


def _ending(file: BinaryIO, size: int) -> Line:
    """The event that ended the run; if it did not end, what is known so far."""
    wanted = _TAIL
    while True:
        start = max(size - wanted, 0)
        file.seek(start)
        lines = file.read(size - start).split(b"\n")[0 if start == 0 else 1 :]
        since = list(takewhile(lambda raw: not raw.startswith(b'{"line":"resumed"'), reversed(lines)))
        for raw in since:
            if raw.startswith(_EVENT + b'run_finished"') and (line := _line(raw)):
                return line
            if raw.startswith(_EVENT + b'run_failed"') and (line := _line(raw)):
                return {**_so_far(since), **line}  # a failure does not name its rounds and calls
        found = _so_far(since)
        if "requests" in found or start == 0:
            return found
        wanted *= 8


def _so_far(lines: list[bytes]) -> Line:
    """How long it ran at least, what it had used by its last request, and the calls and the cost since then. The last
    line comes first."""
    last = next((line for raw in lines if raw.startswith(b"{") and (line := read_json(raw))), None)
    found: Line = {"seconds": as_dict(last).get("at")}
    calls = started = 0
    answered: object = None  # what the last answer cost
    for raw in lines:
        if raw.startswith(b'{"line":"event"'):
            started += raw.startswith(_EVENT + b'call_started"')
            detects = raw.startswith(_EVENT + b'tool_calls_detected"')
            if detects and (line := read_json(raw)):
                calls, answered = count(line.get("count", len(as_list(line.get("calls"))))), line.get("cost")
            if "time" not in found and (line := read_json(raw)):
                found["time"] = line.get("time")
        elif raw.startswith(b'{"line":"request"') and (line := _line(raw)):
            state = as_dict(line.get("state"))
            cost = state.get("cost", 0.0 if state.get("requests") == 1 and answered is not None else None)
            if is_number(cost) and is_number(answered):
                cost = number(cost) + number(answered)
            found |= {
                "requests": state.get("requests"),
                "usage": state.get("usage"),
                "cost": cost,
                "rounds": count(state.get("rounds")) + bool(calls),
                "calls": count(state.get("calls")) + (calls or started),
            }
            break
    return found


_EVENT = b'{"line":"event","event":"'


def first_prompt(line: Line) -> str:
    """The prompt as short text, by the first line of a recording, or by that of a request."""
    asked = [line["question"]] if line.get("question") else line.get("messages")
    for message in reversed(dicts(asked)):
        if message.get("role") == "user":
            return "".join(as_text(part.get("text")) for part in dicts(message.get("content")))[:500]
    return ""


def _open(path: Path) -> BinaryIO:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a file: a recording is read from its beginning and from its end")
        return path.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"there is no recording {path}") from None
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path} is a folder: name a recording in it") from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path} cannot be read: {why}") from None


def _pending(end: Line) -> int:
    """Calls that wait; they are not counted as answered."""
    return len(as_list(end.get("pending")))


def is_recording(path: str | os.PathLike[str]) -> bool:
    """Does the file begin like a recording?"""
    try:
        with open(path, "rb") as file:
            return file.read(len(BEGINNING)) == BEGINNING
    except (OSError, ValueError):
        return False
