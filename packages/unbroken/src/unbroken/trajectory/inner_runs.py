"""The runs of agents that run as tools, in the recording of the run that calls them: each of their lines is in a line
`inner` of that recording, with the idempotency key of the call. So one file, or one journal, has all of a team's work,
and an inner run is resumed from it like any other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallFinished,
    CallStarted,
    Event,
    InnerEvent,
    LimitReached,
    RequestRetried,
    RunFailed,
    TextFinished,
)
from unbroken.middleware import Middleware, RunStart
from unbroken.tools.context import CallContext
from unbroken.trajectory.jsonl_writer import Target
from unbroken.trajectory.line_reader import LineReader
from unbroken.trajectory.lines import Line, encode
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_wires.messages import Json

SHOWN = 200
"""Characters of a text that `describe_step` shows."""


class InnerTarget(Target):
    """Puts the lines of an inner run into the recording of the outer one."""

    def __init__(self, outer: RunRecorder, context: CallContext[Any], begun: bool) -> None:
        writer = outer.writer
        self.path, self.delay, self.later = writer.path, writer.target.delay, writer.target.later
        self.is_open = not writer.broken
        self._outer = outer
        self._begun = begun
        self._turn = context.turn
        call: Line = {"turn": context.turn, "call": context.number}
        self._call = orjson.dumps(call)[1:-1] + b',"of":'
        self._first = orjson.dumps({**call, "call_id": context.call_id, "key": context.key})[1:-1] + b',"of":'
        """Which call it is: the first line has its id and its key."""

    def has_lines(self) -> bool:
        return self._begun

    def write(self, data: bytes, urgent: bool) -> None:
        writer, before = self._outer.writer, b'{"line":"inner","at":%s,' % orjson.dumps(self._outer.at())
        if writer.broken:
            raise OSError(writer.reason)
        lines: list[bytes] = []
        for line in data.split(b"\n"):
            if line:
                lines.append(before + (self._first or self._call) + line + b"}")
                self._first = b""
        self._outer.known.turn = self._turn
        writer.put_raw(lines, urgent)

    async def stored(self) -> None:
        await self._outer.writer.stored()
        if self._outer.writer.broken:
            raise OSError(self._outer.writer.reason)


class InnerRecorder(Middleware):
    """Records the run of an agent that runs as a tool in the recording of the outer run. `begun`: that recording has an
    earlier part of it."""

    records = True

    def __init__(self, outer: RunRecorder, context: CallContext[Any], begun: bool = False) -> None:
        self._outer = outer
        self._context = context
        self._begun = begun

    def start(self, run: RunStart) -> RunRecorder:
        redactor = self._outer.cover(run.secrets())
        target = InnerTarget(self._outer, self._context, self._begun)
        recorder = RunRecorder(target, run, redactor, "stop" if self._outer.stops else "continue")
        recorder.reserves |= self._outer.reserves
        return recorder

    def resume(self, path: Path, run: str, size: int) -> Self:
        return self


@dataclass(slots=True)
class InnerLines:
    """The lines of inner runs in a recording, by the keys of the calls that run them."""

    by_key: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    keys: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    """By the turns and ids of the calls."""
    waiting: set[int] = field(default_factory=set[int])
    """The numbers of the calls whose agents wait for somebody."""

    def take(self, line: Line) -> None:
        if line["line"] == "waits":
            self.waiting.add(line["call"])
            return
        self.waiting.discard(line["call"])
        self.by_key.setdefault(line["key"], []).append(line)
        self.keys[line["turn"], line["call_id"]] = line["key"]

    def recording(self, path: Path, key: str, turn: int, id: str) -> Recording | None:
        """The recording of the run that this call began, if there is one. `turn` and `id` find it if its key is not
        known; the id may be empty."""
        lines = self.by_key.get(key) or self.by_key.get(self.keys.get((turn, id), ""))
        return None if lines is None else _unwrapped(lines, path)


def describe_step(event: InnerEvent) -> tuple[str, str] | None:
    """The path of the agent, and what it did, in a line; None if that is not worth a line."""
    inner = event.event
    if isinstance(inner, InnerEvent):
        return describe_step(inner)
    words = _words(inner)
    return (event.agent, words) if words else None


def _words(event: Event) -> str:
    match event:
        case CallStarted():
            return f"{event.name} {_short(event.arguments)}"
        case CallFinished():
            return f"{event.name} {'failed' if event.error else 'gave'}: {_short(event.text)}"
        case ApprovalAsked():
            return f"{event.name} needs an approval"
        case TextFinished():
            return f"said: {_short(event.text)}"
        case RequestRetried():
            return f"the request is retried: {_short(event.reason)}"
        case LimitReached():
            return f"reached a limit: {event.kind} ({event.limit:g})"
        case AgentChanged():
            return f"handed off to {event.agent}"
        case RunFailed():
            return f"failed: {_short(event.message)}"
        case _:
            return ""


def _short(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _unwrapped(lines: Iterable[Line], path: Path) -> Recording | None:
    reader = LineReader(str(path))
    read: list[Line] = []
    for line in lines:
        of = {**line["of"], "masked": True} if line.get("masked") else line["of"]
        read += reader.feed(encode(of) + b"\n")
    if reader.head is None:
        return None
    return Recording(path, reader.head, read, reader.problems, reader.size, reader.damaged)
