"""Faults in the bytes: takes what would be sent and returns something else. Knows only how events are framed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from unbroken_testing.scenario import FOREVER, Chunks, Reset
from unbroken_wires.messages import Json
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, Mode, dumps
from unbroken_wires.wires.framing import Framing
from unbroken_wires.wires.json_access import Object

Damage: TypeAlias = Callable[[Chunks, "int | None", "float | None"], Chunks]
"""The chunks, the byte at which it happens (None: in the middle), the seconds that it takes (None: its own choice)."""


def close(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """The connection ends, the body does not."""
    yield from _up_to(chunks, after)
    raise ConnectionResetError("the connection was lost")


def reset(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    yield from _up_to(chunks, after)
    raise Reset("the connection was reset")


def end(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """The body ends as if it were complete."""
    return _up_to(chunks, after)


def nothing(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    return iter(())


def stall(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    yield from _up_to(chunks, after)
    yield FOREVER if seconds is None else seconds, b""
    raise ConnectionResetError("the connection was lost")


def garbage(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """Three bytes are replaced by garbage."""
    parts = list(chunks)
    at = _size(parts) // 2 if after is None else after
    yield from _up_to(iter(parts), at)
    yield 0.0, b"\x00\xfe\xff{]"
    passed = 0
    for pause, data in parts:
        yield (pause if passed >= at else 0.0), data[max(0, at + 3 - passed) :]
        passed += len(data)


def drip(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """One byte at a time."""
    for pause, data in chunks:
        yield pause, b""
        for number in range(len(data)):
            yield seconds or 0.0, data[number : number + 1]


def in_one_piece(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    parts = list(chunks)
    yield sum(pause for pause, _ in parts), b"".join(data for _, data in parts)


def split_characters(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """A new chunk in the middle of each character that has more than one byte."""
    for pause, data in chunks:
        start = 0
        for at in range(1, len(data)):
            if data[at] & 0xC0 == 0x80 and data[at - 1] >= 0xC0:
                yield (0.0 if start else pause), data[start:at]
                yield 0.001, b""  # so that the halves are not sent together
                start = at
        yield (0.0 if start else pause), data[start:]


def crlf(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    return _changed(chunks, lambda data: data.replace(b"\n", b"\r\n"))


def comments(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """Before each event, and within it."""
    for pause, data in chunks:
        yield pause, b": keep-alive\n\n" + data.replace(b"\ndata:", b"\n:\ndata:")
    yield 0.0, b": the end\n\n"


def no_space(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        return b"\n".join(
            line.replace(b": ", b":", 1) if line.startswith((b"data: ", b"event: ")) else line for line in lines
        )

    return _changed(chunks, change)


def unterminated(chunks: Chunks, after: int | None, seconds: float | None) -> Chunks:
    """The last event has no empty line after it, not even the end of its own line."""
    last: tuple[float, bytes] | None = None
    for chunk in chunks:
        if last is not None:
            yield last
        last = chunk
    if last is not None:
        yield last[0], last[1].rstrip(b"\n")


def _changed(chunks: Chunks, change: Callable[[bytes], bytes]) -> Chunks:
    for pause, data in chunks:
        yield pause, change(data)


def _up_to(chunks: Chunks, after: int | None) -> Chunks:
    if after is None:
        parts = list(chunks)
        after, chunks = _size(parts) // 2, iter(parts)
    passed = 0
    for pause, data in chunks:
        if passed + len(data) >= after:
            yield pause, data[: after - passed]
            return
        passed += len(data)
        yield pause, data


def _size(parts: list[tuple[float, bytes]]) -> int:
    return sum(len(data) for _, data in parts)


# Reads the events in the bytes of a stream and writes them again, for `event_faults`. A non-streaming body is one
# event. What is not JSON (`[DONE]`, the raw bytes of a script) passes unchanged, as bytes.


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of a response: its wire, and whether it is a stream or one body."""

    wire: str
    stream: bool

    @property
    def mode(self) -> Mode:
        return "streamed" if self.stream else "unstreamed"

    @property
    def framing(self) -> Framing:
        return find_wire(self.wire).framing

    @property
    def shapes(self) -> EventShapes:
        return find_wire(self.wire).for_tests().events


EventFault: TypeAlias = Callable[[Events, ResponseFormat], Events]


def apply_event_fault(chunks: Chunks, change: EventFault, format: ResponseFormat) -> Chunks:
    """Applies a fault to the events. The pauses of the script stay before their events."""
    waited = 0.0

    def events() -> Events:
        nonlocal waited
        for pause, data in chunks:
            waited += pause
            yield from _read(data, format)

    for event in change(events(), format):
        pause, waited = waited, 0.0
        yield pause, event if isinstance(event, bytes) else write(event, format)
    if waited:
        yield waited, b""


def write(event: Object, format: ResponseFormat) -> bytes:
    data = dumps(event)
    if not format.stream:
        return data
    name = event.get("type") if format.shapes.named else None
    return format.framing.write(data, name if isinstance(name, str) else "")


def _read(data: bytes, format: ResponseFormat) -> Events:
    if not format.stream:
        yield _parse(data, data)
        return
    framing = format.framing
    end = framing.complete(data, len(data))
    for frame in framing.events(data[:end]):
        text = next(iter(framing.texts(frame)), b"")
        yield _parse(text, frame)
    if end < len(data):
        yield data[end:]


def _parse(text: bytes, otherwise: bytes) -> Event:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return otherwise
    return cast("Object", value) if isinstance(value, dict) else otherwise
