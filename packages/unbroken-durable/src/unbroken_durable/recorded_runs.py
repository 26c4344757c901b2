"""The runs of a journal as recordings, for programs without an event loop: the viewer, statistics, replays.

A list of runs is made from their rows, and from the first and the last append of each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from unbroken.errors import UserError
from unbroken.trajectory.recording import Recording, Summary, summarize_ends
from unbroken_durable.database import Database, Disconnected
from unbroken_durable.database_urls import connect, refuse_missing
from unbroken_durable.errors import JournalUnavailable
from unbroken_durable.records import RunRow
from unbroken_durable.run_lines import parse
from unbroken_viewer.listing import SEARCHED, Row, count_failed, row_of
from unbroken_viewer.picture import Picture, draw

T = TypeVar("T")

MOST_LISTED = 1000
"""How many runs the list of the viewer shows: the latest."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a journal."""

    runs: RecordedRuns
    run_id: str

    def read(self) -> Recording:
        return self.runs.recording(self.run_id)

    def __str__(self) -> str:
        return f"{self.runs.url}#{self.run_id}"


class RecordedRuns:
    """`place` is the URL of a journal, or `URL#run-id` for a single run. What the viewer can show (`Listing`). Any
    thread may use it. Use it as a context, or `close` it."""

    most_listed: int = MOST_LISTED

    def __init__(self, place: str) -> None:
        url, _, run_id = place.partition("#")
        refuse_missing(url)
        self._database = connect(url)
        self._lock = threading.Lock()
        self._failed: dict[tuple[int, int], int] = {}
        """Counts of runs, by their numbers and how many appends they have."""
        self.url = self._database.url
        self.one = bool(run_id)
        self.name = run_id or self.url
        try:
            if not self._ask(lambda database: database.has_tables()):
                raise UserError(f"{self.url} is no journal: it has none of its tables")
            self._ask(Database.migrate)
            if self.one:
                self._ask(lambda database: database.find(run_id))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def runs(self) -> list[RecordedRun]:
        """All runs that have a recording, or the one that was named."""
        return [RecordedRun(self, row.run_id) for row in self._rows(None) if row.chunks or self.one]

    def recording(self, run_id: str) -> Recording:
        """Raises `UserError` if there is no such run, or if nobody has driven it yet."""
        row, data = self._ask(lambda database: database.chunks(run_id, 0))
        if not data:
            raise UserError(f"run `{run_id}` has no recording yet: it is {row.state}, and nobody has driven it")
        return parse(b"".join(data), run_id)

    def rows(self, search: int = SEARCHED) -> list[Row]:
        """For the viewer, the latest first. Up to `search` bytes are read to count failed calls."""
        rows = self._rows(MOST_LISTED)
        ends = self._ask(lambda database: database.ends(rows[-1].number, rows[0].number)) if rows else {}
        listed: list[Row] = []
        for row in rows:
            if row.number not in ends:
                question, state = row.question, row.state
                listed.append(
                    Row(row.run_id, "", row.run_id, row.agent, time=row.created, prompt=question, state=state)
                )
                continue
            beginning, end, size = ends[row.number]
            failed = self._failed.get((row.number, row.chunks))
            if failed is None and size <= search:
                search -= size
                failed = self._count(row)
            listed.append(_row(row, summarize_ends(Path(row.run_id), beginning, end, size), failed))
        return listed

    def draw(self, name: str) -> Picture:
        return replace(draw(self.read(name), resume="a worker of its journal"), file=name)

    def read(self, name: str) -> Recording:
        """For the viewer."""
        self._check(name)
        return self.recording(name)

    def raw_lines(self, name: str) -> Iterator[bytes]:
        self._check(name)
        _, data = self._ask(lambda database: database.chunks(name, 0))
        yield from b"".join(data).splitlines()

    def place(self, name: str) -> str:
        """`URL#id`, for commands in a terminal."""
        self._check(name)
        return f"{self.url}#{name}"

    def version(self, name: str) -> str:
        self._check(name)
        row = self._ask(lambda database: database.find(name))
        return f"{row.chunks}-{row.state}"

    def _check(self, name: str) -> None:
        if self.one and name != self.name:
            raise UserError(f"{self.url}: only the run `{self.name}` is shown")

    def count(self) -> int:
        """How many runs there are."""
        return sum(row[1] for row in self._ask(Database.count))

    def _rows(self, limit: int | None) -> list[RunRow]:
        if self.one:
            return [self._ask(lambda database: database.find(self.name))]
        return self._ask(lambda database: database.find_all({}, limit))

    def _count(self, row: RunRow) -> int:
        _, data = self._ask(lambda database: database.chunks(row.run_id, 0))
        found = self._failed[row.number, row.chunks] = count_failed(b"".join(data).splitlines())
        return found

    def _ask(self, work: Callable[[Database], T]) -> T:
        with self._lock:
            try:
                return work(self._database)
            except Disconnected as error:
                raise JournalUnavailable(f"{self.url} cannot be reached: {error}") from None


def _row(row: RunRow, summary: Summary, failed: int | None) -> Row:
    found = row_of(summary, failed)
    state = found.state if row.state == "answered" else row.state
    return replace(
        found,
        name=row.run_id,
        agent=row.agent,
        time=row.created,
        prompt=summary.prompt or row.question,
        state=state,
        changed=row.updated,
    )
