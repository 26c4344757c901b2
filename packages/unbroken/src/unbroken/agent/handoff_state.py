"""What a run knows about its hand-offs: those that have taken place, and what the next one needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from unbroken.middleware import Middleware, RunStart
from unbroken_wires.messages import Message


@dataclass(frozen=True, slots=True)
class Taken:
    """A hand-off that has taken place: its tool, and how many messages the history had then."""

    tool: str
    messages: int


@dataclass(slots=True)
class Changing:
    """What a run has to know so that other agents can take it over."""

    most: int
    """How often they may."""
    about: Callable[[], RunStart]
    """What is known of the run, for the middleware of those agents."""
    known: tuple[Middleware, ...]
    """The middleware of the run itself."""
    own: list[Middleware]
    """The same, started."""
    ends: list[Middleware]
    """What has to be ended with the run."""
    servers: AsyncExitStack
    """Closes the servers of the tools of those agents."""
    taken: list[Taken] = field(default_factory=list[Taken])
    shown: tuple[int, tuple[Message, ...]] | None = None
    """What the agent sees in place of so many messages of the history, if a filter chose that."""


def read_taken(saved: object) -> tuple[Taken, ...]:
    """Hand-offs in their saved form."""
    if not isinstance(saved, list):
        return ()
    return tuple(Taken(str(each["tool"]), int(each["messages"])) for each in cast("list[dict[str, Any]]", saved))
