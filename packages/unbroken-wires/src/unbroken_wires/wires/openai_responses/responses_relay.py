"""openai-responses in a gateway: relaying responses unchanged, raw items and their repair.

The last event of a stream repeats the complete response, so all text is read, and kept until its item has ended.
`Writing` is one open item, begun by the encoder or in relayed bytes; both continue in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from unbroken_wires.messages import Json
from unbroken_wires.transcript import Piece
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.openai_responses.responses_items import call_kind
from unbroken_wires.wires.raw_history import RawHistory, Relay, RelayedStream, StreamCheck, event_of, field


@dataclass(frozen=True, slots=True)
class PartKind:
    """How the events about one kind of part are spelled."""

    type: str
    item: str
    """The type of the items that have it."""
    place: str
    """The list in the item; `{place}_index` is the part's number there."""
    frame: str
    """What begins and ends it: `response.{frame}.added`."""
    stream: str
    """What its text comes in: `response.{stream}.delta`."""
    field: str = "text"

    @property
    def numbering(self) -> str:
        return f"{self.place}_index"


KINDS = {
    kind.type: kind
    for kind in (
        PartKind("output_text", "message", "content", "content_part", "output_text"),
        PartKind("refusal", "message", "content", "content_part", "refusal", "refusal"),
        PartKind("summary_text", "reasoning", "summary", "reasoning_summary_part", "reasoning_summary_text"),
        PartKind("reasoning_text", "reasoning", "content", "content_part", "reasoning_text"),
    )
}

# The events of a call: `response.{stream}.delta`, and the field that holds all of its arguments.
CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


class Writing:
    __slots__ = ("_finished", "ended", "index", "kind", "number", "part", "texts", "value")

    def __init__(self, index: int, value: Object) -> None:
        self.index = index
        """Its place in the output."""
        self.value = value
        """As it began."""
        self.kind: PartKind | None = None
        """Of the part that is open."""
        self.part: Object = {}
        self.number = 0
        self.texts: list[str] = []
        """Of the open part; of a call: its arguments or input."""
        self.ended = False
        """The end of the text (of a call: of its arguments) was sent, that of the part was not."""
        self._finished: dict[str, list[Json]] = {}

    @property
    def type(self) -> str:
        return as_text(self.value.get("type"))

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def begin(self, kind: PartKind, part: Object, number: int | None = None) -> None:
        self.kind = kind
        self.part = part
        self.number = len(self._finished.get(kind.place, ())) if number is None else number
        self.texts = [text] if (text := as_text(part.get(kind.field))) else []
        self.ended = False

    def finish(self, part: Json) -> None:
        if self.kind is not None:
            self._finished.setdefault(self.kind.place, []).append(part)
        self.kind = None

    def done(self, status: str) -> Object:
        """The complete item, without encrypted content: that is only final at the end, which is not known here."""
        item = {key: value for key, value in self.value.items() if key != "encrypted_content"}
        if self.type == "message" or "status" in item:
            item["status"] = status
        place = "content" if self.type == "message" else "summary"
        return {**item, place: [], **self._finished}


_TEXTS = {f"response.{kind.stream}.delta": kind for kind in KINDS.values()}
_TEXT_ENDS = {f"response.{kind.stream}.done": kind for kind in KINDS.values()}
_PARTS = {f"response.{kind.frame}.added" for kind in KINDS.values()}
_PART_ENDS = {f"response.{kind.frame}.done" for kind in KINDS.values()}
_ARGUMENTS = {f"response.{stream}.delta" for stream, _ in CALLS.values()}
_ARGUMENT_ENDS = {f"response.{stream}.done": field for stream, field in CALLS.values()}
_ENDS = {f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}


class RelayedResponse(RelayedStream):
    def __init__(self) -> None:
        super().__init__()
        self.response: Object = {}
        """As in its first event."""
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


class ResponsesCheck(StreamCheck):
    marks = (b"response.output_item", b"response.function_call_arguments")
    start = b"response.output_item.added"
    named = True

    def conforms(self, event: Object) -> bool:
        if event.get("type") == "response.output_item.added":
            return self.is_next(event.get("output_index")) and _item_conforms(as_dict(event.get("item")))
        index = event.get("output_index")
        known = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < self._next
        if event.get("type") == "response.output_item.done":
            return known and _item_conforms(as_dict(event.get("item")))
        return known and isinstance(event.get("delta", event.get("arguments", "")), str)


def _body_conforms(body: Object) -> bool:
    return all(map(_item_conforms, dicts(body.get("output"))))


def _item_conforms(item: Object) -> bool:
    kind = item.get("type")
    if kind not in CALLS:
        return True
    named = all(isinstance(item.get(name), str) and item[name] for name in ("call_id", "name"))
    return named and isinstance(item.get(CALLS[kind][1]), str)


RELAY = Relay(ResponsesCheck, _body_conforms, end=re.compile(rb"response\.(?:completed|incomplete|failed)"))


# openai-responses, raw items: taken apart for repair, and a body with only its first call.
#
# The history is a flat list of items; neighbouring items of the model are one turn.


# A call to be executed by the client, its answer's type, and how an error is written there.
_BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
_PAIRS: dict[str, tuple[str, Callable[[str], Object]]] = {
    "function_call": ("function_call_output", lambda text: {"output": text}),
    "custom_tool_call": ("custom_tool_call_output", lambda text: {"output": text}),
    "local_shell_call": ("local_shell_call_output", lambda text: {"output": text}),
    "shell_call": (
        "shell_call_output",
        lambda text: {"output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]},
    ),
    "apply_patch_call": ("apply_patch_call_output", lambda text: {"status": "failed", "output": text}),
    # A screenshot is the only answer that this call can have: a blank one.
    "computer_call": (
        "computer_call_output",
        lambda text: {"output": {"type": "computer_screenshot", "image_url": _BLANK}},
    ),
    "tool_search_call": ("tool_search_output", lambda text: {"execution": "client", "tools": []}),
}
_OUTPUTS = {output for output, _ in _PAIRS.values()}


class ResponsesHistory(RawHistory):
    def run(self, message: Json) -> str:
        fields = as_dict(message)
        type = field(fields, "type") or "message"
        if type in _OUTPUTS:
            return "results"
        if not fields or type == "mcp_approval_response":
            return ""
        return "assistant" if type != "message" or fields.get("role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        type, id = field(fields, "type"), field(fields, "call_id")
        # Without a call_id, the built-in calls are those that the provider runs itself.
        kind = call_kind({"execution": "client", **fields}) if type in _PAIRS else ""
        if kind and (id or kind in ("function", "custom")):
            return [Piece("call", message, id, field(fields, "name"))]
        if type in _OUTPUTS and (id or type != "tool_search_output"):
            return [Piece("result", message, id or field(fields, "id"), field(fields, "name"))]
        return [Piece("speech", message)]

    def build(self, message: Json, values: list[Json]) -> Json:
        return values[0]

    def error(self, call: Object, text: str) -> Json:
        type, fields = _PAIRS[call["type"]]
        return {"type": type, "call_id": field(call, "call_id"), **fields(text)}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "call_id": id}

    def has_links(self, message: Object) -> bool:
        return not field(message, "role") and any(piece.kind != "speech" for piece in self.pieces(message))

    def is_partial(self, messages: list[Json]) -> bool:
        """A reference stands for an item that only the provider has, perhaps a call."""
        return any(field(as_dict(item), "type") == "item_reference" for item in messages)


HISTORY = ResponsesHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    items = as_list(body.get("output"))
    calls = [piece for item in items for piece in HISTORY.pieces(item) if piece.kind == "call"]
    if len(calls) < (1 if new_id else 2):
        return body
    first, dropped = calls[0], {id(piece.value) for piece in calls[1:]}
    kept = [item for item in items if id(item) not in dropped]
    renamed = HISTORY.renamed(first, new_id) if new_id else first.value
    return {**body, "output": [renamed if item is first.value else item for item in kept]}
