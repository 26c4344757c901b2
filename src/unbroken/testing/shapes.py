"""Where things stand in the events of each wire: pieces of calls, arguments, text, the end. For those who bend them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from unbroken.messages import Json
from unbroken.testing.frames import Event
from unbroken.wires.values import Object, as_dict, dicts


def pieces_of(event: Event) -> list[Object]:
    """openai-chat: the calls, or pieces of calls, in an event."""
    choices = dicts(as_dict(event).get("choices"))
    return [
        piece
        for choice in choices
        for holder in (as_dict(choice.get("delta")), as_dict(choice.get("message")))
        for piece in dicts(holder.get("tool_calls"))
    ]


def delta_of(event: Event) -> Json:
    return next((choice.get("delta") for choice in dicts(as_dict(event).get("choices"))), None)


def chat_event(event: Event, delta: Object) -> Object:
    return {**as_dict(event), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def candidates_of(event: Event) -> list[Object]:
    return dicts(as_dict(event).get("candidates"))


_ENDS = ("response.completed", "response.incomplete", "message_delta")


def is_finish(event: Event) -> bool:
    """Does the event say that it has ended?"""
    fields = as_dict(event)
    if fields.get("type") in _ENDS:
        return True
    return any(choice.get("finish_reason") for choice in dicts(fields.get("choices"))) or any(
        candidate.get("finishReason") for candidate in candidates_of(event)
    )


def is_after_finish(event: Event) -> bool:
    return as_dict(event).get("type") == "message_stop"


def set_finish(event: Event, reason: str | None) -> None:
    fields = as_dict(event)
    for choice in dicts(fields.get("choices")):
        if choice.get("finish_reason"):
            choice["finish_reason"] = reason
    for holder in (fields, as_dict(fields.get("delta"))):
        if holder.get("stop_reason"):
            holder["stop_reason"] = reason


def arguments_in(event: Event) -> Iterator[tuple[Object, str]]:
    """Each place of an event where the arguments of a call stand: an object, and the key in it."""
    fields = as_dict(event)
    for piece in pieces_of(event):
        if "arguments" in piece["function"]:
            yield piece["function"], "arguments"
    items = [as_dict(fields.get("item")), *dicts(fields.get("output"))]
    items += dicts(as_dict(fields.get("response")).get("output"))
    for item in items:
        if item.get("type") == "function_call":
            yield item, "arguments"
    if fields.get("type") == "response.function_call_arguments.done":
        yield fields, "arguments"
    for block in chain([as_dict(fields.get("content_block"))], dicts(fields.get("content"))):
        if block.get("type") == "tool_use":
            yield block, "input"
    for candidate in candidates_of(event):
        for part in dicts(candidate["content"]["parts"]):
            if "functionCall" in part:
                yield part["functionCall"], "args"


def text_in(event: Event, wire: str) -> Iterator[tuple[Object, str]]:
    """The one place of a streamed event where a piece of text, or of arguments as text, stands."""
    fields = as_dict(event)
    delta = as_dict(delta_of(event)) if wire == "openai-chat" else as_dict(fields.get("delta"))
    for key in ("content", "reasoning_content", "text", "thinking", "partial_json"):
        if isinstance(delta.get(key), str):
            yield delta, key
            return
    for piece in pieces_of(event):
        if isinstance(piece["function"].get("arguments"), str):
            yield piece["function"], "arguments"
            return
    if str(fields.get("type")).endswith(".delta") and isinstance(fields.get("delta"), str):
        yield fields, "delta"
    for candidate in candidates_of(event):
        for part in dicts(candidate["content"]["parts"]):
            if isinstance(part.get("text"), str):
                yield part, "text"
                return
