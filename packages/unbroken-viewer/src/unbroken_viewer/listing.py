"""The recordings of a folder, or a single one: what the list shows of each, and which file belongs to a name.

A name is looked up among those of the folder and never becomes a path: nothing else can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from unbroken.errors import UserError
from unbroken.trajectory.line_reader import read_json
from unbroken.trajectory.recording import (
    SUFFIX,
    Recording,
    Summary,
    is_recording,
    read_recording,
    recording_files,
    summarize,
)
from unbroken_viewer.gateway_turn import AGENT
from unbroken_viewer.picture import RECORDED, Picture, draw, shown_name
from unbroken_viewer.picture_data import LONGEST_FIELD

_LOOKED_INTO = 1000
"""How many folders, and files in each, are searched for recordings."""
SEARCHED = 512 * 1024 * 1024
"""Bytes that are read to count failed calls; beyond that the number is unknown."""
SEARCHED_AT_ONCE = 16 * 1024 * 1024
"""The same, if somebody waits for the list: counting continues when the list is requested again."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recording in the list. `problem` is set if it is not a recording."""

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
    cost: float | None = None
    """Not known of every run."""
    currency: str = "$"
    """Of the cost; empty if the run had prices of its own."""
    changed: float = 0.0
    """When it last grew, in seconds since the epoch; 0 if that is not known."""


class Listing(Protocol):
    """What the viewer shows: several recordings, or a single one."""

    name: str
    one: bool
    """There is a single one, and `name` is its name."""

    def rows(self, search: int = SEARCHED) -> list[Row]: ...

    def draw(self, name: str) -> Picture:
        """Raises `UserError` if there is no such recording, or if it cannot be read."""
        ...

    def read(self, name: str) -> Recording:
        """The same, before it is drawn."""
        ...

    def raw_lines(self, name: str) -> Iterator[bytes]:
        """Its lines, not parsed."""
        ...

    def place(self, name: str) -> str:
        """How other commands call it: its file, or the journal and its id."""
        ...

    def version(self, name: str) -> str:
        """A text that changes whenever the recording has grown; without reading it."""
        ...


class Shelf:
    """`path` is a folder of recordings, or one recording. `latest`: at most so many are listed, the last ones by their
    names, which begin with the time; 0 lists all."""

    def __init__(self, path: Path, latest: int = 0) -> None:
        self.path = path
        self._latest = latest
        self.name = shown_name(path)
        self.one = not path.is_dir()
        if self.one and path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file but a pipe or a device: name a recording, or a folder of recordings")
        if self.one and (problem := summarize(path).problem):
            raise UserError(problem)
        self._failed: dict[tuple[str, int], int] = {}
        """Counts of files, by name and size: a recording only ever grows."""
        self._known: dict[str, tuple[str, Summary]] = {}
        """By path: the version of a file, and its summary."""

    def rows(self, search: int = SEARCHED) -> list[Row]:
        """The rows, the latest first. Up to `search` bytes are read to count failed calls; for the rest `failed` is
        None."""
        rows: list[Row] = []
        for summary in [summarize(self.path)] if self.one else self._summaries():
            failed = self._failed.get((summary.path.name, summary.size))
            if failed is None and not summary.problem and summary.size <= search:
                search -= summary.size
                failed = self._count(summary)
            rows.append(replace(row_of(summary, failed), changed=_changed(summary.path)))
        return rows

    def _summaries(self) -> list[Summary]:
        """Only files that have changed since the last time are read."""
        now: dict[str, tuple[str, Summary]] = {}
        for path in recording_files(self.path, self._latest):
            version, known = _version(path), self._known.get(str(path))
            if known is None or known[0] != version or known[1].problem:
                known = version, summarize(path)
            now[str(path)] = known
        self._known = now
        return sorted((found for _, found in now.values()), key=lambda each: (-each.time, each.path.name))

    def draw(self, name: str) -> Picture:
        """Raises `UserError` if there is no such recording, or if it cannot be read."""
        return draw(self.read(name))

    def read(self, name: str) -> Recording:
        """The recording itself, with everything that `draw` leaves out. Raises `UserError` as `draw` does."""
        return read_recording(self._find(name))

    def raw_lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, not parsed, for a search."""
        try:
            with self._find(name).open("rb") as file:
                yield from file
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror or error}") from None

    def place(self, name: str) -> str:
        """The path of its file, for commands in a terminal."""
        return str(self._find(name).absolute())

    def version(self, name: str) -> str:
        """Size and time of the file: another text whenever the recording has grown."""
        return _version(self._find(name))

    def _find(self, name: str) -> Path:
        if self.one:
            found = self.path if name == self.name else None
        else:
            try:
                found = next((path for path in self.path.iterdir() if shown_name(path) == name), None)
            except OSError as error:
                raise UserError(f"{self.path} cannot be listed: {error.strerror or error}") from None
            found = found if found is not None and is_recording(found) else None
        if found is None:
            raise UserError(f"there is no recording {name!r} in {self.path}")
        return found

    def _count(self, summary: Summary) -> int | None:
        try:
            with summary.path.open("rb") as file:
                found = count_failed(file)
        except OSError:
            return None
        self._failed[summary.path.name, summary.size] = found
        return found


def _version(path: Path) -> str:
    try:
        found = path.stat()
        return f"{found.st_size}-{found.st_mtime_ns}"
    except OSError:  # deleted meanwhile, or a link to nothing
        return ""


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def count_failed(lines: Iterable[bytes]) -> int:
    """Counts calls that were answered with an error. Other lines are not parsed: inside JSON strings quotation marks
    are escaped, so the search finds only real fields. A call that is adopted, for example in a resumed run, is counted
    as the one that adopts it."""
    failed: set[str] = set()
    for line in lines:
        start = line[:64]
        if b'"event":"call_finished"' in start and b'"error":true' in line:
            failed.add(_call_of(line, "call"))
        elif b'"event":"call_adopted"' in start:
            failed.discard(_call_of(line, "adopted"))
        elif b'"event":"call_dropped"' in start:
            failed.discard(_call_of(line, "call"))
    return len(failed)


def _call_of(line: bytes, field: str) -> str:
    """The number of a call; the line itself if it is not known."""
    return str((read_json(line) or {}).get(field, line))


def recordings_below(folder: Path) -> list[Path]:
    """Subfolders with recordings, at any depth: a hint if the wrong folder was named."""
    found: list[Path] = []
    for here, _, names in islice(os.walk(folder), _LOOKED_INTO):
        path = Path(here)
        if path != folder and any(name.endswith(SUFFIX) and is_recording(path / name) for name in names[:_LOOKED_INTO]):
            found.append(path)
    return sorted(found)


def _state(summary: Summary) -> str:
    if summary.problem or summary.stop_reason:
        return summary.stop_reason[:LONGEST_FIELD]
    return RECORDED if summary.agent_name == RECORDED else "unfinished"


def shown_end(state: str, agent: str) -> str:
    """How a run ended, in words. A gateway's answer with calls is for its client: nobody waits here."""
    return "tool calls" if agent == AGENT and state == "waiting" else state.replace("_", " ")


def row_of(summary: Summary, failed: int | None) -> Row:
    known = bool(summary.stop_reason or summary.requests)
    return Row(
        shown_name(summary.path),
        summary.problem.replace(str(summary.path), shown_name(summary.path)),  # a page may be sent to somebody
        summary.run[:LONGEST_FIELD],
        summary.agent_name[:LONGEST_FIELD],
        summary.model[:LONGEST_FIELD],
        summary.time,
        summary.prompt,
        _state(summary),
        summary.rounds if known else None,
        summary.calls if known else None,
        None if summary.problem else failed,
        summary.seconds,
        summary.tokens,
        summary.size,
        summary.cost,
        "" if summary.own_prices else "$",
    )
