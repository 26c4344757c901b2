"""Reads the lines of a run in a journal: as a recording, as events while they are stored, and as a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from unbroken.clock import current_clock
from unbroken.events import Event, RunFailed, event_to_json
from unbroken.trajectory.line_reader import EventReader, LineReader
from unbroken.trajectory.lines import encode
from unbroken.trajectory.recording import SUFFIX, Recording, parse_recording
from unbroken_durable.records import Claim


class RunEvents:
    """Reads events from the lines of a journal as they come."""

    def __init__(self, run_id: str) -> None:
        self._lines = LineReader(f"run `{run_id}`")
        self._reader: EventReader | None = None

    def feed(self, data: Iterable[bytes]) -> list[Event]:
        found: list[Event] = []
        for raw in (raw for chunk in data for raw in chunk.splitlines(keepends=True)):
            lines = self._lines.feed(raw)
            if self._reader is None and self._lines.head is not None:
                head = self._lines.head
                self._reader = EventReader(head, Recording(Path(), head, []).time_at, first=1)
            if self._reader is not None:
                found += [event for line in lines if (event := self._reader.feed(line)) is not None]
        return found


def parse(data: bytes, run_id: str) -> Recording:
    """The recording of a run."""
    return parse_recording(data.splitlines(keepends=True), Path(f"run `{run_id}`"))


def last_lines(claim: Claim, kind: str, reason: str) -> bytes:
    """The last line of a run that is ended from outside: its `RunFailed` event."""
    recording = parse(claim.data, claim.row.run_id)
    last = recording.events[-1] if recording.events else None
    turn, seq = (last.turn, last.seq + 1) if last is not None else (0, 1)
    event = RunFailed(claim.row.run_id, turn, seq, current_clock().now(), kind, reason)
    return encode({"line": "event", **event_to_json(event)}) + b"\n"


def file_name(run_id: str) -> str:
    """Another one for each run: what cannot be in a name is replaced, and a digest tells such names apart."""
    name = "".join(c if c.isalnum() or c in ".-_" else "_" for c in run_id)[:150]
    digest = "" if name == run_id else f"-{hashlib.sha256(run_id.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"{name}{digest}{SUFFIX}"
