"""ollama, reading responses: a line of a stream and a complete body have the same shape here.

Calls are complete objects, each in one line. Only the line with `done: true` ends a response.
"""

from __future__ import annotations

from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, Usage
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.jsontext import exact
from unbroken_wires.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {"stop": "done", "": "done", "length": "length", "content_filter": "refused"}
_COUNTS = ("prompt_eval_count", "eval_count")

MARKS = (b'"created_at":"', b'"created_at": "')
"""Near the beginning of every response; the number of the same name on another wire is no text."""


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire?"""
    return isinstance(event.get("done"), bool) and isinstance(event.get("message"), dict)


class OllamaDecoder:
    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._thinking: list[str] = []

    def feed(self, event: Object, data: bytes) -> None:
        message = event.get("message")
        if isinstance(message, dict) and "done" in event:
            self.recognised = True
            self._message(cast("Object", message), event, data)
        if event.get("error"):
            self.recognised = True
            self._to.error(event["error"])
        if event.get("done") is True:
            self.recognised = True
            if any(key in event for key in _COUNTS):
                self._to.usage(_usage(event))
            reason = as_text(event.get("done_reason"))  # servers before 0.3 give none
            self._to.finish(reason, _MEANINGS.get(reason, "other"))
            self._to.ended(last=True)

    def native(self) -> Json:
        thinking = "".join(self._thinking)
        return {"thinking": thinking} if thinking else None

    def _message(self, message: Object, event: Object, data: bytes) -> None:
        thinking, text, calls = message.get("thinking"), message.get("content"), message.get("tool_calls")
        if thinking and isinstance(thinking, str):
            self._thinking.append(thinking)
            self._to.reasoning(thinking)
        if text and isinstance(text, str):
            self._to.text(text)
        if calls:
            if not isinstance(calls, list):
                raise ValueError("the calls are not a list")
            again = exact(event, data, calls)
            if again is not event:
                calls = as_dict(again.get("message")).get("tool_calls")
            for call in dicts(calls):
                function = as_dict(call.get("function"))
                self._to.entry(call.get("id"), function.get("name"), function.get("arguments"))


def _usage(event: Object) -> Usage:
    return Usage(
        input_tokens=as_int(event.get("prompt_eval_count")),
        output_tokens=as_int(event.get("eval_count")),
        raw={key: event[key] for key in _COUNTS if key in event},
    )
