"""Faults in the events of a response: events in, other events out.

One function serves streamed events and a non-streaming body, which is one event. The wire knows where things are in an
event (`Wire.for_tests`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from unbroken_testing.damage import DONE, EventFault, ResponseFormat, write
from unbroken_wires.messages import Json
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.event_shapes import Event, Events, dumps
from unbroken_wires.wires.json_access import Object, as_dict


def each_fragment(change: Callable[[Object, int, bool], None]) -> EventFault:
    """Changes each fragment of a call in place, on wires that send loose fragments. `change` gets the fragment, the
    number of its call, and whether it is the first fragment of that call."""

    def changed(events: Events, format: ResponseFormat) -> Events:
        for event in events:
            for position, piece in enumerate(format.shapes.fragments(event)):
                number = piece.get("index", position)
                change(piece, number, "name" in as_dict(piece.get("function")))
            yield event

    return changed


def indexes(change: Callable[[int], Json]) -> EventFault:
    """Changes the index of the item that an event belongs to. None leaves it out."""

    def changed(events: Events, format: ResponseFormat) -> Events:
        key = format.shapes.index
        for event in events:
            for place in format.shapes.numbered(event):
                if key in place:
                    index = change(place.pop(key))
                    if index is not None:
                        place[key] = index
            yield event

    return changed


def without_type(piece: Object, number: int, first: bool) -> None:
    piece.pop("type", None)


def at_one_index(events: Events, format: ResponseFormat) -> Events:
    """Every call complete, all of them in one event and at one index."""
    for event in all_calls_at_once(events, format):
        for piece in format.shapes.fragments(event):
            if format.stream:
                piece["index"] = 0
        yield event


def at_index_0_without_ids(piece: Object, number: int, first: bool) -> None:
    piece.pop("id", None)
    if "index" in piece:
        piece["index"] = 0


def repeat_id_and_name() -> EventFault:
    def changed(events: Events, format: ResponseFormat) -> Events:
        known: dict[int, tuple[Json, Json]] = {}

        def change(piece: Object, number: int, first: bool) -> None:
            if first:
                known[number] = piece.get("id"), piece["function"]["name"]
            else:
                piece["id"], piece["function"]["name"] = known[number]

        return each_fragment(change)(events, format)

    return changed


def empty_id_and_name(piece: Object, number: int, first: bool) -> None:
    if not first:
        piece["id"] = piece["function"]["name"] = ""


def all_calls_at_once(events: Events, format: ResponseFormat) -> Events:
    """All calls complete, in one event before the end of the stream."""
    return format.shapes.all_calls_at_once(events) if format.stream else events


def interleaved(events: Events, format: ResponseFormat) -> Events:
    """The fragments of several calls, interleaved."""
    held: list[list[Event]] = []
    for event in events:
        part = format.shapes.part_of_call(event)
        if not part or (part == "later" and not held):
            yield from _in_turns(held)
            held = []
            yield event
        elif part == "first":
            held.append([event])
        else:
            held[-1].append(event)
    yield from _in_turns(held)


def _in_turns(held: list[list[Event]]) -> Events:
    while any(held):
        for events in held:
            if events:
                yield events.pop(0)


def null_arguments(events: Events, format: ResponseFormat) -> Events:
    """Null where there are no arguments (yet)."""
    for event in events:
        for holder, key in format.shapes.arguments_in(event):
            if holder[key] in ("", {}):
                holder[key] = None
        yield event


def object_arguments(events: Events, format: ResponseFormat) -> Events:
    """Arguments as an object, on wires that use text."""
    return format.shapes.object_arguments(events)


def string_arguments(events: Events, format: ResponseFormat) -> Events:
    """Arguments as text, on wires that use an object."""
    for event in events:
        if format.mode not in format.shapes.text_arguments:
            for holder, key in format.shapes.arguments_in(event):
                if isinstance(holder[key], dict):
                    holder[key] = json.dumps(holder[key], ensure_ascii=False)
        yield event


def finish_without_calls(events: Events, format: ResponseFormat) -> Events:
    """The finish reason of a response that has no calls."""
    for event in events:
        format.shapes.set_finish(event, format.shapes.done_reason)
        yield event


def finish_twice(events: Events, format: ResponseFormat) -> Events:
    for event in events:
        yield event
        if format.shapes.is_finish(event):
            yield event


def no_finish(events: Events, format: ResponseFormat) -> Events:
    """The stream ends with `[DONE]` only."""
    for event in events:
        format.shapes.set_finish(event, None)
        yield event


def usage_last(events: Events, format: ResponseFormat) -> Events:
    """Usage in a separate event, after the finish."""
    return format.shapes.usage_last(events)


def provider_run(events: Events, format: ResponseFormat) -> Events:
    """A tool that the provider ran itself, before the model's text."""
    return format.shapes.provider_run(events, format.stream)


def clean_end(events: Events, format: ResponseFormat) -> Events:
    """Everything except the end of the stream; half of a body."""
    for event in events:
        if not format.stream:
            body = event if isinstance(event, bytes) else dumps(event)
            yield body[: len(body) // 2]
        elif event == DONE or format.shapes.is_finish(event) or format.shapes.is_after_finish(event):
            return
        else:
            yield event


def error_inside(
    message: str, status: int = 500, named: bool = False, shape: Callable[[str, int, str], Object] | None = None
) -> EventFault:
    """An error instead of the second half of the events, or of the body. `named`: as the wire's own error event."""

    def changed(events: Events, format: ResponseFormat) -> Events:
        wire = find_wire(format.wire)
        error = wire.error_body(status, message) if shape is None else shape(format.wire, status, message)
        if not format.stream:
            yield error
            return
        kept = list(events)
        yield from kept[: _middle(kept)]
        if named:
            yield format.shapes.error_event(error, message)
        else:
            yield format.framing.write(dumps(error))

    return changed


def error_at_the_end(message: str) -> EventFault:
    """The complete answer, and then an error instead of the end."""

    def changed(events: Events, format: ResponseFormat) -> Events:
        error = find_wire(format.wire).error_body(500, message)
        for event in events:
            if event == DONE or format.shapes.is_finish(event):
                break
            yield event
        yield format.shapes.error_event(error, message)

    return changed


def inside(data: bytes, ends: bool) -> EventFault:
    """Bytes that are not an event, in the middle; nothing follows if it `ends` there."""

    def changed(events: Events, format: ResponseFormat) -> Events:
        if not format.stream:
            yield data
            return
        kept = list(events)
        middle = _middle(kept)
        yield from kept[:middle]
        yield data
        if not ends:
            yield from kept[middle:]

    return changed


def bare_error_inside(events: Events, format: ResponseFormat) -> Events:
    """The body of an error, as sent by a proxy that does not know events."""
    return inside(dumps(find_wire(format.wire).error_body(502, "bad gateway")) + b"\n", ends=True)(events, format)


def damaged_event(events: Events, format: ResponseFormat) -> Events:
    """An event in the middle whose JSON is incomplete; the others are good."""
    kept = list(events)
    middle = _middle(kept)
    for number, event in enumerate(kept):
        if number == middle or not format.stream:
            data = event if isinstance(event, bytes) else write(event, format)
            half = len(data) * 2 // 3
            yield data[:half] + b"\x00\xfe\xff{]" + data[half + 3 :]
        else:
            yield event


def split_emoji(events: Events, format: ResponseFormat) -> Events:
    """Each character beyond 16 bits as its two halves, in two events."""
    for event in events:
        found = format.shapes.text_in(event)
        if found is None:
            yield event
            continue
        holder, key = found
        for text in _halves(holder[key]):
            copy: Object = json.loads(json.dumps(event))
            if (inner := format.shapes.text_in(copy)) is not None:
                inner[0][inner[1]] = text
            yield copy


def _halves(text: str) -> Iterator[str]:
    rest = ""
    for character in text:
        if ord(character) > 0xFFFF:
            units = character.encode("utf-16-be")
            yield rest + units[:2].decode("utf-16-be", "surrogatepass")
            rest = units[2:].decode("utf-16-be", "surrogatepass")
        else:
            rest += character
    yield rest


def without_names(events: Events, format: ResponseFormat) -> Events:
    """No `event:` lines."""
    for event in events:
        yield event if isinstance(event, bytes) else format.framing.write(dumps(event))


def _middle(events: list[Event]) -> int:
    return max(1, len(events) // 2)
