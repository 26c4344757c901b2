"""openai-responses: what of a stream has reached the client already. The last event holds the whole response, so all
of it is read, and kept for as long as its item has not ended."""

from __future__ import annotations

from unbroken.messages import Json
from unbroken.wires.openai_responses.writing import CALLS, KINDS, PartKind, Writing
from unbroken.wires.passed import Passed, event_of
from unbroken.wires.values import Object, as_dict, as_text

_TEXTS = {f"response.{kind.stream}.delta": kind for kind in KINDS.values()}
_TEXT_ENDS = {f"response.{kind.stream}.done": kind for kind in KINDS.values()}
_PARTS = {f"response.{kind.frame}.added" for kind in KINDS.values()}
_PART_ENDS = {f"response.{kind.frame}.done" for kind in KINDS.values()}
_ARGUMENTS = {f"response.{stream}.delta" for stream, _ in CALLS.values()}
_ARGUMENT_ENDS = {f"response.{stream}.done": field for stream, field in CALLS.values()}
_ENDS = {f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}


class ResponsesPassed(Passed):
    def __init__(self) -> None:
        super().__init__()
        self.response: Object = {}
        """As its first event tells it."""
        self.sequence = 0
        """The number of the next event."""
        self.items = 0
        self.output: dict[int, Object] = {}
        """The items that have ended, by their place."""
        self.calls: dict[str, Object] = {}
        """The calls among them, by their id."""
        self.open: dict[int, Writing] = {}
        self.done = False

    @property
    def speech(self) -> Writing | None:
        """The text or reasoning that is being said."""
        return next((item for item in reversed(self.open.values()) if item.type in ("message", "reasoning")), None)

    def half(self, call_id: str) -> Writing | None:
        return next((item for item in self.open.values() if item.value.get("call_id") == call_id), None)

    def read(self, data: bytes) -> None:
        event = event_of(data)
        number = event.get("sequence_number")
        self.sequence = number + 1 if isinstance(number, int) else self.sequence + 1
        type = as_text(event.get("type"))
        if (kind := _TEXTS.get(type)) is not None:
            self._part(event, kind).texts.append(event["delta"])
        elif type in _ARGUMENTS:
            self.open[event["output_index"]].texts.append(event["delta"])
        elif not type.startswith("response."):
            return
        elif type == "response.output_item.added":
            index = self._seen(event["output_index"])
            self.open[index] = Writing(index, as_dict(event["item"]))
        elif type == "response.output_item.done":
            self._item_done(self._seen(event["output_index"]), as_dict(event["item"]))
        elif type in _PARTS:
            part = as_dict(event["part"])
            kind = KINDS[part["type"]]
            self._item(event, kind).begin(kind, part, event.get(kind.numbering))
        elif type in _PART_ENDS:
            part = as_dict(event["part"])
            self._part(event, KINDS[part["type"]]).finish(part)
        elif (kind := _TEXT_ENDS.get(type)) is not None:
            _end(self._part(event, kind), event.get(kind.field))
        elif type in _ARGUMENT_ENDS:
            _end(self.open[event["output_index"]], event.get(_ARGUMENT_ENDS[type]))
        elif type == "response.output_text.annotation.added":
            self._part(event, KINDS["output_text"]).part.setdefault("annotations", []).append(event["annotation"])
        elif type in _ENDS:
            self.done = True
        elif not self.response and isinstance(event.get("response"), dict):
            self.response = event["response"]

    def _seen(self, index: int) -> int:
        self.items = max(self.items, index + 1)
        return index

    def _item(self, event: Object, kind: PartKind) -> Writing:
        index = self._seen(event["output_index"])
        item = self.open.get(index)
        if item is None:  # some servers announce nothing
            begun: Object = {"id": as_text(event.get("item_id")), "type": kind.item}
            if kind.item == "message":
                begun |= {"status": "in_progress", "role": "assistant"}
            item = self.open[index] = Writing(index, begun)
        return item

    def _part(self, event: Object, kind: PartKind) -> Writing:
        """The item of an event about one of its parts, with that part open."""
        item = self._item(event, kind)
        if item.kind is not kind:
            item.begin(kind, {"type": kind.type, kind.field: ""}, event.get(kind.numbering))
        return item

    def _item_done(self, index: int, item: Object) -> None:
        self.open.pop(index, None)
        self.output[index] = item
        if call_id := as_text(item.get("call_id")):
            self.calls[call_id] = item


def _end(item: Writing, text: Json) -> None:
    item.ended = True
    if isinstance(text, str):
        item.texts = [text]
