"""openai-responses, an item while it is written: begun by the encoder, or in what a client was passed before.

Both are alike from there on: the same text goes on in the same part, and the same ends have to be told.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.messages import Json
from unbroken.wires.values import Object, as_text


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

# What a call is told in: `response.{stream}.delta`, and the field that holds all of it.
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
        """The end of the text (of a call: of its arguments) has been told, that of the part has not."""
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
        """The whole item. What is encrypted was only sure at the end, and that is not known here."""
        item = {key: value for key, value in self.value.items() if key != "encrypted_content"}
        if self.type == "message" or "status" in item:
            item["status"] = status
        place = "content" if self.type == "message" else "summary"
        return {**item, place: [], **self._finished}
