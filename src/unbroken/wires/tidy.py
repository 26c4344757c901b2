"""Are raw events such that any client can read them? Asked before they are passed on as they came.

Our decoder reads calls without an index, with index 0 for all of them, with arguments of a wrong type; official clients
merge them, lose them or raise. What stands here is no decoder: it only knows how an event has to look, looks at those
events that have to do with calls, and says no to all else. Then an encoder of ours writes what was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from unbroken.messages import Json, ToolCall
from unbroken.wires.ids import MINTED
from unbroken.wires.jsontext import Damaged, loads
from unbroken.wires.values import Object, as_dict, as_int, as_list, as_text, dicts


def is_tidy(wire: str, call: ToolCall) -> bool:
    """Did the call come as its wire has it? On Gemini's wire ids are optional, and clients expect none."""
    return not call.problem and (not call.notes or (wire == "gemini" and call.notes == (MINTED,)))


class TidyStream:
    """Feed it all events of a response, whole ones, in as many portions as they are passed on."""

    def __init__(self, wire: str) -> None:
        self._marks, self._look, self._named = _STREAMS[wire]
        self._next = 0
        """The index of the next block or item."""
        self._ids: dict[Json, list[str]] = {}
        """On openai-chat: of the calls of each choice."""
        self._begun = False

    def feed(self, data: bytes) -> bool:
        if not self._begun and data.strip():
            self._begun = True
            if self._named and b"event:" not in data:
                return False  # the clients of these wires go by the name of an event
        if not any(mark in data for mark in self._marks):
            return True
        for line in data.splitlines():
            if line.startswith(b"data:") and any(mark in line for mark in self._marks):
                try:
                    event = as_dict(loads(line[5:]))
                except Damaged:
                    return False
                if not self._look(self, event):
                    return False
        return True

    def chat(self, event: Object) -> bool:
        for choice in dicts(event.get("choices")):
            delta = as_dict(choice.get("delta"))
            if delta.get("function_call") or as_dict(choice.get("message")):
                return False  # the old single call; a message where a delta belongs
            ids = self._ids.setdefault(as_int(choice.get("index")), [])
            if not all(_piece(as_dict(piece), ids) for piece in as_list(delta.get("tool_calls"))):
                return False
        return True

    def anthropic(self, event: Object) -> bool:
        if event.get("type") == "content_block_start":
            block = as_dict(event.get("content_block"))
            return self._is_next(event.get("index")) and isinstance(block.get("input", {}), dict)
        delta = as_dict(event.get("delta"))
        return event.get("index") == self._next - 1 and isinstance(delta.get("partial_json"), str)

    def responses(self, event: Object) -> bool:
        if event.get("type") == "response.output_item.added":
            return self._is_next(event.get("output_index")) and _item(as_dict(event.get("item")))
        index = event.get("output_index")
        here = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < self._next
        if event.get("type") == "response.output_item.done":
            return here and _item(as_dict(event.get("item")))
        return here and isinstance(event.get("delta", event.get("arguments", "")), str)

    def gemini(self, event: Object) -> bool:
        return _candidates(event)

    def _is_next(self, index: Json) -> bool:
        fits = isinstance(index, int) and not isinstance(index, bool) and index == self._next
        self._next += 1
        return fits


def _piece(piece: Object, ids: list[str]) -> bool:
    """The first piece of a call has its id and name, the others have its index and add arguments to it."""
    index, id = piece.get("index"), as_text(piece.get("id"))
    kind = "custom" if "custom" in piece else "function"
    said = as_dict(piece.get(kind))
    if not isinstance(said.get("input" if kind == "custom" else "arguments", ""), str):
        return False
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= len(ids):
        return False
    if index < len(ids):
        return not as_text(said.get("name")) and id in ("", ids[index])
    if not id or id in ids or not as_text(said.get("name")):
        return False
    ids.append(id)
    return True


_Look = Callable[[TidyStream, Object], bool]
_STREAMS: dict[str, tuple[tuple[bytes, ...], _Look, bool]] = {
    "openai-chat": ((b'"tool_calls"', b'"function_call"'), TidyStream.chat, False),
    "anthropic-messages": ((b"content_block_start", b"input_json_delta"), TidyStream.anthropic, True),
    "openai-responses": ((b"response.output_item", b"response.function_call_arguments"), TidyStream.responses, True),
    "gemini": ((b"unctionCall", b"unction_call"), TidyStream.gemini, False),
}
"""By wire: what stands in events that have to be looked at, how, and whether each has a name."""


def body_is_tidy(wire: str, body: bytes) -> bool:
    """The same for the calls of a whole body."""
    value = as_dict(loads(body))
    match wire:
        case "openai-chat":
            messages = [as_dict(choice.get("message")) for choice in dicts(value.get("choices"))]
            calls = [as_dict(call) for said in messages for call in as_list(said.get("tool_calls"))]
            return all(map(_chat_call, calls)) and not any(said.get("function_call") for said in messages)
        case "anthropic-messages":
            return all(isinstance(block.get("input", {}), dict) for block in dicts(value.get("content")))
        case "openai-responses":
            return all(map(_item, dicts(value.get("output"))))
        case _:
            return _candidates(value)


def _chat_call(call: Object) -> bool:
    kind = as_text(call.get("type"))
    said = as_dict(call.get(kind))
    text = said.get("input" if kind == "custom" else "arguments")
    return bool(as_text(call.get("id")) and as_text(said.get("name"))) and isinstance(text, str)


def _item(item: Object) -> bool:
    return item.get("type") != "function_call" or isinstance(item.get("arguments"), str)


def _candidates(value: Object) -> bool:
    contents = [as_dict(candidate.get("content")) for candidate in dicts(value.get("candidates"))]
    calls = [as_dict(part.get("functionCall")) for said in contents for part in dicts(said.get("parts"))]
    return all(isinstance(call.get("args", {}), dict) for call in calls)


_LAST = {
    "openai-chat": re.compile(rb'"finish_reason"\s*:\s*".*\[DONE\]', re.DOTALL),
    "anthropic-messages": re.compile(rb"message_stop"),
    "openai-responses": re.compile(rb"response\.(?:completed|incomplete|failed)"),
    "gemini": re.compile(rb"finish_?[rR]eason"),
}
"""What stands in the last events of a stream; clients wait for it."""


def has_its_end(wire: str, data: bytes) -> bool:
    """Of a response that is whole: are its last events among these?"""
    return _LAST[wire].search(data) is not None
