"""openai-chat: what of a stream has reached the client already. Text is not looked at: a stream needs none of it."""

from __future__ import annotations

from unbroken.messages import Json, ToolCall
from unbroken.wires.parts import call_from_text
from unbroken.wires.passed import Passed, event_of
from unbroken.wires.values import Object, as_dict, as_text, dicts

_HEAD = ("id", "created", "model", "system_fingerprint", "service_tier")


class PassedCall:
    """A call as far as the client knows it. This wire has no end of a call."""

    __slots__ = ("custom", "id", "index", "name", "pieces", "torn", "whole")

    def __init__(self, index: int, id: str, custom: bool) -> None:
        self.index = index
        self.id = id
        self.name = ""
        self.custom = custom
        self.pieces: list[str] = []
        self.whole = False
        """It was told to be: only where the arguments came as an object."""
        self.torn = False
        """It has turned out to be another than the one that the client was told of."""

    @property
    def cut(self) -> bool:
        if self.torn or self.whole or self.custom:
            return self.torn
        return call_from_text("", "", "".join(self.pieces), 0).arguments is None


class ChatPassed(Passed):
    marks = (
        b'"tool_calls"',
        b'"finish_reason":"',
        b'"finish_reason": "',
        b'"usage":{',
        b'"usage": {',
        b"[DONE]",
    )

    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.role = False
        self.calls: list[PassedCall] = []
        self.finished = False
        self.usage = False
        self.done = False

    @property
    def next_index(self) -> int:
        return max((call.index + 1 for call in self.calls), default=0)

    def find(self, call: ToolCall) -> PassedCall | None:
        """The same call in what has passed: by its id, or by name and place if the provider gave none."""
        for place, one in enumerate(self.calls):
            if one.id == call.id if one.id else (one.name, place) == (call.name, call.index):
                return one
        return None

    def read(self, data: bytes) -> None:
        if len(data) < 16 and data.strip().upper() == b"[DONE]":
            self.done = True
            return
        event = event_of(data)
        if not self.begun:
            self._begin(event)
        choices = event.get("choices") or ()
        for choice in choices:
            if choice.get("index"):
                continue
            if choice.get("finish_reason"):
                self.finished = True
            for piece in choice["delta"].get("tool_calls") or ():
                self._piece(piece)
        if event.get("usage") and (self.finished or not choices):  # some count in every chunk
            self.usage = True

    def _begin(self, event: Object) -> None:
        if not self.head and event.get("id"):  # the first event of Azure has neither id nor model
            self.head = {key: event[key] for key in _HEAD if event.get(key) is not None}
        self.role = self.role or any(as_dict(choice.get("delta")).get("role") for choice in dicts(event.get("choices")))
        self.begun = self.role and bool(self.head)

    def _piece(self, piece: Object) -> None:
        inner = piece.get("function")
        custom = inner is None and "custom" in piece
        if inner is None:
            inner = as_dict(piece.get("custom"))
        call = self._call(piece.get("index"), as_text(piece.get("id")), custom)
        call.name = call.name or as_text(inner.get("name"))
        arguments: Json = inner.get("input" if custom else "arguments")
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            call.whole = True

    def _call(self, index: Json, id: str, custom: bool) -> PassedCall:
        if not id and self.calls and self.calls[-1].index == index:  # nearly all pieces
            return self.calls[-1]
        if not isinstance(index, int):
            known = [call for call in self.calls if call.id == id] if id else self.calls
        else:
            known = [call for call in self.calls if call.index == index]
        if known and id in ("", known[-1].id):
            return known[-1]
        call = PassedCall(index if isinstance(index, int) else self.next_index, id, custom)
        self.calls.append(call)
        return call
