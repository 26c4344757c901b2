"""Reads recordings: all of one, or of many just what they came to.

A recording is read as far as it can be: a line that is cut or broken is left out, and `problems` says so. Only what is
no recording at all, or of a schema that this version does not know, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from unbroken.errors import UserError
from unbroken.events import Event, RunFailed, RunFinished, event_from_json
from unbroken.messages import Json
from unbroken.trajectory.lines import SCHEMA, Line
from unbroken.wires.jsontext import loads_faithful

SUFFIX = ".jsonl"
_TAIL = 64 * 1024
"""Bytes that are read of the end of a file, at first, to see what the run came to."""
_LONGEST_HEAD = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What the model was asked, all of it."""

    turn: int
    at: float
    messages: tuple[Line, ...]
    """In the saved form of a history (`transcript.from_json` reads it)."""
    tools: tuple[Line, ...]
    fields: Line
    """The rest: choice, sampling and so on, as far as it is not as usual."""


@dataclass
class Recording:
    """One run as it was recorded. `lines` are all that could be read, in their order, the first left out (`head`)."""

    path: Path
    head: Line
    lines: list[Line]
    problems: list[str] = field(default_factory=list[str])
    """What could not be read, in words."""

    @property
    def run(self) -> str:
        return str(self.head.get("run", ""))

    @property
    def agent_name(self) -> str:
        return str(self.head.get("agent_name", "main"))

    @property
    def model(self) -> str:
        return str(self.head.get("model", ""))

    @property
    def time(self) -> float:
        """When it began, in seconds since the epoch."""
        return _number(self.head.get("time"))

    @property
    def settings(self) -> Line:
        return cast("Line", self.head.get("settings") or {})

    @property
    def virtual(self) -> Line | None:
        """`start` and `elapsed` of the clock at the beginning, if that was a virtual one."""
        return cast("Line | None", self.head.get("virtual"))

    @cached_property
    def requests(self) -> list[RecordedRequest]:
        """Every request, whole."""
        messages: tuple[Line, ...] = ()
        tools: tuple[Line, ...] = ()
        found: list[RecordedRequest] = []
        for line in self.of("request"):
            messages = (*messages[: line.get("keep", 0)], *line.get("messages", ()))
            tools = tuple(line["tools"]) if "tools" in line else tools
            rest = {name: value for name, value in line.items() if name not in _OF_REQUESTS}
            found.append(RecordedRequest(line["turn"], line["at"], messages, tools, rest))
        return found

    @cached_property
    def events(self) -> list[Event]:
        """Every event that could be read, as it was said."""
        found: list[Event] = []
        messages: list[Line] = []
        for line in self.lines:
            if line["line"] == "request":
                messages = [*messages[: line.get("keep", 0)], *line.get("messages", ())]
            elif line["line"] == "event":
                try:
                    event = event_from_json(line)
                except UserError:
                    continue  # of a later version
                if isinstance(event, RunFinished) and "keep" in line:
                    sent = messages[1:] if messages and messages[0].get("role") == "system" else messages
                    event.messages = [*sent[: line["keep"]], *event.messages]
                found.append(event)
        return found

    @cached_property
    def ending(self) -> RunFinished | RunFailed | None:
        """How it ended; None if it did not: its process died, or it still goes on."""
        ends = [event for event in self.events if isinstance(event, RunFinished | RunFailed)]
        return ends[-1] if ends else None

    def of(self, kind: str) -> Iterator[Line]:
        return (line for line in self.lines if line["line"] == kind)


_OF_REQUESTS = frozenset({"line", "at", "turn", "keep", "messages", "tools"})


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """All of it. Raises `UserError` for what is no recording."""
    file = Path(path)
    problems: list[str] = []
    lines: list[Line] = []
    head: Line | None = None
    offset = 0.0
    with _open(file) as data:
        for number, raw in enumerate(data, start=1):
            if head is None:
                head = _head(file, raw)
                continue
            line = _line(raw)
            if line is None:
                if raw.strip():
                    problems.append(_unreadable(number, raw))
                continue
            if line["line"] == "resumed":
                offset = max(_number(line.get("time")) - _number(head.get("time")), 0.0)
                line["at"] = offset
            elif offset and "at" in line:
                line["at"] = round(line["at"] + offset, 9)
            lines.append(line)
    if head is None:
        raise UserError(f"{file} is empty: it is no recording")
    return Recording(file, head, lines, problems)


def _unreadable(number: int, raw: bytes) -> str:
    if not raw.endswith(b"\n"):
        return f"line {number} is cut: its process died while it was written; the lines before it are whole"
    return f"line {number} cannot be read and is left out"


def _head(path: Path, raw: bytes) -> Line:
    line = _line(raw)
    if line is None or line["line"] != "run" or "schema" not in line:
        raise UserError(f'{path} is not a recording: its first line does not begin with {{"line":"run","schema":')
    if not isinstance(line["schema"], int) or line["schema"] > SCHEMA:
        raise UserError(
            f"{path} was recorded by a newer version (schema {line['schema']}, and this one reads {SCHEMA}): "
            f"update unbroken"
        )
    return line


_NUMBERS = {"request": ("at", "turn"), "delta": ("at", "turn")}


def _line(raw: bytes) -> Line | None:
    """None if it is none: cut, or not as the schema has it."""
    try:
        line: Json = loads_faithful(raw)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is no line
        return None
    if not isinstance(line, dict):
        return None
    fields = cast("Line", line)
    kind = fields.get("line")
    if not isinstance(kind, str) or not all(isinstance(fields.get(n), int | float) for n in _NUMBERS.get(kind, ())):
        return None
    return fields


@dataclass(frozen=True, slots=True)
class Summary:
    """What a recording came to, for a list of many. With a `problem` it is none, or cannot be read."""

    path: Path
    size: int = 0
    run: str = ""
    agent_name: str = ""
    model: str = ""
    time: float = 0.0
    prompt: str = ""
    stop_reason: str = ""
    """Empty if the run did not end, `failed` if it did with an error."""
    text: str = ""
    """The answer, or the error."""
    rounds: int = 0
    requests: int = 0
    calls: int = 0
    seconds: float = 0.0
    tokens: int = 0
    problem: str = ""


def list_recordings(folder: str | os.PathLike[str]) -> list[Summary]:
    """Of all recordings in a folder what they came to, the latest first. What is none of them is listed with the
    reason. Only the beginning and the end of each file are read."""
    try:
        files = [entry for entry in os.scandir(folder) if entry.name.endswith(SUFFIX) and entry.is_file()]
    except OSError as error:
        raise UserError(f"{folder} cannot be listed: {error.strerror or error}; name a folder of recordings") from None
    found = [summarize(Path(entry.path)) for entry in files]
    return sorted(found, key=lambda each: (-each.time, each.path.name))


def summarize(path: Path) -> Summary:
    try:
        with _open(path) as file:
            head = _head(path, file.readline(_LONGEST_HEAD))
            size = file.seek(0, os.SEEK_END)
            end = _ending(file, size)
    except UserError as error:
        return Summary(path, problem=str(error))
    except OSError as error:
        return Summary(path, problem=f"{path} cannot be read: {error.strerror or error}")
    usage = cast("Line", end.get("usage") or {})
    failed = end.get("event") == "run_failed"
    seconds = _number(end.get("seconds")) or max(_number(end.get("time")) - _number(head.get("time")), 0.0)
    return Summary(
        path,
        size,
        str(head.get("run", "")),
        str(head.get("agent_name", "main")),
        str(head.get("model", "")),
        _number(head.get("time")),
        _prompt(head),
        "failed" if failed else str(end.get("stop_reason", "")),
        f"{end.get('error')}: {end.get('message')}" if failed else str(end.get("text", "")),
        int(_number(end.get("rounds"))),
        int(_number(end.get("requests"))),
        int(_number(end.get("calls"))),
        seconds,
        int(_number(usage.get("input_tokens")) + _number(usage.get("output_tokens"))),
    )


def _ending(file: Any, size: int) -> Line:
    """The event in which the run ended, else the last one that has a time."""
    wanted = _TAIL
    while True:
        start = max(size - wanted, 0)
        file.seek(start)
        lines = file.read(size - start).split(b"\n")
        last: Line = {}
        for raw in reversed(lines if start == 0 else lines[1:]):
            line = _line(raw)
            if line is not None and line["line"] == "event":
                if line.get("event") in ("run_finished", "run_failed"):
                    return line
                last = last or {"time": line.get("time")}
        if last or start == 0:
            return last
        wanted *= 8


def _prompt(head: Line) -> str:
    """What was asked, in words, short."""
    asked = [head["question"]] if isinstance(head.get("question"), dict) else head.get("messages")
    for message in reversed(cast("list[Any]", asked) if isinstance(asked, list) else []):
        if isinstance(message, dict) and cast("Line", message).get("role") == "user":
            parts = cast("list[Any]", cast("Line", message).get("content") or [])
            return "".join(str(cast("Line", part).get("text", "")) for part in parts if isinstance(part, dict))[:500]
    return ""


def _open(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"there is no recording {path}") from None
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path} is a folder: name a recording in it") from None
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def is_recording(path: str | os.PathLike[str]) -> bool:
    """Does it begin as one does?"""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return start.startswith(b'{"line":"run"')
