"""Faults in the events of a response: events in, other events out.

One function serves streamed events and a non-streaming body, which is one event. Where things are in an event is known
to its wire (`Wire.for_tests`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from unbroken.messages import Json
from unbroken.testing.damage import DONE, Bend, Spelled, write
from unbroken.wires import find_wire
from unbroken.wires.event_shapes import Event, Events, dumps
from unbroken.wires.values import Object, as_dict


def each_fragment(change: Callable[[Object, int, bool], None]) -> Bend:
    """Changes each fragment of a call in place, where fragments are loose. `change` gets the fragment, the number of
    its call, and whether it is the first fragment of that call."""

    def bend(events: Events, spelled: Spelled) -> Events:
        for event in events:
            for position, piece in enumerate(spelled.shapes.fragments(event)):
                number = piece.get("index", position)
                change(piece, number, "name" in as_dict(piece.get("function")))
            yield event

    return bend


def indexes(change: Callable[[int], Json]) -> Bend:
    """Changes the index of the item that an event belongs to. None leaves it out."""

    def bend(events: Events, spelled: Spelled) -> Events:
        key = spelled.shapes.index
        for event in events:
            for place in spelled.shapes.numbered(event):
                if key in place:
                    index = change(place.pop(key))
                    if index is not None:
                        place[key] = index
            yield event

    return bend


def without_type(piece: Object, number: int, first: bool) -> None:
    piece.pop("type", None)


def at_one_index(events: Events, spelled: Spelled) -> Events:
    """Every call complete, all of them in one event and at one index."""
    for event in all_calls_at_once(events, spelled):
        for piece in spelled.shapes.fragments(event):
            if spelled.stream:
                piece["index"] = 0
        yield event


def at_index_0_without_ids(piece: Object, number: int, first: bool) -> None:
    piece.pop("id", None)
    if "index" in piece:
        piece["index"] = 0


def repeat_id_and_name() -> Bend:
    def bend(events: Events, spelled: Spelled) -> Events:
        known: dict[int, tuple[Json, Json]] = {}

        def change(piece: Object, number: int, first: bool) -> None:
            if first:
                known[number] = piece.get("id"), piece["function"]["name"]
            else:
                piece["id"], piece["function"]["name"] = known[number]

        return each_fragment(change)(events, spelled)

    return bend


def empty_id_and_name(piece: Object, number: int, first: bool) -> None:
    if not first:
        piece["id"] = piece["function"]["name"] = ""


def all_calls_at_once(events: Events, spelled: Spelled) -> Events:
    """All calls complete, in one event before the end of the stream."""
    return spelled.shapes.all_calls_at_once(events) if spelled.stream else events


def interleaved(events: Events, spelled: Spelled) -> Events:
    """The fragments of several calls in turns."""
    held: list[list[Event]] = []
    for event in events:
        part = spelled.shapes.part_of_call(event)
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


def null_arguments(events: Events, spelled: Spelled) -> Events:
    """Null where there are no arguments (yet)."""
    for event in events:
        for holder, key in spelled.shapes.arguments_in(event):
            if holder[key] in ("", {}):
                holder[key] = None
        yield event


def object_arguments(events: Events, spelled: Spelled) -> Events:
    """Arguments as an object, where the wire has text for them."""
    return spelled.shapes.object_arguments(events)


def string_arguments(events: Events, spelled: Spelled) -> Events:
    """The arguments as text, where the wire has an object for them."""
    for event in events:
        if spelled.mode not in spelled.shapes.text_arguments:
            for holder, key in spelled.shapes.arguments_in(event):
                if isinstance(holder[key], dict):
                    holder[key] = json.dumps(holder[key], ensure_ascii=False)
        yield event


def finish_without_calls(events: Events, spelled: Spelled) -> Events:
    """The finish reason of a response that has no calls."""
    for event in events:
        spelled.shapes.set_finish(event, spelled.shapes.done_reason)
        yield event


def finish_twice(events: Events, spelled: Spelled) -> Events:
    for event in events:
        yield event
        if spelled.shapes.is_finish(event):
            yield event


def no_finish(events: Events, spelled: Spelled) -> Events:
    """Nothing but `[DONE]` ends the stream."""
    for event in events:
        spelled.shapes.set_finish(event, None)
        yield event


def usage_last(events: Events, spelled: Spelled) -> Events:
    """Usage in an event of its own, after the finish."""
    return spelled.shapes.usage_last(events)


def provider_run(events: Events, spelled: Spelled) -> Events:
    """Before the model's text, a tool that the provider ran itself."""
    return spelled.shapes.provider_run(events, spelled.stream)


def clean_end(events: Events, spelled: Spelled) -> Events:
    """All but the end of the stream; half of a body."""
    for event in events:
        if not spelled.stream:
            body = event if isinstance(event, bytes) else dumps(event)
            yield body[: len(body) // 2]
        elif event == DONE or spelled.shapes.is_finish(event) or spelled.shapes.is_after_finish(event):
            return
        else:
            yield event


def error_inside(
    message: str, status: int = 500, named: bool = False, shape: Callable[[str, int, str], Object] | None = None
) -> Bend:
    """An error in place of the second half of the events, or of the body. `named`: on its wire's own way for it."""

    def bend(events: Events, spelled: Spelled) -> Events:
        wire = find_wire(spelled.wire)
        error = wire.error_body(status, message) if shape is None else shape(spelled.wire, status, message)
        if not spelled.stream:
            yield error
            return
        kept = list(events)
        yield from kept[: _middle(kept)]
        if named:
            yield spelled.shapes.error_event(error, message)
        else:
            yield b"data: " + dumps(error) + b"\n\n"

    return bend


def error_at_the_end(message: str) -> Bend:
    """Everything is said, and then an error in place of the end."""

    def bend(events: Events, spelled: Spelled) -> Events:
        error = find_wire(spelled.wire).error_body(500, message)
        for event in events:
            if event == DONE or spelled.shapes.is_finish(event):
                break
            yield event
        yield spelled.shapes.error_event(error, message)

    return bend


def inside(data: bytes, ends: bool) -> Bend:
    """Bytes that are no event, in the middle; nothing follows if it `ends` there."""

    def bend(events: Events, spelled: Spelled) -> Events:
        if not spelled.stream:
            yield data
            return
        kept = list(events)
        middle = _middle(kept)
        yield from kept[:middle]
        yield data
        if not ends:
            yield from kept[middle:]

    return bend


def bare_error_inside(events: Events, spelled: Spelled) -> Events:
    """The body of an error, as a proxy sends it that knows nothing of events."""
    return inside(dumps(find_wire(spelled.wire).error_body(502, "bad gateway")) + b"\n", ends=True)(events, spelled)


def damaged_event(events: Events, spelled: Spelled) -> Events:
    """An event in the middle whose JSON is torn; the others are well."""
    kept = list(events)
    middle = _middle(kept)
    for number, event in enumerate(kept):
        if number == middle or not spelled.stream:
            data = event if isinstance(event, bytes) else write(event, spelled)
            half = len(data) * 2 // 3
            yield data[:half] + b"\x00\xfe\xff{]" + data[half + 3 :]
        else:
            yield event


def split_emoji(events: Events, spelled: Spelled) -> Events:
    """Each character beyond 16 bits as its two halves, in two events."""
    for event in events:
        found = spelled.shapes.text_in(event)
        if found is None:
            yield event
            continue
        holder, key = found
        for text in _halves(holder[key]):
            copy: Object = json.loads(json.dumps(event))
            if (inner := spelled.shapes.text_in(copy)) is not None:
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


def without_names(events: Events, spelled: Spelled) -> Events:
    """No `event:` lines."""
    for event in events:
        yield event if isinstance(event, bytes) else b"data: " + dumps(event) + b"\n\n"


def _middle(events: list[Event]) -> int:
    return max(1, len(events) // 2)
