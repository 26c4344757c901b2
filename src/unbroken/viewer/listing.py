"""The recordings of a folder, or the one that was named: what the list shows of each, and which file a name means.

A name is looked up among those of the folder and never becomes a path: nothing else can be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from unbroken.errors import StreamError, UserError
from unbroken.trajectory.recording import SUFFIX, Summary, is_recording, list_recordings, read_recording, summarize
from unbroken.viewer.fields import as_object
from unbroken.viewer.picture import RECORDED, Picture, draw
from unbroken.wires.jsontext import loads

_LOOKED_INTO = 1000
"""So many folders, and files in each, are looked at to find where recordings are."""
SEARCHED = 512 * 1024 * 1024
"""Bytes that are read to count failed calls; of what is beyond that the number is not known."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recording in the list. With a `problem` it is none."""

    name: str
    problem: str
    run: str = ""
    agent: str = ""
    model: str = ""
    time: float = 0.0
    prompt: str = ""
    state: str = ""
    rounds: int | None = None
    calls: int | None = None
    """Not known of a run that has no end."""
    failed: int | None = None
    seconds: float = 0.0
    tokens: int = 0
    size: int = 0


class Shelf:
    """`path` is a folder of recordings, or one recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.one = not path.is_dir()
        if self.one and path.exists() and not path.is_file():
            raise UserError(f"{path} is no file, but a pipe or a device: name a recording, or a folder of recordings")
        if self.one and (problem := summarize(path).problem):
            raise UserError(problem)
        self._failed: dict[tuple[str, int], int] = {}
        """Of files that were counted, by name and size: a recording only ever grows."""

    def rows(self) -> list[Row]:
        left = SEARCHED
        rows: list[Row] = []
        for summary in [summarize(self.path)] if self.one else list_recordings(self.path):
            left -= summary.size
            rows.append(_row(summary, self._count(summary) if left > 0 else None))
        return rows

    def draw(self, name: str) -> Picture:
        """Raises `UserError` if there is no such recording, or if it cannot be read."""
        return draw(read_recording(self._find(name)))

    def _find(self, name: str) -> Path:
        if self.one:
            found = self.path if name == self.path.name else None
        else:
            found = next((path for path in self.path.iterdir() if path.name == name and is_recording(path)), None)
        if found is None:
            raise UserError(f"there is no recording {name!r} in {self.path}")
        return found

    def _count(self, summary: Summary) -> int | None:
        known = (summary.path.name, summary.size)
        if known not in self._failed:
            try:
                self._failed[known] = count_failed(summary.path)
            except OSError:
                return None
        return self._failed[known]


def count_failed(path: Path) -> int:
    """Calls that were answered with an error. Other lines are not parsed: within a text of theirs a quotation mark is
    never without a backslash, so what is looked for is found only where it is meant. A run that goes on tells again
    of some calls."""
    failed: set[bytes | tuple[str, str]] = set()
    with path.open("rb") as file:
        for line in file:
            if b'"event":"call_finished"' in line[:64] and b'"error":true' in line and b'"dropped":true' not in line:
                failed.add(_call_of(line) or line)
    return len(failed)


def _call_of(line: bytes) -> tuple[str, str] | None:
    try:
        event = as_object(loads(line))
    except StreamError:
        return None
    return str(event.get("turn")), str(event.get("call_id"))


def recordings_below(folder: Path) -> list[Path]:
    """Folders in this one that have recordings, however deep: for somebody who named the wrong one."""
    found: list[Path] = []
    for here, _, names in islice(os.walk(folder), _LOOKED_INTO):
        path = Path(here)
        if path != folder and any(name.endswith(SUFFIX) and is_recording(path / name) for name in names[:_LOOKED_INTO]):
            found.append(path)
    return sorted(found)


def _state(summary: Summary) -> str:
    if summary.problem or summary.stop_reason:
        return summary.stop_reason
    return RECORDED if summary.agent_name == RECORDED else "unfinished"


def _row(summary: Summary, failed: int | None) -> Row:
    return Row(
        summary.path.name,
        summary.problem.replace(str(summary.path), summary.path.name),  # a page may be sent to somebody
        summary.run,
        summary.agent_name,
        summary.model,
        summary.time,
        summary.prompt,
        _state(summary),
        summary.rounds if summary.stop_reason else None,
        summary.calls if summary.stop_reason else None,
        None if summary.problem else failed,
        summary.seconds,
        summary.tokens,
        summary.size,
    )
