"""gemini: what of a stream has reached the client already. Each event says all of its own parts: only the head, the
calls and the end matter to what comes after."""

from __future__ import annotations

from unbroken.messages import ToolCall
from unbroken.wires.passed import Passed, event_of
from unbroken.wires.values import Object, as_dict, as_text, dicts

_HEAD = ("modelVersion", "responseId", "createTime")


class GeminiPassed(Passed):
    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.half = False
        """A call is being streamed in pieces, and its last one has not passed."""
        self.finished = False
        self._calls: list[tuple[str, str]] = []

    def has(self, call: ToolCall) -> bool:
        """Has the client begun to hear of this call? Most have no id: then by name and place."""
        for place, (id, name) in enumerate(self._calls):
            if id == call.id if id else (name, place) == (call.name, call.index):
                return True
        return False

    def read(self, data: bytes) -> None:
        if self.head and b'"functionCall"' not in data and b'"finishReason"' not in data:
            return
        event = event_of(data)
        if not self.head:
            self.head = {key: event[key] for key in _HEAD if event.get(key)}
        for candidate in dicts(event.get("candidates"))[:1]:
            self.finished = self.finished or bool(candidate.get("finishReason"))
            for part in dicts(as_dict(candidate.get("content")).get("parts")):
                if "functionCall" in part:
                    self._call(as_dict(part["functionCall"]))

    def _call(self, call: Object) -> None:
        if not self.half:
            self._calls.append((as_text(call.get("id")), as_text(call.get("name"))))
        self.half = call.get("willContinue") is True
