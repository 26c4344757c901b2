"""Events in the bytes of a stream and back, for `event_faults`.

A non-streaming body is one event. What is no JSON (`[DONE]`, the raw bytes of a script) passes as bytes, untouched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from unbroken.messages import Json
from unbroken.testing.reply import Chunks
from unbroken.wires import find_wire
from unbroken.wires.event_shapes import Event, Events, EventShapes, Mode, dumps
from unbroken.wires.values import Object

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a response is spelled: on which wire, as a stream or as one body."""

    wire: str
    stream: bool

    @property
    def mode(self) -> Mode:
        return "streamed" if self.stream else "whole"

    @property
    def shapes(self) -> EventShapes:
        return find_wire(self.wire).for_tests().events


Bend: TypeAlias = Callable[[Events, Spelled], Events]


def bend_chunks(chunks: Chunks, bend: Bend, spelled: Spelled) -> Chunks:
    """The pauses of the script stay before the events that they stood before."""
    waited = 0.0

    def events() -> Events:
        nonlocal waited
        for pause, data in chunks:
            waited += pause
            yield from _read(data, spelled)

    for event in bend(events(), spelled):
        pause, waited = waited, 0.0
        yield pause, event if isinstance(event, bytes) else write(event, spelled)
    if waited:
        yield waited, b""


def write(event: Object, spelled: Spelled) -> bytes:
    data = dumps(event)
    if not spelled.stream:
        return data
    name = event.get("type") if spelled.shapes.named else None
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return head + b"data: " + data + b"\n\n"


def _read(data: bytes, spelled: Spelled) -> Events:
    if not spelled.stream:
        yield _parse(data, data)
        return
    *frames, rest = data.split(b"\n\n")
    for frame in frames:
        line = next((line for line in frame.split(b"\n") if line.startswith(b"data: ")), b"")
        yield _parse(line.removeprefix(b"data: "), frame + b"\n\n")
    if rest:
        yield rest


def _parse(text: bytes, otherwise: bytes) -> Event:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return otherwise
    return cast("Object", value) if isinstance(value, dict) else otherwise
