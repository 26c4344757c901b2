"""Faults in how it is said: the events of a response in, other events out. One function serves streamed events and a
whole body, which is one event; each knows the shapes of the wires that its fault is made for, and of no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from unbroken.messages import Json
from unbroken.models.spelling import find_spelling
from unbroken.testing.frames import DONE, Bend, Event, Events, Spelled, dumps, write
from unbroken.testing.refusals import refusal
from unbroken.testing.shapes import (
    arguments_in,
    candidates_of,
    chat_event,
    is_after_finish,
    is_finish,
    pieces_of,
    set_finish,
    text_in,
)
from unbroken.wires.values import Object, as_dict, dicts


def chat_pieces(change: Callable[[Object, int, bool], None]) -> Bend:
    """openai-chat: each piece of a call, changed in place. It gets the number of its call, and whether it is the first
    piece of it."""

    def bend(events: Events, spelled: Spelled) -> Events:
        for event in events:
            for position, piece in enumerate(pieces_of(event)):
                number = piece.get("index", position)
                change(piece, number, "name" in as_dict(piece.get("function")))
            yield event

    return bend


def indexes(change: Callable[[int], Json]) -> Bend:
    """Where a stream says which item an event belongs to. None leaves the index out."""

    def bend(events: Events, spelled: Spelled) -> Events:
        key = {"openai-responses": "output_index"}.get(spelled.wire, "index")
        for event in events:
            for place in pieces_of(event) if spelled.wire == "openai-chat" else _objects(event):
                if key in place:
                    index = change(place.pop(key))
                    if index is not None:
                        place[key] = index
            yield event

    return bend


def without_type(piece: Object, number: int, first: bool) -> None:
    piece.pop("type", None)


def at_one_index(events: Events, spelled: Spelled) -> Events:
    """openai-chat: every call whole, all of them in one event and at one index."""
    for event in all_calls_at_once(events, spelled):
        for piece in pieces_of(event):
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

        return chat_pieces(change)(events, spelled)

    return bend


def empty_id_and_name(piece: Object, number: int, first: bool) -> None:
    if not first:
        piece["id"] = piece["function"]["name"] = ""


def all_calls_at_once(events: Events, spelled: Spelled) -> Events:
    """All calls whole, in one event: before the end of the stream."""
    if not spelled.stream:
        yield from events
    elif spelled.wire == "gemini":
        yield from _gemini_at_once(events)
    else:
        yield from _chat_at_once(events)


def _chat_at_once(events: Events) -> Events:
    calls: dict[int, Object] = {}
    for event in events:
        if pieces := pieces_of(event):
            for piece in pieces:
                call = calls.setdefault(piece["index"], piece)
                if call is not piece:
                    call["function"]["arguments"] += piece["function"]["arguments"]
        elif calls and is_finish(event):
            yield chat_event(event, {"tool_calls": list(calls.values())})
            calls = {}
            yield event
        else:
            yield event


def _gemini_at_once(events: Events) -> Events:
    held: list[Object] = []
    for event in events:
        parts = [part for candidate in candidates_of(event) for part in dicts(candidate["content"]["parts"])]
        calls = [part for part in parts if "functionCall" in part]
        if calls:
            held += calls
            continue
        if held and is_finish(event):
            as_dict(event)["candidates"][0]["content"]["parts"] = held
            held = []
        yield event


def interleaved(events: Events, spelled: Spelled) -> Events:
    """The pieces of several calls in turns."""
    held: list[list[Event]] = []
    for event in events:
        key = _call_of(event, spelled.wire)
        if key is None or (key == "more" and not held):
            yield from _in_turns(held)
            held = []
            yield event
        elif key == "open":
            held.append([event])
        else:
            held[-1].append(event)
    yield from _in_turns(held)


def _call_of(event: Event, wire: str) -> str | None:
    """Does the event belong to a call: does it open one, or go on with it?"""
    if wire == "openai-chat":
        pieces = pieces_of(event)
        return None if not pieces else "open" if "name" in pieces[0]["function"] else "more"
    fields = as_dict(event)
    if as_dict(fields.get("content_block")).get("type") == "tool_use":
        return "open"
    more = as_dict(fields.get("delta")).get("type") == "input_json_delta"
    return "more" if more or fields.get("type") == "content_block_stop" else None


def _in_turns(held: list[list[Event]]) -> Events:
    while any(held):
        for events in held:
            if events:
                yield events.pop(0)


def null_arguments(events: Events, spelled: Spelled) -> Events:
    """Null where no arguments stand (yet)."""
    for event in events:
        for holder, key in arguments_in(event):
            if holder[key] in ("", {}):
                holder[key] = None
        yield event


def object_arguments(events: Events, spelled: Spelled) -> Events:
    """The arguments as an object, where the wire has text for them; on Anthropic's in the beginning of the block."""
    held: list[Object] = []
    for event in events:
        fields = as_dict(event)
        delta = as_dict(fields.get("delta"))
        if as_dict(fields.get("content_block")).get("type") == "tool_use" or delta.get("type") == "input_json_delta":
            held.append(fields)
        elif held:
            start, *deltas = held
            held = []
            text = "".join(delta["delta"]["partial_json"] for delta in deltas)
            start["content_block"]["input"] = json.loads(text or "{}")
            yield start
            yield event
        elif fields.get("type") == "response.function_call_arguments.delta":
            continue
        else:
            for holder, key in arguments_in(event):
                if isinstance(holder[key], str):
                    if holder[key]:
                        holder[key] = json.loads(holder[key])
                    else:
                        del holder[key]
            yield event


def string_arguments(events: Events, spelled: Spelled) -> Events:
    """The arguments as text, where the wire has an object for them."""
    for event in events:
        if not spelled.stream or spelled.wire == "gemini":
            for holder, key in arguments_in(event):
                if isinstance(holder[key], dict):
                    holder[key] = json.dumps(holder[key], ensure_ascii=False)
        yield event


def finish(reasons: dict[str, str]) -> Bend:
    """Another word for the end, for each wire its own."""

    def bend(events: Events, spelled: Spelled) -> Events:
        for event in events:
            set_finish(event, reasons[spelled.wire])
            yield event

    return bend


def finish_twice(events: Events, spelled: Spelled) -> Events:
    for event in events:
        yield event
        if is_finish(event):
            yield event


def no_finish(events: Events, spelled: Spelled) -> Events:
    """openai-chat: nothing but `[DONE]` says that it has ended."""
    for event in events:
        set_finish(event, None)
        yield event


def usage_last(events: Events, spelled: Spelled) -> Events:
    """Usage in an event of its own, after the finish."""
    for event in events:
        fields = as_dict(event)
        if spelled.wire == "gemini" and is_finish(event):
            usage = fields.pop("usageMetadata", {"promptTokenCount": 7, "candidatesTokenCount": 5})
            yield event
            yield {"usageMetadata": usage, "modelVersion": fields.get("modelVersion")}
        elif spelled.wire == "openai-chat" and is_finish(event):
            yield event
            yield {**fields, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}
        elif "usage" not in fields or fields.get("choices") != []:
            yield event


def clean_end(events: Events, spelled: Spelled) -> Events:
    """All but the end of the stream; half of a body."""
    for event in events:
        if not spelled.stream:
            body = event if isinstance(event, bytes) else dumps(event)
            yield body[: len(body) // 2]
        elif event == DONE or is_finish(event) or is_after_finish(event):
            return
        else:
            yield event


def error_inside(
    message: str, status: int = 500, named: bool = False, shape: Callable[[str, int, str], Object] = refusal
) -> Bend:
    """An error in place of the second half of the events, or of the body. `named`: on its wire's own way for it."""

    def bend(events: Events, spelled: Spelled) -> Events:
        error = shape(spelled.wire, status, message)
        if not spelled.stream:
            yield error
            return
        kept = list(events)
        yield from kept[: _middle(kept)]
        if named:
            yield _error_event(error, spelled, message)
        else:
            yield b"data: " + dumps(error) + b"\n\n"

    return bend


def error_at_the_end(message: str) -> Bend:
    """Everything is said, and then an error in place of the end."""

    def bend(events: Events, spelled: Spelled) -> Events:
        error = refusal(spelled.wire, 500, message)
        for event in events:
            if event == DONE or is_finish(event):
                break
            yield event
        yield _error_event(error, spelled, message)

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
    return inside(dumps(refusal(spelled.wire, 502, "bad gateway")) + b"\n", ends=True)(events, spelled)


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
        found = next(text_in(event, spelled.wire), None)
        if found is None:
            yield event
            continue
        holder, key = found
        for text in _halves(holder[key]):
            copy: Object = json.loads(json.dumps(event))
            for inner, name in text_in(copy, spelled.wire):
                inner[name] = text
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


def _error_event(error: Object, spelled: Spelled, message: str) -> bytes:
    if spelled.wire == "openai-responses":
        return find_spelling(spelled.wire, "", "failed").error_event(message)
    return b"event: error\ndata: " + dumps(error) + b"\n\n"


def _objects(event: Event) -> list[Object]:
    return [event] if isinstance(event, dict) else []
