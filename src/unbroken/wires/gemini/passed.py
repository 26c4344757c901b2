"""gemini: what of a stream has reached the client already. Each event says all of its own parts: only the head, the
calls and the end matter to what comes after."""

from __future__ import annotations

from unbroken.messages import ToolCall
from unbroken.wires.jsontext import loads_exact
from unbroken.wires.passed import Passed
from unbroken.wires.values import Object, as_dict, as_text, dicts

_HEAD = ("modelVersion", "responseId", "createTime")


class GeminiPassed(Passed):
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
