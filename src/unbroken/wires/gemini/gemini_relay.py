"""gemini, relaying: what part of a stream the client has received already, for the encoder that continues it.

Every event is complete in itself: only the head, the calls and the end matter to what follows.
"""

from __future__ import annotations

import re

from unbroken.messages import ToolCall
from unbroken.wires.jsontext import loads_exact
from unbroken.wires.relay import Relay, RelayedStream, StreamCheck
from unbroken.wires.values import Object, as_dict, as_text, dicts

_HEAD = ("modelVersion", "responseId", "createTime")


class RelayedGemini(RelayedStream):
    marks = (b'"functionCall"', b'"finishReason"')

    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.half = False
        """A call is being streamed in pieces, and its last one has not passed."""
        self.finished = False
        self._calls: list[Object] = []

    def find(self, call: ToolCall) -> Object | None:
        """The call as the client has begun to hear of it. Most have no id: then by name and place."""
        for place, one in enumerate(self._calls):
            id = as_text(one.get("id"))
            if id == call.id if id else (one.get("name"), place) == (call.name, call.index):
                return one
        return None

    def read(self, data: bytes) -> None:
        event = as_dict(loads_exact(data))
        if not self.head:
            self.head = {key: event[key] for key in _HEAD if event.get(key)}
            self.begun = bool(self.head)
        for candidate in dicts(event.get("candidates"))[:1]:
            self.finished = self.finished or bool(candidate.get("finishReason"))
            for part in dicts(as_dict(candidate.get("content")).get("parts")):
                if "functionCall" in part:
                    self._call(as_dict(part["functionCall"]))

    def _call(self, call: Object) -> None:
        if not self.half:
            self._calls.append(call)
        self.half = call.get("willContinue") is True


class GeminiCheck(StreamCheck):
    marks = (b"unctionCall", b"unction_call")

    def conforms(self, event: Object) -> bool:
        return _body_conforms(event)


def _body_conforms(body: Object) -> bool:
    contents = [as_dict(candidate.get("content")) for candidate in dicts(body.get("candidates"))]
    calls = [as_dict(part.get("functionCall")) for content in contents for part in dicts(content.get("parts"))]
    return all(isinstance(call.get("args", {}), dict) for call in calls)


RELAY = Relay(GeminiCheck, _body_conforms, end=re.compile(rb"finish_?[rR]eason"), ids_optional=True)
