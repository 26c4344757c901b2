"""cohere-v2, reading responses, streamed or as one body.

The plan before the calls (`tool_plan`) and thinking are both reasoning; both are kept apart to be sent back.
"""

from __future__ import annotations

from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, Usage
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts
from unbroken_wires.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {
    "COMPLETE": "done",
    "STOP_SEQUENCE": "done",
    "TOOL_CALL": "done",
    "MAX_TOKENS": "length",
    "ERROR_TOXIC": "refused",
}
_FAILURES = ("ERROR", "TIMEOUT", "ERROR_LIMIT")

MARKS = (
    b'"message-start"',
    b'"content-start"',
    b'"tool-plan-delta"',
    b'"tool-call-start"',
    b'"finish_reason":"COMPLETE"',
)
"""One of these is near the beginning of every stream."""

_EVENTS = frozenset(
    (
        "message-start",
        "content-start",
        "content-delta",
        "content-end",
        "tool-plan-delta",
        "message-end",
        "tool-call-start",
        "tool-call-delta",
        "tool-call-end",
        "citation-start",
        "citation-end",
    )
)


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire?"""
    if event.get("type") in _EVENTS:
        return True
    return as_dict(event.get("message")).get("role") == "assistant" and isinstance(event.get("finish_reason"), str)


class CohereDecoder:
    """Streamed events by their type, and non-streaming bodies."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._plan: list[str] = []
        self._thinking: list[list[str]] = []
        self._citations: list[Object] = []
        self._calls = 0
        self._at: dict[Json, int] = {}
        """The call that was last begun at each index."""
        self._objects: dict[int, Object] = {}
        """Arguments that came as an object, which some proxies send."""

    def feed(self, event: Object, data: bytes) -> None:
        kind = event.get("type")
        message = as_dict(as_dict(event.get("delta")).get("message"))
        match kind:
            case "tool-call-delta":
                self._more(event.get("index"), as_dict(message.get("tool_calls")))
            case "content-delta" | "content-start":
                self._content(as_dict(message.get("content")), begins=kind == "content-start")
            case "tool-plan-delta":
                self._say_plan(message.get("tool_plan"))
            case "tool-call-start":
                self._open(event.get("index"), message.get("tool_calls"))
            case "tool-call-end":
                self._close(event.get("index"))
            case "citation-start":
                self._cite(message.get("citations"))
            case "message-end":
                delta = as_dict(event.get("delta"))
                self._end(delta.get("finish_reason"), delta.get("usage"), delta.get("error"))
                self._to.ended(last=True)
            case _:
                self._other(event)
                return
        self.recognised = True

    def native(self) -> Json:
        kept: Object = {}
        if self._plan:
            kept["tool_plan"] = "".join(self._plan)
        thinking = [text for pieces in self._thinking if (text := "".join(pieces))]
        if thinking:
            kept["thinking"] = thinking
        if self._citations:
            kept["citations"] = self._citations
        return kept or None

    def _other(self, event: Object) -> None:
        """The start of a message, a body, an error."""
        message = event.get("message")
        if event.get("type") in _EVENTS:
            self.recognised = True
        elif isinstance(message, dict) and "finish_reason" in event:
            self.recognised = True
            self._body(event, cast("Object", message))
        elif event.get("error") or (message and isinstance(message, str)):
            self.recognised = True
            self._to.error(event.get("error") or event)

    def _body(self, body: Object, message: Object) -> None:
        self._say_plan(message.get("tool_plan"))
        content = message.get("content")
        if isinstance(content, str):
            self._to.text(content)
        for block in dicts(content):
            self._content(block, begins=True)
        for call in dicts(message.get("tool_calls")):
            function = as_dict(call.get("function"))
            self._to.entry(call.get("id"), function.get("name"), function.get("arguments"))
        for citation in as_list(message.get("citations")):
            self._cite(citation)
        self._end(body["finish_reason"], body.get("usage"), None)
        self._to.ended()

    def _content(self, content: Object, begins: bool) -> None:
        text, thinking = content.get("text"), content.get("thinking")
        if text and isinstance(text, str):
            self._to.text(text)
        if isinstance(thinking, str):
            if begins or not self._thinking:
                self._thinking.append([])
            if thinking:
                self._thinking[-1].append(thinking)
                self._to.reasoning(thinking)

    def _say_plan(self, plan: Json) -> None:
        if plan and isinstance(plan, str):
            self._plan.append(plan)
            self._to.reasoning(plan)

    def _cite(self, citation: Json) -> None:
        if isinstance(citation, dict):
            self._citations.append(cast("Object", citation))

    def _open(self, index: Json, call: Json) -> None:
        fields = as_dict(call)
        function = as_dict(fields.get("function"))
        self._calls += 1
        key = self._at[index] = self._calls
        self._to.open(key, as_text(fields.get("id")), as_text(function.get("name")))
        self._grow(key, function.get("arguments"))

    def _more(self, index: Json, call: Object) -> None:
        if index not in self._at:
            raise ValueError("a piece of arguments belongs to no call")
        self._grow(self._at[index], as_dict(call.get("function")).get("arguments"))

    def _grow(self, key: int, arguments: Json) -> None:
        if isinstance(arguments, str):
            if arguments:
                self._to.arguments(key, arguments)
        elif isinstance(arguments, dict):
            self._objects[key] = cast("Object", arguments)
        elif arguments is not None:
            raise ValueError("a piece of arguments is neither text nor an object")

    def _close(self, index: Json) -> None:
        if index in self._at:
            key = self._at[index]
            self._to.close(key, self._objects.pop(key, None))

    def _end(self, reason: Json, usage: Json, error: Json) -> None:
        if usage and isinstance(usage, dict):
            self._to.usage(_usage(cast("Object", usage)))
        if error or reason in _FAILURES:
            self._to.error(error or {"message": f"the provider ended the answer with {reason}"})
        if reason and isinstance(reason, str):
            self._to.finish(reason, _MEANINGS.get(reason, "other"))


def _usage(raw: Object) -> Usage:
    tokens = as_dict(raw.get("tokens")) or as_dict(raw.get("billed_units"))
    return Usage(
        input_tokens=as_int(tokens.get("input_tokens")),
        output_tokens=as_int(tokens.get("output_tokens")),
        cached_tokens=as_int(raw.get("cached_tokens")),
        raw=raw,
    )
