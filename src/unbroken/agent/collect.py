"""`collect`: what a run came to, from its events alone: they may come from a stream, a file or another machine.

`Result` is the run's own account and can be resumed; this is what a reader of the events knows, with all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Self

from unbroken.events import Event
from unbroken.run_view import RunView


class Collected(RunView):
    """A `RunView` together with the events that it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """The same as `collect`, for events that are all there."""
        kept = list(events)
        collected = super().of(kept)
        collected.events = kept
        return collected

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collected) and self.events == other.events

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it is compared by what is in it


async def collect(stream: AsyncIterable[Event]) -> Collected:
    """Reads a stream of events to its end. If the stream raises there, as that of a failed run does, so does this;
    of events that were saved, `failed` tells it."""
    return Collected.of([event async for event in stream])
