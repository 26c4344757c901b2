"""What a program says while it runs: which block began and ended, and every event of a block's own run with the block
it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

from unbroken.dph.source import Position
from unbroken.events import Event, event_to_json
from unbroken.messages import Json


@dataclass(frozen=True, slots=True)
class BlockRun:
    """One block while it runs. In a loop each time is another one; `number` tells them apart."""

    number: int
    """From 1, in the order in which they began."""
    kind: str
    """`prompt`, `explore`, `judge`, `call` (of a tool) or `program` (another file)."""
    name: str
    """The variable that its value goes to."""
    file: str
    line: int
    called: str = ""
    """The tool or program that is called."""
    parent: int = 0
    """The number of the block that called the program in which it stands; 0 in the first program."""

    @classmethod
    def at(cls, number: int, kind: str, name: str, place: Position, called: str = "", parent: int = 0) -> BlockRun:
        """One whose file and line are those of the place."""
        return cls(number, kind, name, place.file, place.line, called, parent)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    block: BlockRun


@dataclass(frozen=True, slots=True)
class InBlock:
    """Something happened in the run of a block."""

    block: BlockRun
    event: Event


@dataclass(frozen=True, slots=True)
class BlockFinished:
    """It has its value, or failed with an `error`."""

    block: BlockRun
    value: Json
    seconds: float
    error: str = ""
    stop_reason: str = ""
    """How the run of a block ended that asked a model."""


ProgramEvent: TypeAlias = BlockStarted | InBlock | BlockFinished
ProgramSink: TypeAlias = Callable[[ProgramEvent], None]


def program_event_to_json(event: ProgramEvent) -> dict[str, Json]:
    """With its `type`, the block, and what happened."""
    said: dict[str, Json] = {"type": type(event).__name__, "block": asdict(event.block)}
    match event:
        case BlockStarted():
            pass
        case InBlock():
            said["event"] = event_to_json(event.event)
        case BlockFinished():
            said |= {
                "value": event.value,
                "seconds": event.seconds,
                "error": event.error,
                "stop_reason": event.stop_reason,
            }
    return said
