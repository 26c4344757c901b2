"""The recorded runs of a journal, which the package unbroken-durable reads.

It is an extra, and its commands import this package: so it is imported by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from unbroken.errors import needs_extra
from unbroken.trajectory.recording import Recording
from unbroken_viewer.listing import Listing


class RecordedRun(Protocol):
    """One run of a journal; its text is `URL#ID`."""

    def read(self) -> Recording: ...


class RecordedRuns(Listing, Protocol):
    url: str
    most_listed: int
    """How many `rows` returns at most."""

    def runs(self) -> Sequence[RecordedRun]: ...

    def recording(self, run_id: str) -> Recording: ...

    def count(self) -> int: ...


def open_journal(place: str) -> AbstractContextManager[RecordedRuns]:
    """`place` is the URL of a journal, or `URL#ID` for one run."""
    if find_spec("unbroken_durable") is None:
        raise needs_extra("a journal", "unbroken-durable", "durable")
    return import_module("unbroken_durable.recorded_runs").RecordedRuns(place)
